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
MAX_NODES_NAMED = 3


@dataclass(frozen=True, slots=True)
class ModelState:
    """The condition ModelReady (None: absent) and the actions; workers start only if ``ready``.

    ``in_progress``: the weights become ready without a change by a person. ``requeue_after``: seconds after which to
    reconcile without an event.
    """

    verdict: ConditionValue | None = None
    ready: bool = True
    in_progress: bool = False
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
        message = (
            "the operator does not know its own image, which downloads: set WEFT_OPERATOR_IMAGE, as the chart does"
        )
        return ModelState(ConditionValue("False", "FetchFailed", message), ready=False)
    if model is None:
        state = _from_image(source.oci.reference, image_volumes) if source is not None and source.oci else ModelState()
    elif model.cache.claim is None:
        state = _on_nodes(observed, model, progress)
    else:
        state = _on_claim(
            rendering, observed, mounts, model, model.cache.claim, token=token, progress=progress, now=now
        )
    removal_actions = removals(rendering, observed, (model, cached_model(newest))) if newest is not None else ()
    verdict = state.verdict
    if verdict is None and _leftovers(rendering, observed):
        # Jobs and claims are read only while this condition is reported, so it stays until all are removed.
        verdict = ConditionValue("True", "RemovingWeights", "cached weights are removed as soon as no worker uses them")
    requeue_times = [
        wait for wait in (state.requeue_after, POLL_S if verdict is not state.verdict else None) if wait is not None
    ]
    return ModelState(
        verdict, state.ready, state.in_progress, (*state.actions, *removal_actions), min(requeue_times, default=None)
    )


def _from_image(reference: str, refusal: str) -> ModelState:
    if refusal:
        return ModelState(
            ConditionValue("False", "ImageVolumesUnsupported", refusal), ready=False, requeue_after=POLL_S * 6
        )
    return ModelState(
        ConditionValue("True", "ImageVolume", f"each node pulls {reference} once, and workers mount it read-only")
    )


def _on_nodes(observed: Observed, model: CachedModel, progress: Mapping[str, Progress]) -> ModelState:
    pods = job_status.worker_pods(observed, model.key)
    missing = [pod for pod in pods if not job_status.has_model(pod)]
    if not pods:
        message = "no worker is on a node yet; each node downloads the weights once, before its first engine starts"
        return ModelState(ConditionValue("Unknown", "FetchPending", message))
    if not missing:
        message = f"the weights are on the nodes of all {len(pods)} workers"
        return ModelState(ConditionValue("True", "WeightsReady", message))
    for pod in missing:
        # The kubelet restarts a sidecar that ended; its termination message says what to fix.
        if message := job_status.sidecar_failure(pod):
            node = (pod.get("spec") or {}).get("nodeName", "no node yet")
            return ModelState(ConditionValue("False", "FetchFailed", f"on {node}: {message}"), requeue_after=POLL_S)
    if message := job_status.waiting_reason(missing):
        return ModelState(ConditionValue("False", "FetchPending", message), requeue_after=POLL_S)
    rows = job_status.progress_by_node(missing[:MAX_NODES_NAMED], progress)
    text = f"{len(pods) - len(missing)} of {len(pods)} workers have their weights; {'; '.join(rows)}"
    return ModelState(ConditionValue("False", "Downloading", text), requeue_after=POLL_S)


def _on_claim(
    rendering: Rendering,
    observed: Observed,
    mounts: Mounts,
    model: CachedModel,
    cache_claim: CacheClaim,
    *,
    token: bytes,
    progress: Mapping[str, Progress],
    now: datetime,
) -> ModelState:
    """Return the state of weights on a claim: first the claim, then the Job that fills it."""
    name = model.claim_name(rendering.key.name) or ""
    own = cache_claim.existing_claim is None
    # A claim of this name that others created is not filled: creating ours is refused, and that is reported.
    live = observed.named("PersistentVolumeClaim", name) if own else observed.claims.get(name)
    actions = diff([weights.claim(rendering, cache_claim)] if own else [], observed.owned, prunable=())
    if own and live is not None and is_terminating(live):
        message = (
            f"claim {name} is being deleted, which ends once no pod mounts it; another one is made and filled then. No "
            "new worker can start before: give another source or cache, or delete the workers"
        )
        return _in_progress("FetchPending", message, actions)
    if live is None or is_terminating(live):
        if not own:
            message = (
                f"spec.model.source: there is no PersistentVolumeClaim {name} in namespace {rendering.key.namespace}; "
                "create it, or correct cache.claim.existingClaim"
            )
            return ModelState(ConditionValue("False", "ClaimNotFound", message), ready=False, requeue_after=POLL_S)
        message = f"making the claim {name} for the weights"
        return _in_progress("FetchPending", message, actions, requeue_after=1.0)
    uid = str(live["metadata"].get("uid", ""))
    job = observed.named("Job", weights.fetch_name(rendering.key.name, model.key))
    if job is None:
        if _is_being_removed(rendering, observed, model.key):
            return _in_progress("FetchPending", "earlier files of these weights are being removed first", actions)
        new_job = stamped(weights.fetch_job(rendering, mounts, model, claim_uid=uid))
        message = f"Job {name_of(new_job)} begins to download the weights onto claim {name}"
        fetch = Apply(new_job, reason="to download the weights", fresh=True)
        # The Job's pod needs these objects, and others are created only after the download.
        needed = [service_account(rendering), token_secret(rendering, token), *weights_policies(rendering)]
        prerequisites = diff(needed, observed.owned, prunable=())
        return _in_progress("Downloading", message, (*prerequisites, *actions, fetch))
    if is_terminating(job):
        return _in_progress(
            "FetchPending", f"Job {name_of(job)} is being removed before another try", actions, requeue_after=2.0
        )
    if annotations_of(job).get(weights.CLAIM_ANNOTATION) != uid:
        message = f"claim {name} was recreated after Job {name_of(job)} had filled it; it is filled again"
        return _in_progress(
            "FetchPending", message, (*actions, _delete_job(job, "its claim is gone")), requeue_after=2.0
        )
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
        if message := job_status.waiting_reason(pods):
            return _in_progress("FetchPending", message, actions)
        running = next((name_of(pod) for pod in reversed(pods)), "")
        message = f"Job {name_of(job)} downloads the weights: {job_status.progress_text(progress.get(running))}"
        if previous_end := job_status.termination_message(pods[:-1]):
            message = f"{message}; the previous pod ended with: {previous_end}"
        return _in_progress("Downloading", message, actions)
    done, why, since = end
    if done:
        what = job_status.describe_download(job_status.termination_message(pods))
        message = f"the weights{f' ({what})' if what else ''} are verified and on claim {claim}"
        return ModelState(ConditionValue("True", "WeightsReady", message), actions=actions)
    message = f"Job {name_of(job)} did not download the weights: {job_status.termination_message(pods) or why}"
    retry_in = RECHECK_S if since is None else RECHECK_S - (now - since).total_seconds()
    if retry_in <= 0:
        return _in_progress("FetchFailed", message, (*actions, _delete_job(job, "to try again")), requeue_after=2.0)
    message = (
        f"{message}; it is tried again {RECHECK_S / 60:.0f} min after it failed, or at once when the Job is deleted"
    )
    return _in_progress("FetchFailed", message, actions, requeue_after=min(retry_in, POLL_S * 6))


def removals(rendering: Rendering, observed: Observed, wanted: Iterable[CachedModel | None]) -> tuple[Action, ...]:
    """Return the actions that remove unused weights: the folder on a claim, or a claim that was created for them."""
    service, own = rendering.key.name, own_claim(rendering.key.name)
    used = job_status.mounted_weights(observed) | {
        (one.claim_name(service) or "", one.key) for one in wanted if one is not None
    }
    unused_claim = own if own not in {claim for claim, _ in used} else ""
    actions: list[Action] = []
    for job in _download_jobs(rendering, observed):
        key = annotations_of(job).get(WEIGHTS_ANNOTATION, "")
        volume = next(item for item in job["spec"]["template"]["spec"]["volumes"] if item.get("persistentVolumeClaim"))
        claim = volume["persistentVolumeClaim"]["claimName"]
        if (claim, key) in used or is_terminating(job):
            continue
        if claim in observed.claims and claim != unused_claim:
            new_job = stamped(weights.remove_job(rendering, key, {**volume}))
            previous_job = observed.named("Job", name_of(new_job))
            if previous_job is not None:
                # A Job that ended belongs to an earlier removal; the download's Job stays until the weights are
                # removed.
                actions += (
                    [_delete_job(previous_job, "to remove these weights once more")]
                    if job_status.job_end(previous_job)
                    else []
                )
                continue
            actions.append(Apply(new_job, reason="no worker uses these weights", fresh=True))
        actions.append(_delete_job(job, "no worker uses these weights"))
    live = observed.named("PersistentVolumeClaim", unused_claim)
    if live is not None and not is_terminating(live):
        uid = str(live["metadata"].get("uid", ""))
        actions.append(Delete(key_of(live), uid=uid, reason="nothing is cached on it any more"))
    return tuple(actions)


def _leftovers(rendering: Rendering, observed: Observed) -> bool:
    """Return whether a cache that the spec does not use any more still exists."""
    own = observed.named("PersistentVolumeClaim", own_claim(rendering.key.name))
    return own is not None or any(True for _ in _download_jobs(rendering, observed))


def _download_jobs(rendering: Rendering, observed: Observed) -> Iterator[Manifest]:
    """Yield the download Jobs."""
    for job in observed.of_kind("Job"):
        key = annotations_of(job).get(WEIGHTS_ANNOTATION, "")
        of_weights = labels_of(job).get(COMPONENT_LABEL) == WEIGHTS_COMPONENT
        if of_weights and name_of(job) == weights.fetch_name(rendering.key.name, key):
            yield job


def _is_being_removed(rendering: Rendering, observed: Observed, key: str) -> bool:
    job = observed.named("Job", weights.remove_name(rendering.key.name, key))
    return job is not None and job_status.job_end(job) is None


def _in_progress(reason: str, message: str, actions: tuple[Action, ...], requeue_after: float = POLL_S) -> ModelState:
    return ModelState(
        ConditionValue("False", reason, message),
        ready=False,
        in_progress=True,
        actions=actions,
        requeue_after=requeue_after,
    )


def _delete_job(job: Manifest, reason: str) -> Delete:
    return Delete(key_of(job), uid=str(job["metadata"].get("uid", "")), reason=reason)
