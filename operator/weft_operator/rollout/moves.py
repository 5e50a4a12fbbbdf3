"""The moves of one rollout step: switch roles, drop unready surplus workers, surge, drain replaced workers, free GPUs.

Each changes the draft and returns messages about its changes.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from weft_core.layouts import ROLES, WORKER_ROLES, WorkerRole
from weft_core.parallelism import gpus_of
from weft_operator.rollout.draft import AvailabilityBounds, Draft, WorkersByRole
from weft_operator.rollout.groups import GroupState

_DRAIN_RANK: Mapping[WorkerRole, int] = {"prefill": 0, "decode": 1, "both": 2}
"""Prefill workers are drained before the decode workers that they pair with."""


def switch_roles(draft: Draft, bound: WorkersByRole, *, outage: bool = False) -> list[str]:
    """Change the role of surplus workers to one that lacks workers, as far as the bound on ready GPUs allows.

    That costs seconds, while a new worker costs the start of an engine. With ``outage`` the last decode worker may
    change its role, too.
    """
    messages = []
    for taker in _surge_order(draft):
        if not taker.decodes and not draft.has_decode(taker.revision):
            continue
        switched: dict[str, int] = {}
        while draft.missing(taker):
            found = [one for one in draft.groups.values() if draft.may_switch(one, taker, bound, outage=outage)]
            if not found:
                break
            victim = min(found, key=lambda one: (draft.asked[one.key] <= one.ready, _DRAIN_RANK[one.role], one.key))
            draft.asked[victim.key] -= 1
            draft.asked[taker.key] += 1
            switched[victim.key] = switched.get(victim.key, 0) + 1
        messages += [
            f"changes the role of {draft.groups[key].workers(count)} to {taker.role}" for key, count in switched.items()
        ]
    return messages


def drop_idle(draft: Draft) -> list[str]:
    """Remove surplus workers that are not ready; they serve nothing."""
    messages = []
    for group in _drain_order(draft.groups.values()):
        dropped = 0
        while draft.surplus(group) and draft.asked[group.key] > group.ready and draft.may_lower(group, draft.usable()):
            draft.asked[group.key] -= 1
            dropped += 1
        if dropped:
            messages.append(f"removes {group.workers(dropped)}, which are surplus and not ready")
    return messages


def surge(draft: Draft) -> list[str]:
    """Add workers of the goal as far as GPUs are free now; the role that is further behind comes first."""
    before = dict(draft.asked)
    while (group := _next_to_add(draft)) is not None:
        draft.asked[group.key] += 1
    return [
        f"adds {group.workers(draft.asked[key] - before[key])}"
        for key, group in draft.groups.items()
        if draft.asked[key] > before[key]
    ]


def unproven_groups(draft: Draft, base: Mapping[str, int]) -> list[GroupState]:
    """Return the groups with more workers than in the old plan of which none is ready yet."""
    return [
        group
        for group in draft.groups.values()
        if draft.want.get(group.key, 0) > base.get(group.key, 0) and draft.asked[group.key] and not group.ready
    ]


def drain_replaced(draft: Draft, bound: WorkersByRole) -> list[str]:
    """Drain surplus workers as far as the bound on ready GPUs allows."""
    before = dict(draft.asked)
    drained = True
    while drained:
        drained = False
        for group in _drain_order(draft.groups.values()):
            if draft.surplus(group) and draft.may_lower(group, bound):
                draft.asked[group.key] -= 1
                drained = True
    return [
        f"drains {group.workers(before[key] - draft.asked[key])}: enough others are ready"
        for key, group in draft.groups.items()
        if draft.asked[key] < before[key]
    ]


def make_room(
    draft: Draft, bounds: AvailabilityBounds, base: Mapping[str, int], *, now: datetime, outage: bool = False
) -> list[str]:
    """Drain as few surplus workers as the next workers of the goal need for their GPUs, within the bound.

    With ``outage`` the last decode worker may go where the bound allows it; prefill workers then idle.
    """
    messages = []
    for group in draft.groups.values():
        if _is_blocked_by_nodes(draft, group, now):
            # Free GPUs of single nodes are not known here: drain until one such worker could fit on any.
            messages += _drain_for(draft, group, bounds.hard, draft.draining_gpus, partly=True)
    waiting = {group.key for group in unproven_groups(draft, base)}
    for group in _surge_order(draft):
        if group.key in waiting or (draft.switchable(group) and not outage):
            continue  # drain no more for a group whose first worker did not start yet, or that waits for a switch
        while draft.missing(group) > draft.reserved.get(group.key, 0):
            if not group.decodes and not draft.has_decode(group.revision):
                break
            drained = _drain_for(draft, group, bounds.hard, draft.free_after_drain, outage=outage)
            if draft.free_after_drain(group.pool) < gpus_of(group.degree):
                break
            messages += drained
            draft.reserved[group.key] = draft.reserved.get(group.key, 0) + 1
    return messages


def drain_unpaired(draft: Draft) -> list[str]:
    """Drain surplus prefill workers without a decode worker to pair with; they serve nothing."""
    messages = []
    for group in _drain_order(draft.groups.values()):
        if draft.surplus(group) and draft.may_lower(group, draft.usable(), unpaired=True):
            draft.asked[group.key] -= 1
            messages.append(f"drains {group.workers(1)}, which has no worker to pair with")
    return messages


def drain_beyond_bounds(draft: Draft) -> list[str]:
    """Drain the smallest surplus worker whatever the bound is, for a rollout that can neither go on nor back.

    A worker that can change its role to one that lacks workers does that instead.
    """
    nothing = dict.fromkeys(ROLES, 0)
    switched = switch_roles(draft, nothing, outage=True)
    if switched:
        return [f"{words}, beyond spec.rollout.maxUnavailable" for words in switched]
    found = [group for group in draft.groups.values() if draft.surplus(group) and draft.may_lower(group, nothing)]
    if not found:
        return []
    group = min(found, key=lambda one: (one.degree, one.key))
    draft.asked[group.key] -= 1
    return [f"drains {group.workers(1)} beyond spec.rollout.maxUnavailable, because nothing else is possible"]


def _next_to_add(draft: Draft) -> GroupState | None:
    for group in _surge_order(draft):
        paired = group.decodes or draft.has_decode(group.revision)
        if (
            paired
            and draft.missing(group) > draft.switchable(group)
            and draft.free_now(group.pool) >= gpus_of(group.degree)
        ):
            return group
    return None


def _surge_order(draft: Draft) -> list[GroupState]:
    """Return the groups that lack workers: decode of a revision without any first, then the role further behind."""

    def share(role: WorkerRole) -> float:
        mine = [group for group in draft.groups.values() if group.role == role and group.key in draft.want]
        wanted = sum(draft.want[group.key] for group in mine)
        asked = sum(min(draft.asked[group.key], draft.want[group.key]) for group in mine)
        return asked / wanted if wanted else 1.0

    shares = {role: share(role) for role in WORKER_ROLES}
    return sorted(
        (group for group in draft.groups.values() if draft.missing(group)),
        key=lambda group: (
            not group.decodes or draft.has_decode(group.revision),
            shares[group.role],
            not group.decodes,
            -gpus_of(group.degree),
            group.key,
        ),
    )


def _drain_order(groups: Iterable[GroupState]) -> list[GroupState]:
    return sorted(groups, key=lambda group: (_DRAIN_RANK[group.role], -gpus_of(group.degree), group.key))


def _is_blocked_by_nodes(draft: Draft, group: GroupState, now: datetime) -> bool:
    """Return whether a planned worker is unschedulable although it is within the budget."""
    late = group.since is not None and (now - group.since).total_seconds() >= draft.limits.make_room_s
    return bool(group.unschedulable and late and draft.asked[group.key] <= draft.want.get(group.key, 0))


def _drain_for(
    draft: Draft,
    taker: GroupState,
    bound: WorkersByRole,
    free: Callable[[str], float],
    *,
    partly: bool = False,
    outage: bool = False,
) -> list[str]:
    """Drain surplus workers until the taker's pool has GPUs for one of its workers; all or none unless ``partly``."""
    chosen: list[GroupState] = []
    while free(taker.pool) < gpus_of(taker.degree):
        victim = _victim(draft, taker, bound, free, outage=outage)
        if victim is None and partly:
            break
        if victim is None:
            for group in chosen:
                draft.asked[group.key] += 1
            return []
        draft.asked[victim.key] -= 1
        chosen.append(victim)
    return [f"drains {group.workers(1)} first, to free GPUs for {taker.workers(1)}" for group in chosen]


def _victim(
    draft: Draft, taker: GroupState, bound: WorkersByRole, free: Callable[[str], float], *, outage: bool
) -> GroupState | None:
    """Return the group to drain a worker of: the same role if possible, the smallest sufficient degree."""
    had = free(taker.pool)
    found: list[tuple[bool, GroupState]] = []
    for group in draft.groups.values():
        if not draft.surplus(group) or not draft.may_lower(group, bound, unpaired=True, outage=outage):
            continue
        draft.asked[group.key] -= 1
        then = free(taker.pool)
        draft.asked[group.key] += 1
        if then > had:
            found.append((then >= gpus_of(taker.degree), group))

    def place(one: tuple[bool, GroupState]) -> tuple[bool, bool, int, str]:
        enough, group = one
        return (
            group.role != taker.role,
            not enough,
            gpus_of(group.degree) if enough else -gpus_of(group.degree),
            group.key,
        )

    return min(found, key=place)[1] if found else None
