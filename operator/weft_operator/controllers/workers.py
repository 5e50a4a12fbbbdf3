"""The sub-reconciler of workers: the rendered objects of a service, and the replicas of its groups."""

from collections.abc import Sequence

from weft_operator.api.conditions import ConditionValue
from weft_operator.api.objects import (
    COMPONENT_LABEL,
    PICKER_COMPONENT,
    Manifest,
    ObjectKey,
    ServiceKey,
    key_of,
    labels_of,
    name_of,
)
from weft_operator.api.worker_group import GROUP_KIND, WorkerGroupSpec
from weft_operator.controllers.apply import Applied
from weft_operator.controllers.context import ReconcileContext
from weft_operator.controllers.rollout import NextRollout
from weft_operator.kube.diff import Action, Delete, diff
from weft_operator.kube.observe import Observed
from weft_operator.render.gateway import HTTP_ROUTE, INFERENCE_POOL
from weft_operator.render.inputs import Rendering
from weft_operator.render.mesh import PEER_AUTHENTICATION
from weft_operator.render.objects import desired_objects
from weft_operator.render.revisions import kept_revisions, revision_object
from weft_operator.rollout.ledger import read_ledger
from weft_operator.rollout.replica_targets import scale_actions
from weft_operator.status.results import WorkersResult
from weft_operator.workers.group_views import leaving_of, lost_of, rows_of, states_of
from weft_operator.workers.groups import component_of, is_legacy
from weft_operator.workers.readiness import CoordinatorState, PickerState, coordinator_state, picker_state

_OF_OTHER_PROJECTS = (HTTP_ROUTE[1], INFERENCE_POOL[1], PEER_AUTHENTICATION[1])
PRUNABLE = (
    "StatefulSet", "ConfigMap", "ControllerRevision", "NetworkPolicy", "Service",
    "Deployment", "PodDisruptionBudget", *_OF_OTHER_PROJECTS,
)  # fmt: skip
"""Kinds whose objects come and go with plans, spec.gateway and spec.network; all others have one fixed name each."""


def worker_actions(ctx: ReconcileContext, rollout: NextRollout) -> tuple[Action, ...]:
    """Return the actions that apply the rendered objects of a service, then those that scale its groups."""
    objects = _object_actions(rollout.rendering, ctx.observed, token=ctx.token)
    return (*objects, *scale_actions(ctx.key, rollout.state.targets, rollout.views))


def workers_result(
    ctx: ReconcileContext, rollout: NextRollout, applied: Applied, *, refusal: ConditionValue | None
) -> WorkersResult:
    """Return the workers and coordinators after the actions; ``refusal`` is a failure outside of the actions."""
    wanted, views = rollout.state.wanted, rollout.views
    groups = frozenset(item.name for item in applied.changed if item.kind == GROUP_KIND)
    states = states_of(ctx.key.name, wanted, views, changed=groups)
    refused = next((view.failure for view in views if view.failure is not None), None)
    return WorkersResult(
        states=states,
        groups=rows_of(wanted, views, states),
        coordinator=_coordinator(ctx, rollout.rendering, applied),
        picker=_picker(ctx, rollout.rendering, applied),
        lost=() if all(state.ready for state in states) else lost_of(views),
        leaving=leaving_of(wanted, views),
        failure=applied.failure or (None if refused is None else ConditionValue("False", *refused)) or refusal,
    )


def _coordinator(ctx: ReconcileContext, rendering: Rendering, applied: Applied) -> CoordinatorState:
    """Return the state of the coordinators."""
    name = rendering.name()
    pods = _pods(ctx, "coordinator")
    return coordinator_state(ctx.observed.named("Deployment", name), pods, changed=_is_changed(applied, name))


def _picker(ctx: ReconcileContext, rendering: Rendering, applied: Applied) -> PickerState | None:
    """Return the state of the endpoint pickers; None where there are none."""
    if not rendering.picked:
        return None
    name = rendering.name(PICKER_COMPONENT)
    pods = _pods(ctx, PICKER_COMPONENT)
    return picker_state(ctx.observed.named("Deployment", name), pods, changed=_is_changed(applied, name))


def _pods(ctx: ReconcileContext, component: str) -> list[Manifest]:
    """Return the pods of a component."""
    return [pod for pod in ctx.observed.pods if labels_of(pod).get(COMPONENT_LABEL) == component]


def _is_changed(applied: Applied, name: str) -> bool:
    """Return whether a Deployment was just changed."""
    return any(item.kind == "Deployment" and item.name == name for item in applied.changed)


def _object_actions(rendering: Rendering, observed: Observed, *, token: bytes) -> tuple[Action, ...]:
    """Return the actions that apply the rendered objects of a service; ConfigMaps that pods mount stay."""
    key, record = rendering.key, rendering.record
    plans = observed.of_kind("ControllerRevision")
    in_force = revision_object(rendering, plans)
    limit = record.spec.planning.revision_history_limit
    before = read_ledger(rendering.ledger)
    kept = kept_revisions(plans, current=name_of(in_force), limit=limit, before="" if before is None else before.plan)
    wanted = (*desired_objects(rendering, token=token), in_force)
    keep = _mounted(key, observed) | kept | _adopted(wanted, observed) | _of_other_components(rendering, observed)
    actions = diff(wanted, observed.owned, prunable=PRUNABLE, keep=keep)
    # The plan's ConfigMap says that there are such objects, so they go before it changes.
    first = [action for action in actions if isinstance(action, Delete) and action.key.kind in _OF_OTHER_PROJECTS]
    return (*first, *(action for action in actions if action not in first))


def _adopted(wanted: Sequence[Manifest], observed: Observed) -> frozenset[ObjectKey]:
    """Return the service's own StatefulSets (from before WorkerGroups existed) that a group adopts."""
    uid = observed.service["metadata"]["uid"]
    groups = [WorkerGroupSpec.model_validate(item["spec"]) for item in wanted if item["kind"] == GROUP_KIND]
    return frozenset(
        key_of(item) for item in observed.of_kind("StatefulSet") if any(is_legacy(item, group, uid) for group in groups)
    )


def _of_other_components(rendering: Rendering, observed: Observed) -> frozenset[ObjectKey]:
    """Return the headless Services and NetworkPolicies that workers need whose component is rendered no more.

    Those are the workers of groups that are being replaced by ones with other roles in their names, or none.
    """
    key, policy = rendering.key, rendering.spec.network_policy
    components = {component_of(item["spec"].get("role")) for item in observed.of_kind(GROUP_KIND)}
    found: set[ObjectKey] = set()
    for name in (rendering.name(component) for component in components - set(rendering.worker_components)):
        found.add(ObjectKey("v1", "Service", key.namespace, name))
        if policy.enabled:
            found.add(ObjectKey("networking.k8s.io/v1", "NetworkPolicy", key.namespace, name))
        if policy.enabled and policy.restrict_egress:
            found.add(ObjectKey("networking.k8s.io/v1", "NetworkPolicy", key.namespace, f"{name}-egress"))
    return frozenset(found)


def _mounted(key: ServiceKey, observed: Observed) -> frozenset[ObjectKey]:
    """Return the ConfigMaps that existing pods or templates mount."""
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
