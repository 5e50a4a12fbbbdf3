"""The plan of one group: which workers stay, drain, are created, restarted and updated now. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from weft_core.heartbeat import WorkerRecord
from weft_core.layouts import WORKER_ROLES, WorkerRole
from weft_operator.api.objects import (
    DRAIN_ANNOTATION,
    POOL_LABEL,
    ROLE_LABEL,
    TEMPLATE_HASH_ANNOTATION,
    WORKER_LABEL,
    Manifest,
    annotations_of,
    controller_of,
    is_terminating,
    key_of,
    labels_of,
    name_of,
)
from weft_operator.kube.diff import Action, diff
from weft_operator.kube.events import Event
from weft_operator.render.companions import COMPANION_KINDS, companion_objects
from weft_operator.render.statefulsets import statefulset
from weft_operator.rollout.gang_release import plan_release
from weft_operator.rollout.node_restarts import Restart, deletions, restarts
from weft_operator.rollout.role_switches import role_labels, switch_poll_s, switching_workers
from weft_operator.rollout.scale_down import retention_order
from weft_operator.rollout.template_updates import stage
from weft_operator.workers.fleet import Fleet, LiveWorker, Worker, live_workers, loss_of, parse_name, role_of
from weft_operator.workers.groups import WorkerGroupView, is_legacy
from weft_operator.workers.readiness import WorkerState, stuck_workers, worker_states
from weft_operator.workers.roles import assign_roles


@dataclass(frozen=True, slots=True)
class DepartingWorker:
    """A worker that is removed and whose pods or StatefulSet still exist."""

    name: str
    node: str
    lost: str | None
    """Why it was given up; None for one that drains."""
    role: WorkerRole = "decode"


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The actions of one pass over a group, and what its status needs."""

    fleet: Fleet
    actions: tuple[Action, ...]
    waiting: frozenset[str]
    """Workers whose new template is left to a later pass."""
    leaving: tuple[DepartingWorker, ...]
    restarts: tuple[Restart, ...] = ()
    """Workers on several nodes that restart, because one of their pods was lost or terminates."""
    release_events: tuple[Event, ...] = ()
    """Events of workers on several nodes that release the nodes of the pods that were scheduled."""
    switching: frozenset[str] = frozenset()
    """Workers that have not confirmed their role yet."""
    same_template: frozenset[str] = frozenset()
    """Workers whose StatefulSet differs from the wanted one in the role at most."""
    requeue_after: float | None = None
    """In how many seconds the next restart or release may be due, or a worker may have confirmed its role."""


def belongs(group: WorkerGroupView, item: Manifest) -> bool:
    """Return whether a StatefulSet is this group's, or its service's own (before WorkerGroups existed)."""
    return (controller_of(item) or {}).get("uid") == group.uid or is_legacy(item, group.spec, group.owner_uid)


def plan_group(
    group: WorkerGroupView,
    *,
    statefulsets: Sequence[Manifest],
    pods: Sequence[Manifest],
    records: Mapping[str, WorkerRecord],
    now: datetime,
    companions: Sequence[Manifest] = (),
    rows: Sequence[Mapping[str, Any]] = (),
) -> GroupPlan:
    """Return the plan; StatefulSets and pods are those of the group's component, of other groups of the service too.

    ``companions`` are the objects of the component's workers on several nodes besides StatefulSets, ``rows`` the
    workers in the group's status.
    """
    service = group.spec.service
    mine = [item for item in statefulsets if belongs(group, item)]
    live = live_workers(service, mine, pods, now=now, stuck=stuck_workers(mine, pods))
    gone = _without_statefulset(group, statefulsets, pods, now)
    chosen = _choose(
        group, live, taken=_taken(group, statefulsets, pods), records=records, held=_held(gone, live, pods), rows=rows
    )
    names = {group.name_of(worker) for worker in chosen}
    release = plan_release(group, [item for item in mine if name_of(item) in names], pods, now=now)
    wanted = [statefulset(group, worker, released=release.at.get(group.name_of(worker))) for worker in chosen]
    own = [item for item in companions if (controller_of(item) or {}).get("uid") == group.uid]
    # The engines of a draining worker still serve: they need their network objects until the last pod is gone.
    draining = {labels_of(pod).get(WORKER_LABEL, "") for pod in pods} - names
    kept = {key_of(item) for item in own if labels_of(item).get(WORKER_LABEL) in draining}
    wanted_companions = [item for worker in chosen for item in companion_objects(group, worker)]
    actions = (
        # First, so that no pod starts before its network policy and its pod group exist.
        *diff(wanted_companions, own, prunable=COMPANION_KINDS, keep=kept),
        *diff(wanted, mine, prunable=("StatefulSet",)),
    )
    restarted, restart_in = restarts([item for item in mine if name_of(item) in names], pods, now=now)
    switching = switching_workers(service, chosen, pods=pods, records=records, rows=rows)
    states = _component_states(group, chosen, statefulsets, pods, switching, records)
    staged = stage(actions, states=states, statefulsets=mine)
    relabels = role_labels(group, chosen, statefulsets=wanted, pods=pods)
    switch_in = switch_poll_s(switching - staged.waiting, rows=rows, now=now)
    leaving = (
        *gone,
        *(
            DepartingWorker(item.name, item.node, item.lost, item.worker.role)
            for item in live
            if item.name not in names
        ),
    )
    return GroupPlan(
        fleet=Fleet(chosen, tuple(item for item in live if item.lost is not None and not item.terminating)),
        # The label of the pod follows the one in its StatefulSet, which a recreated pod has.
        actions=(*staged.actions, *relabels, *(action for one in restarted for action in deletions(one))),
        waiting=staged.waiting,
        leaving=tuple(sorted(leaving, key=lambda item: item.name)),
        restarts=restarted,
        release_events=release.events,
        switching=switching,
        same_template=frozenset() if group.fixed else _same_template(wanted, mine),
        requeue_after=min(
            (wait for wait in (restart_in, release.requeue_after, switch_in) if wait is not None), default=None
        ),
    )


def _choose(
    group: WorkerGroupView,
    live: Sequence[LiveWorker],
    *,
    taken: frozenset[int],
    records: Mapping[str, WorkerRecord],
    held: int,
    rows: Sequence[Mapping[str, Any]],
) -> tuple[Worker, ...]:
    """Return the workers to have.

    ``taken`` are indices in use. ``held`` is the number of replacements that wait for the GPUs of workers that a
    person drains. Workers that get another role with an update that is still to come have it in ``rows`` alone.
    """
    usable = [item for item in live if not item.terminating and item.lost is None]
    if group.spec.replicas is None:
        return tuple(sorted(item.worker for item in usable))
    ordered = retention_order(usable, records)
    stay = [item for item in ordered if not item.drain_requested]
    chosen_before = _chosen_before(rows)
    members = [(item.name, chosen_before.get(item.name, item.worker.role)) for item in stay]
    roles = assign_roles(group.roles(group.spec.replicas), members)
    going = len(usable) - len(stay)
    chosen = [replace(item.worker, role=roles.kept[item.name]) for item in stay if item.name in roles.kept]
    index = 0
    for role in roles.new[: max(0, group.spec.replicas - len(chosen) - going - held)]:
        while index in taken:
            index += 1
        chosen.append(group.worker(index, role))
        taken |= {index}
    return tuple(sorted(chosen))


def _chosen_before(rows: Iterable[Mapping[str, Any]]) -> dict[str, WorkerRole]:
    """Return the roles that workers get with their new template, whose turn is still to come.

    Without them others might be chosen in every pass, because what workers lose changes all the time.
    """
    waiting = {str(row["name"]): row.get("role") for row in rows if row.get("switching") and row.get("outdated")}
    return {name: role for name, found in waiting.items() for role in WORKER_ROLES if role == found}


def _same_template(wanted: Iterable[Manifest], live: Iterable[Manifest]) -> frozenset[str]:
    hashes = {name_of(item): annotations_of(item).get(TEMPLATE_HASH_ANNOTATION) for item in live}
    return frozenset(
        name_of(item)
        for item in wanted
        if hashes.get(name_of(item)) == annotations_of(item).get(TEMPLATE_HASH_ANNOTATION)
    )


def _held(gone: Sequence[DepartingWorker], live: Sequence[LiveWorker], pods: Sequence[Manifest]) -> int:
    """Count the removed workers that a person drains: without a StatefulSet, or with a terminating one."""
    asked = {labels_of(pod).get(WORKER_LABEL, "") for pod in pods if annotations_of(pod).get(DRAIN_ANNOTATION)}
    ending = {item.name for item in live if item.terminating and item.lost is None}
    return len(asked & ({item.name for item in gone if item.lost is None} | ending))


def _taken(group: WorkerGroupView, statefulsets: Sequence[Manifest], pods: Sequence[Manifest]) -> frozenset[int]:
    """Return the indices of this role and degree in any group: names of workers do not contain the pool."""
    names = {name_of(item) for item in statefulsets} | {labels_of(pod).get(WORKER_LABEL, "") for pod in pods}
    workers = (parse_name(group.spec.service, name, "") for name in names)
    return frozenset(
        worker.index
        for worker in workers
        if worker is not None
        and (worker.role if worker.fixed else None, worker.degree) == (group.spec.role, group.spec.degree)
    )


def _without_statefulset(
    group: WorkerGroupView, statefulsets: Sequence[Manifest], pods: Sequence[Manifest], now: datetime
) -> list[DepartingWorker]:
    """Return the group's workers whose StatefulSet is gone and whose pods still exist."""
    known = {name_of(item) for item in statefulsets}
    found: dict[str, DepartingWorker] = {}
    for pod in pods:
        labels = labels_of(pod)
        name = labels.get(WORKER_LABEL, "")
        if name and name not in known and all(labels.get(key) == value for key, value in group.labels.items()):
            node = str((pod.get("spec") or {}).get("nodeName") or "")
            before = found.get(name)
            lost = loss_of(pod, now=now) or (before.lost if before is not None else None)
            found[name] = DepartingWorker(name, node, lost, _label_role(labels, group))
    return list(found.values())


def _label_role(labels: Mapping[str, str], group: WorkerGroupView) -> WorkerRole:
    found = group.spec.role or labels.get(ROLE_LABEL)
    return next((role for role in WORKER_ROLES if role == found), "decode")


def _component_states(
    group: WorkerGroupView,
    chosen: Sequence[Worker],
    statefulsets: Sequence[Manifest],
    pods: Sequence[Manifest],
    switching: frozenset[str],
    records: Mapping[str, WorkerRecord],
) -> tuple[WorkerState, ...]:
    """Return the states of all workers of the component: an update waits for workers of other groups too."""
    service = group.spec.service
    others = []
    for item in statefulsets:
        worker = parse_name(service, name_of(item), labels_of(item).get(POOL_LABEL, ""), role_of(item))
        if worker is not None and not belongs(group, item) and not is_terminating(item):
            others.append(worker)
    switching |= switching_workers(service, others, pods=pods, records=records, rows=())
    return worker_states(
        service, [*chosen, *others], statefulsets=statefulsets, pods=pods, changed=frozenset(), switching=switching
    )
