"""What the objects of a service should be, and what is to be done to the ones there are: pure."""

from collections.abc import Sequence

from weft_operator.api.objects import (
    UPGRADE_ANNOTATION,
    Manifest,
    ObjectKey,
    ServiceKey,
    annotations_of,
    key_of,
    name_of,
)
from weft_operator.api.service_token import read_token
from weft_operator.api.worker_group import GROUP_KIND, WorkerGroupSpec
from weft_operator.kube.diff import Action, diff
from weft_operator.kube.observe import Observed
from weft_operator.render.config_maps import read_kept_images, read_transition
from weft_operator.render.inputs import PlanRecord, Rendering
from weft_operator.render.objects import desired_objects
from weft_operator.render.pinned_images import in_kept_images
from weft_operator.render.revisions import kept_revisions, revision_object
from weft_operator.rollout.ledger import Ledger, read_ledger
from weft_operator.settings import Settings
from weft_operator.workers.groups import from_before

PRUNABLE = ("StatefulSet", "ConfigMap", "ControllerRevision", "NetworkPolicy")
"""Kinds whose objects come and go with plans; all others have one fixed name each."""


def kept_token(key: ServiceKey, observed: Observed) -> bytes | None:
    """Return the internal token that a service's Secret holds, None where there is none."""
    secret = observed.named("Secret", f"{key.name}-token")
    return read_token(secret) if secret is not None else None


def ledger_of(key: ServiceKey, observed: Observed) -> Ledger:
    """Return what a service keeps of plan changes."""
    return read_ledger(read_transition(observed.named("ConfigMap", f"{key.name}-plan"))) or Ledger()


def rendering_of(
    key: ServiceKey,
    observed: Observed,
    record: PlanRecord,
    *,
    settings: Settings,
    token: bytes,
    shares_redis_user: bool = False,
) -> Rendering:
    """Return what to render for a record: with the images that the service keeps."""
    return in_kept_images(
        Rendering(
            key=key,
            uid=observed.service["metadata"]["uid"],
            record=record,
            settings=settings,
            shares_redis_user=shares_redis_user,
        ),
        kept=read_kept_images(observed.named("ConfigMap", f"{key.name}-plan")),
        wanted=annotations_of(observed.service).get(UPGRADE_ANNOTATION, "").strip(),
        groups=observed.of_kind(GROUP_KIND),
        token=token,
    )


def plan_actions(rendering: Rendering, observed: Observed, *, token: bytes) -> tuple[Action, ...]:
    """Return what makes the objects of a service as they are rendered; what living pods still mount stays."""
    key, record = rendering.key, rendering.record
    plans = observed.of_kind("ControllerRevision")
    in_force = revision_object(rendering, plans)
    limit = record.spec.planning.revision_history_limit
    before = read_ledger(rendering.transition)
    kept = kept_revisions(plans, current=name_of(in_force), limit=limit, before="" if before is None else before.plan)
    wanted = (*desired_objects(rendering, token=token), in_force)
    keep = _mounted(key, observed) | kept | _taken_over(wanted, observed)
    return diff(wanted, observed.owned, prunable=PRUNABLE, keep=keep)


def _taken_over(wanted: Sequence[Manifest], observed: Observed) -> frozenset[ObjectKey]:
    """Return StatefulSets from before there were groups that a group takes over: they are not left over."""
    uid = observed.service["metadata"]["uid"]
    groups = [WorkerGroupSpec.model_validate(item["spec"]) for item in wanted if item["kind"] == GROUP_KIND]
    return frozenset(
        key_of(item)
        for item in observed.of_kind("StatefulSet")
        if any(from_before(item, group, uid) for group in groups)
    )


def _mounted(key: ServiceKey, observed: Observed) -> frozenset[ObjectKey]:
    """Return the ConfigMaps that living pods or templates still mount."""
    specs: list[Manifest] = [pod.get("spec") or {} for pod in observed.pods]
    specs += [
        item["spec"]["template"].get("spec") or {}
        for item in (*observed.owned, *observed.workers)
        if item["kind"] in (GROUP_KIND, "StatefulSet", "Deployment")
    ]
    return frozenset(
        ObjectKey("v1", "ConfigMap", key.namespace, volume["configMap"]["name"])
        for spec in specs
        for volume in spec.get("volumes") or ()
        if volume.get("configMap")
    )
