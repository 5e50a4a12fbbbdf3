"""Decide what to do about one group: which workers stay, which leave, which are made, and who is updated now. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.objects import (
    DRAIN_ANNOTATION,
    POOL_LABEL,
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
from weft_operator.rollout.scale_down import keep_order
from weft_operator.rollout.template_updates import stage
from weft_operator.workers.fleet import Fleet, LiveWorker, Worker, live_workers, loss_of, parse_name
from weft_operator.workers.groups import WorkerGroupView, from_before
from weft_operator.workers.readiness import WorkerState, stuck_workers, worker_states


@dataclass(frozen=True, slots=True)
class DepartingWorker:
    """A worker that is not to be had any more and whose pods or StatefulSet are still there."""

    name: str
    node: str
    lost: str | None
    """Why it was given up; None for one that drains."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The actions of one pass, and what its status will say of the workers if nothing more changes."""

    fleet: Fleet
    actions: tuple[Action, ...]
    waiting: frozenset[str]
    """Workers whose new template is left to a later pass."""
    leaving: tuple[DepartingWorker, ...]
    restarts: tuple[Restart, ...] = ()
    """Workers on several nodes of which one was lost, or leaves."""
    release_events: tuple[Event, ...] = ()
    """The message about workers on several nodes that give back the nodes that only some of their pods found."""
    again_s: float | None = None
    """In how many seconds another one may have to be restarted, or released."""


def belongs(group: WorkerGroupView, item: Manifest) -> bool:
    """Tell whether a StatefulSet is this group's, or its service's own from before there were groups."""
    return (controller_of(item) or {}).get("uid") == group.uid or from_before(item, group.spec, group.owner_uid)


def plan_group(
    group: WorkerGroupView,
    *,
    statefulsets: Sequence[Manifest],
    pods: Sequence[Manifest],
    records: Mapping[str, WorkerRecord],
    now: datetime,
    companions: Sequence[Manifest] = (),
) -> GroupPlan:
    """Return what to do; StatefulSets and pods are those of the group's role, other groups of the service included.

    ``companions`` is what the role's workers on several nodes have beside their StatefulSets.
    """
    service = group.spec.service
    mine = [item for item in statefulsets if belongs(group, item)]
    live = live_workers(service, mine, pods, now=now, stuck=stuck_workers(mine, pods))
    gone = _without_statefulset(group, statefulsets, pods, now)
    chosen = _choose(
        group, live, taken=_taken(group, statefulsets, pods), records=records, held=_held(gone, live, pods)
    )
    names = {group.name_of(worker) for worker in chosen}
    empty = plan_release(group, [item for item in mine if name_of(item) in names], pods, now=now)
    wanted = [statefulset(group, worker, released=empty.at.get(group.name_of(worker))) for worker in chosen]
    own = [item for item in companions if (controller_of(item) or {}).get("uid") == group.uid]
    # The engines of a worker that drains still answer rounds: they reach each other until the last pod is gone.
    draining = {labels_of(pod).get(WORKER_LABEL, "") for pod in pods} - names
    kept = {key_of(item) for item in own if labels_of(item).get(WORKER_LABEL) in draining}
    wanted_companions = [item for worker in chosen for item in companion_objects(group, worker)]
    actions = (
        # First, so that no pod of a worker begins where the others cannot reach it, or its scheduler does not know it.
        *diff(wanted_companions, own, prunable=COMPANION_KINDS, keep=kept),
        *diff(wanted, mine, prunable=("StatefulSet",)),
    )
    restarted, restart_in = restarts([item for item in mine if name_of(item) in names], pods, now=now)
    staged = stage(actions, states=_role_states(group, chosen, statefulsets, pods), statefulsets=mine)
    leaving = (
        *gone,
        *(DepartingWorker(item.name, item.node, item.lost) for item in live if item.name not in names),
    )
    return GroupPlan(
        fleet=Fleet(chosen, tuple(item for item in live if item.lost is not None and not item.terminating)),
        actions=(*staged.actions, *(action for one in restarted for action in deletions(one))),
        waiting=staged.waiting,
        leaving=tuple(sorted(leaving, key=lambda item: item.name)),
        restarts=restarted,
        release_events=empty.status_events,
        again_s=min((wait for wait in (restart_in, empty.again_s) if wait is not None), default=None),
    )


def _choose(
    group: WorkerGroupView,
    live: Sequence[LiveWorker],
    *,
    taken: frozenset[int],
    records: Mapping[str, WorkerRecord],
    held: int,
) -> tuple[Worker, ...]:
    """Return the workers to have.

    ``taken`` are indices that are not free. ``held`` is how many places are kept empty until workers have gone that a
    person drains: their replacements take their GPUs.
    """
    usable = [item for item in live if not item.terminating and item.lost is None]
    if group.spec.replicas is None:
        return tuple(sorted(item.worker for item in usable))
    ordered = keep_order(usable, records)
    stay = [item for item in ordered if not item.drain_asked]
    kept = stay[: group.spec.replicas]
    going = len(usable) - len(stay)
    chosen = [item.worker for item in kept]
    index = 0
    for _ in range(group.spec.replicas - len(kept) - going - held):
        while index in taken:
            index += 1
        chosen.append(group.worker(index))
        taken |= {index}
    return tuple(sorted(chosen))


def _held(gone: Sequence[DepartingWorker], live: Sequence[LiveWorker], pods: Sequence[Manifest]) -> int:
    """Count the workers on their way out that a person drains: those without a StatefulSet, or with one that ends."""
    asked = {labels_of(pod).get(WORKER_LABEL, "") for pod in pods if annotations_of(pod).get(DRAIN_ANNOTATION)}
    ending = {item.name for item in live if item.terminating and item.lost is None}
    return len(asked & ({item.name for item in gone if item.lost is None} | ending))


def _taken(group: WorkerGroupView, statefulsets: Sequence[Manifest], pods: Sequence[Manifest]) -> frozenset[int]:
    """Return the indices of this role and degree that any group's worker has: a name does not tell the group."""
    names = {name_of(item) for item in statefulsets} | {labels_of(pod).get(WORKER_LABEL, "") for pod in pods}
    workers = (parse_name(group.spec.service, name, "") for name in names)
    return frozenset(
        worker.index
        for worker in workers
        if worker is not None and (worker.role, worker.degree) == (group.spec.role, group.spec.degree)
    )


def _without_statefulset(
    group: WorkerGroupView, statefulsets: Sequence[Manifest], pods: Sequence[Manifest], now: datetime
) -> list[DepartingWorker]:
    """Return the group's workers whose StatefulSet is gone and whose pods are not."""
    known = {name_of(item) for item in statefulsets}
    found: dict[str, DepartingWorker] = {}
    for pod in pods:
        labels = labels_of(pod)
        name = labels.get(WORKER_LABEL, "")
        if name and name not in known and all(labels.get(key) == value for key, value in group.labels.items()):
            node = str((pod.get("spec") or {}).get("nodeName") or "")
            before = found.get(name)
            lost = loss_of(pod, now=now) or (before.lost if before is not None else None)
            found[name] = DepartingWorker(name, node, lost)
    return list(found.values())


def _role_states(
    group: WorkerGroupView, chosen: Sequence[Worker], statefulsets: Sequence[Manifest], pods: Sequence[Manifest]
) -> tuple[WorkerState, ...]:
    """Return the states of all workers of the role: a worker restarts only while those of other groups serve, too."""
    service = group.spec.service
    workers = list(chosen)
    for item in statefulsets:
        worker = parse_name(service, name_of(item), labels_of(item).get(POOL_LABEL, ""))
        if worker is not None and not belongs(group, item) and not is_terminating(item):
            workers.append(worker)
    return worker_states(service, workers, statefulsets=statefulsets, pods=pods, changed=frozenset())
