"""The state of a service's weights in their cache, and the actions that download or remove them. Pure.

All state is in the cluster. The Job that downloaded a model stays; its success means that the model is in the cache. A
Job is for one model (its key is in the Job's name) and one claim (its uid is in an annotation), so another source or
claim has another Job. A finished download of a model that no worker uses leads to a Job that removes the model.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from weft_operator.api.conditions import ConditionValue
from weft_operator.api.model import CacheClaim, Model
from weft_operator.api.model_cache import CachedModel, cached_model, own_claim
from weft_operator.api.objects import (
    COMPONENT_LABEL,
    WEIGHTS_ANNOTATION,
    WEIGHTS_COMPONENT,
    Manifest,
    annotations_of,
    is_terminating,
    key_of,
    labels_of,
    name_of,
)
from weft_operator.kube.diff import Action, Apply, Delete, diff, stamped
from weft_operator.kube.observe import Observed
from weft_operator.render import weights
from weft_operator.render.identity import service_account, token_secret
from weft_operator.render.inputs import Rendering
from weft_operator.render.network_policies import weights_policies
from weft_operator.render.router_container import Mounts
from weft_operator.weights import job_status
from weft_operator.weights.progress import Progress

POLL_S = 10.0
"""Interval of checks of a download: its Job is not watched, and its progress is in Redis."""
RECHECK_S = 300.0
"""Pause before a failed Job is retried, which resumes its download."""
MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class ModelState:
    """The condition ModelReady (None: absent) and the actions; workers start only if ``ready``.

    ``waits``: whether the weights come without a change by a person. ``requeue_after``: seconds after which to
    reconcile without an event.
    """

    verdict: ConditionValue | None = None
    ready: bool = True
    waits: bool = False
    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None


def model_state(
    rendering: Rendering,
    observed: Observed,
    mounts: Mounts,
    *,
    token: bytes,
    newest: Model | None,
    progress: Mapping[str, Progress],
    image_volumes: str,
    now: datetime,
) -> ModelState:
    """Return the state of the weights of a rendered service.

    ``newest`` is the model of the newest spec, which may not be planned yet; None where it cannot be read.
    ``image_volumes`` says why the cluster has no image volumes, "" where it has.
    """
    model, source = cached_model(rendering.spec.model), rendering.spec.model.source
    if model is not None and not rendering.settings.operator_image:
        words = "the operator does not know its own image, which downloads: set WEFT_OPERATOR_IMAGE, as the chart does"
        return ModelState(ConditionValue("False", "FetchFailed", words), ready=False)
    if model is None:
        found = _image(source.oci.reference, image_volumes) if source is not None and source.oci else ModelState()
    elif model.cache.claim is None:
        found = _on_nodes(observed, model, progress)
    else:
        found = _on_claim(
            rendering, observed, mounts, model, model.cache.claim, token=token, progress=progress, now=now
        )
    removed = removals(rendering, observed, (model, cached_model(newest))) if newest is not None else ()
    verdict = found.verdict
    if verdict is None and _leftovers(rendering, observed):
        # The condition is what has Jobs and claims read, so it stays until nothing is left.
        verdict = ConditionValue("True", "RemovingWeights", "cached weights are removed as soon as no worker uses them")
    again = [
        wait for wait in (found.requeue_after, POLL_S if verdict is not found.verdict else None) if wait is not None
    ]
    return ModelState(verdict, found.ready, found.waits, (*found.actions, *removed), min(again, default=None))


def _image(reference: str, refusal: str) -> ModelState:
    if refusal:
        return ModelState(
            ConditionValue("False", "ImageVolumesUnsupported", refusal), ready=False, requeue_after=POLL_S * 6
        )
    return ModelState(
        ConditionValue("True", "ImageVolume", f"each node pulls {reference} once, and workers mount it read-only")
    )


def _on_nodes(observed: Observed, model: CachedModel, progress: Mapping[str, Progress]) -> ModelState:
    pods = job_status.worker_pods(observed, model.key)
    missing = [pod for pod in pods if not job_status.is_started(pod)]
    if not pods:
        words = "no worker is on a node yet; each node downloads the weights once, before its first engine starts"
        return ModelState(ConditionValue("Unknown", "FetchPending", words))
    if not missing:
        words = f"the weights are on the nodes of all {len(pods)} workers"
        return ModelState(ConditionValue("True", "WeightsReady", words))
    for pod in missing:
        # A sidecar that ended is started again and goes on; what it said is what to mend.
        if words := job_status.failure(pod):
            node = (pod.get("spec") or {}).get("nodeName", "no node yet")
            return ModelState(ConditionValue("False", "FetchFailed", f"on {node}: {words}"), requeue_after=POLL_S)
    if words := job_status.waits(missing):
        return ModelState(ConditionValue("False", "FetchPending", words), requeue_after=POLL_S)
    rows = job_status.by_node(missing[:MAX_NAMED], progress)
    text = f"{len(pods) - len(missing)} of {len(pods)} workers have their weights; {'; '.join(rows)}"
    return ModelState(ConditionValue("False", "Downloading", text), requeue_after=POLL_S)


def _on_claim(
    rendering: Rendering,
    observed: Observed,
    mounts: Mounts,
    model: CachedModel,
    asked: CacheClaim,
    *,
    token: bytes,
    progress: Mapping[str, Progress],
    now: datetime,
) -> ModelState:
    """Return the state of weights on a claim: first the claim, then the Job that fills it."""
    name = model.claim_name(rendering.key.name) or ""
    own = asked.existing_claim is None
    # A claim of this name that others created is not filled: creating ours is refused, and that is reported.
    live = observed.named("PersistentVolumeClaim", name) if own else observed.claims.get(name)
    actions = diff([weights.claim(rendering, asked)] if own else [], observed.owned, prunable=())
    if own and live is not None and is_terminating(live):
        words = (
            f"claim {name} is being deleted, which ends once no pod mounts it; another one is made and filled then. No "
            "new worker can start before: give another source or cache, or delete the workers"
        )
        return _waiting("FetchPending", words, actions)
    if live is None or is_terminating(live):
        if not own:
            words = (
                f"spec.model.source: there is no PersistentVolumeClaim {name} in namespace {rendering.key.namespace}; "
                "create it, or correct cache.claim.existingClaim"
            )
            return ModelState(ConditionValue("False", "ClaimNotFound", words), ready=False, requeue_after=POLL_S)
        words = f"making the claim {name} for the weights"
        return _waiting("FetchPending", words, actions, requeue_after=1.0)
    uid = str(live["metadata"].get("uid", ""))
    job = observed.named("Job", weights.fetch_name(rendering.key.name, model.key))
    if job is None:
        if _is_being_removed(rendering, observed, model.key):
            return _waiting("FetchPending", "what is left of these weights is being removed first", actions)
        made = stamped(weights.fetch_job(rendering, mounts, model, claim_uid=uid))
        words = f"Job {name_of(made)} begins to download the weights onto claim {name}"
        fetch = Apply(made, reason="to download the weights", fresh=True)
        # The Job's pod needs these objects, and others are created only after the download.
        needed = [service_account(rendering), token_secret(rendering, token), *weights_policies(rendering)]
        before = diff(needed, observed.owned, prunable=())
        return _waiting("Downloading", words, (*before, *actions, fetch))
    if is_terminating(job):
        return _waiting(
            "FetchPending", f"Job {name_of(job)} is being removed before another try", actions, requeue_after=2.0
        )
    if annotations_of(job).get(weights.CLAIM_ANNOTATION) != uid:
        words = f"claim {name} is another one than that which Job {name_of(job)} filled; it is filled again"
        return _waiting("FetchPending", words, (*actions, _removed(job, "its claim is gone")), requeue_after=2.0)
    return _of_job(observed, job, name, actions, progress=progress, now=now)


def _of_job(
    observed: Observed,
    job: Manifest,
    claim: str,
    actions: tuple[Action, ...],
    *,
    progress: Mapping[str, Progress],
    now: datetime,
) -> ModelState:
    """Return the state of weights by the Job that downloads them."""
    pods, end = job_status.job_pods(observed, name_of(job)), job_status.job_end(job)
    if end is None:
        if words := job_status.waits(pods):
            return _waiting("FetchPending", words, actions)
        running = next((name_of(pod) for pod in reversed(pods)), "")
        words = f"Job {name_of(job)} downloads the weights: {job_status.progress_text(progress.get(running))}"
        if said := job_status.last_words(pods[:-1]):
            words = f"{words}; the pod before said: {said}"
        return _waiting("Downloading", words, actions)
    done, why, since = end
    if done:
        what = job_status.what_was_loaded(job_status.last_words(pods))
        words = f"the weights{f' ({what})' if what else ''} are verified and on claim {claim}"
        return ModelState(ConditionValue("True", "WeightsReady", words), actions=actions)
    words = f"Job {name_of(job)} did not download the weights: {job_status.last_words(pods) or why}"
    left = RECHECK_S if since is None else RECHECK_S - (now - since).total_seconds()
    if left <= 0:
        return _waiting("FetchFailed", words, (*actions, _removed(job, "to try again")), requeue_after=2.0)
    again = f"{words}; it is tried again {RECHECK_S / 60:.0f} min after it failed, or at once when the Job is deleted"
    return _waiting("FetchFailed", again, actions, requeue_after=min(left, POLL_S * 6))


def removals(rendering: Rendering, observed: Observed, wanted: Iterable[CachedModel | None]) -> tuple[Action, ...]:
    """Return the actions that remove unused weights: the folder on a claim, or a claim that was created for them."""
    service, own = rendering.key.name, own_claim(rendering.key.name)
    used = job_status.in_use(observed) | {(one.claim_name(service) or "", one.key) for one in wanted if one is not None}
    doomed = own if own not in {claim for claim, _ in used} else ""
    actions: list[Action] = []
    for job in _fetches(rendering, observed):
        key = annotations_of(job).get(WEIGHTS_ANNOTATION, "")
        volume = next(item for item in job["spec"]["template"]["spec"]["volumes"] if item.get("persistentVolumeClaim"))
        claim = volume["persistentVolumeClaim"]["claimName"]
        if (claim, key) in used or is_terminating(job):
            continue
        if claim in observed.claims and claim != doomed:
            made = stamped(weights.remove_job(rendering, key, {**volume}))
            before = observed.named("Job", name_of(made))
            if before is not None:
                # An ended Job is of an earlier removal; the download's Job stays until the weights are removed.
                actions += [_removed(before, "to remove these weights once more")] if job_status.job_end(before) else []
                continue
            actions.append(Apply(made, reason="no worker uses these weights", fresh=True))
        actions.append(_removed(job, "no worker uses these weights"))
    live = observed.named("PersistentVolumeClaim", doomed)
    if live is not None and not is_terminating(live):
        uid = str(live["metadata"].get("uid", ""))
        actions.append(Delete(key_of(live), uid=uid, reason="nothing is cached on it any more"))
    return tuple(actions)


def _leftovers(rendering: Rendering, observed: Observed) -> bool:
    """Tell whether a cache that the spec does not use any more still exists."""
    own = observed.named("PersistentVolumeClaim", own_claim(rendering.key.name))
    return own is not None or any(True for _ in _fetches(rendering, observed))


def _fetches(rendering: Rendering, observed: Observed) -> Iterator[Manifest]:
    """Yield the download Jobs."""
    for job in observed.of_kind("Job"):
        key = annotations_of(job).get(WEIGHTS_ANNOTATION, "")
        of_weights = labels_of(job).get(COMPONENT_LABEL) == WEIGHTS_COMPONENT
        if of_weights and name_of(job) == weights.fetch_name(rendering.key.name, key):
            yield job


def _is_being_removed(rendering: Rendering, observed: Observed, key: str) -> bool:
    job = observed.named("Job", weights.remove_name(rendering.key.name, key))
    return job is not None and job_status.job_end(job) is None


def _waiting(reason: str, words: str, actions: tuple[Action, ...], requeue_after: float = POLL_S) -> ModelState:
    return ModelState(
        ConditionValue("False", reason, words), ready=False, waits=True, actions=actions, requeue_after=requeue_after
    )


def _removed(job: Manifest, reason: str) -> Delete:
    return Delete(key_of(job), uid=str(job["metadata"].get("uid", "")), reason=reason)
