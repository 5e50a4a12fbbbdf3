"""The replicas of each group, and the groups to delete. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weft_core.layouts import WORKER_ROLES
from weft_core.plan import PlannedGroup
from weft_operator.api.objects import GroupKey, ServiceKey
from weft_operator.kube.diff import Action, Delete, Scale
from weft_operator.workers.group_views import DesiredGroup, GroupView
from weft_operator.workers.groups import fixed_role, group_name, group_object
from weft_operator.workers.roles import group_of, is_role_key, role_key, role_keys, role_of_key


@dataclass(frozen=True, slots=True)
class ReplicaTargets:
    """The replicas to write in one pass by key, in writing order, and the keys of groups to delete."""

    replicas: Mapping[str, int]
    retire: frozenset[str] = frozenset()


def desired_groups(
    service: str,
    groups: Sequence[PlannedGroup],
    views: Sequence[GroupView],
    *,
    revision: str,
    scaled_by_hand: bool,
    fixed_roles: bool,
) -> tuple[DesiredGroup, ...]:
    """Return the groups of a plan; with ``scaled_by_hand`` their replicas are those that people or autoscalers set.

    A group that replaces one of another revision starts with the replicas of that one.
    """
    together: dict[str, DesiredGroup] = {}
    for group in groups:
        fixed = fixed_role(group.role, fixed_roles=fixed_roles)
        name = group_name(service, fixed, group.degree, group.pool, revision)
        if fixed is None:
            name = role_key(name, group.role)
        before = together[name].group.replicas if name in together else 0
        together[name] = DesiredGroup(name, replace(group, replicas=before + group.replicas))
    if not scaled_by_hand:
        return tuple(together.values())
    planned = {group_of(name) for name in together}
    for view in views:
        if view.asked and view.group in planned and view.name not in together:
            together[view.name] = DesiredGroup(view.name, PlannedGroup(view.role, view.degree, view.asked, view.pool))
    return tuple(replace(item, group=replace(item.group, replicas=_by_hand(item, views))) for item in together.values())


def _by_hand(item: DesiredGroup, views: Sequence[GroupView]) -> int:
    own = next((view for view in views if view.name == item.name), None)
    if own is not None and own.asked:
        return own.asked
    # Also where its own number is 0, because a rollout that was under way had not come to it.
    before = [view.asked for view in views if view.place == item.place and view.asked]
    return sum(before) if before or (own is not None and own.asked == 0) else item.group.replicas


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
    known: dict[str, list[GroupView]] = {}
    for view in views:
        known.setdefault(view.group, []).append(view)
    actions: list[Action] = []
    for name, keys in role_keys(targets.replicas).items():
        place, own = group_object(GroupKey(key.namespace, name)), known.get(name, [])
        before = {view.name: view.asked for view in own}
        after = {**{view: asked or 0 for view, asked in before.items()}, **{one: targets.replicas[one] for one in keys}}
        if all(before.get(one) == replicas for one, replicas in after.items()):
            continue
        roles = {role: after.get(role_key(name, role), 0) for role in WORKER_ROLES} if is_role_key(keys[0]) else None
        actions.append(
            Scale(
                place,
                sum(after.values()),
                uid=own[0].uid if own else "",
                reason=f"replicas {_words(before)} -> {_words(after)}",
                roles=roles,
            )
        )
    for name, keys in sorted(role_keys(targets.retire).items()):
        if {view.name for view in known[name]} == set(keys):
            place = group_object(GroupKey(key.namespace, name))
            actions.append(Delete(place, uid=known[name][0].uid, reason="not in the plan, and empty"))
    return tuple(actions)


def _words(replicas: Mapping[str, int | None]) -> str:
    """Return numbers of workers for a log, by role where that can change: 3, prefill 1 decode 2, new."""
    if not replicas or any(number is None for number in replicas.values()):
        return "new"
    if len(replicas) == 1 and not is_role_key(next(iter(replicas))):
        return str(next(iter(replicas.values())))
    return " ".join(f"{role_of_key(key)} {number}" for key, number in sorted(replicas.items()) if number) or "0"
