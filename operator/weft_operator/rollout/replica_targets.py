"""The replicas of each group, and the groups to delete. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weft_core.plan import PlannedGroup
from weft_operator.api.objects import GroupKey, ServiceKey
from weft_operator.kube.diff import Action, Delete, Scale
from weft_operator.workers.group_views import DesiredGroup, GroupView
from weft_operator.workers.groups import group_name, group_object


@dataclass(frozen=True, slots=True)
class ReplicaTargets:
    """The replicas to write in one pass, in writing order, and the groups to delete."""

    replicas: Mapping[str, int]
    retire: frozenset[str] = frozenset()


def desired_groups(
    service: str, groups: Sequence[PlannedGroup], views: Sequence[GroupView], *, revision: str, scaled_by_hand: bool
) -> tuple[DesiredGroup, ...]:
    """Return the groups of a plan; with ``scaled_by_hand`` their replicas are those that people or autoscalers set.

    A group that replaces one of another revision starts with the replicas of that one.
    """
    together: dict[str, DesiredGroup] = {}
    for group in groups:
        name = group_name(service, group.role, group.degree, group.pool, revision)
        before = together[name].group.replicas if name in together else 0
        together[name] = DesiredGroup(name, replace(group, replicas=before + group.replicas))
    if not scaled_by_hand:
        return tuple(together.values())
    return tuple(replace(item, group=replace(item.group, replicas=_by_hand(item, views))) for item in together.values())


def _by_hand(item: DesiredGroup, views: Sequence[GroupView]) -> int:
    own = next((view for view in views if view.name == item.name), None)
    if own is not None and own.asked is not None:
        return own.asked
    before = [view.asked for view in views if view.place == item.place and view.asked]
    return sum(before) if before else item.group.replicas


def plan_targets(wanted: Sequence[DesiredGroup], views: Sequence[GroupView]) -> ReplicaTargets:
    """Return what to ask of every group at once: those of the plan first, then none of all others."""
    numbers = {item.name: item.group.replicas for item in wanted}
    others = {view.name: 0 for view in views if view.name not in numbers}
    return ReplicaTargets(
        replicas={**numbers, **others},
        retire=frozenset(view.name for view in views if view.name in others and view.empty),
    )


def zero_targets(wanted: Sequence[DesiredGroup], views: Sequence[GroupView]) -> ReplicaTargets:
    """Return targets of 0 replicas for all groups, prefill first; no group is deleted."""
    roles = {item.name: item.group.role for item in wanted} | {view.name: view.role for view in views}
    return ReplicaTargets(replicas=dict.fromkeys(sorted(roles, key=lambda name: (roles[name] == "decode", name)), 0))


def scale_actions(key: ServiceKey, targets: ReplicaTargets, views: Sequence[GroupView]) -> tuple[Action, ...]:
    """Return the actions that write changed replicas and delete groups that are not needed."""
    known = {view.name: view for view in views}
    actions: list[Action] = []
    for name, replicas in targets.replicas.items():
        view = known.get(name)
        if view is None or view.asked != replicas:
            place = group_object(GroupKey(key.namespace, name))
            before = "new" if view is None or view.asked is None else str(view.asked)
            uid = view.uid if view is not None else ""
            actions.append(Scale(place, replicas, uid=uid, reason=f"replicas {before} -> {replicas}"))
    for name in sorted(targets.retire):
        place = group_object(GroupKey(key.namespace, name))
        actions.append(Delete(place, uid=known[name].uid, reason="not in the plan, and empty"))
    return tuple(actions)
