"""The moves of one pass, in order: drop what does not serve, surge, drain what is replaced, make room.

Each changes the draft and returns what it did, in words.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from weft_core.layouts import ROLES, Role
from weft_operator.rollout.draft import AvailabilityBounds, Draft, WorkersByRole
from weft_operator.rollout.groups import GroupState

_FIRST_OUT: Mapping[Role, int] = {"prefill": 0, "decode": 1}
"""Prefill workers leave before the decode workers that they pair with."""


def drop_idle(draft: Draft) -> list[str]:
    """Take back surplus workers that are not ready: nothing is lost by it."""
    said = []
    for group in _leaving_order(draft.groups.values()):
        dropped = 0
        while draft.surplus(group) and draft.asked[group.key] > group.ready and draft.may_lower(group, draft.usable()):
            draft.asked[group.key] -= 1
            dropped += 1
        if dropped:
            said.append(f"takes back {group.workers(dropped)}, not ready and not wanted")
    return said


def surge(draft: Draft) -> list[str]:
    """Ask for the goal's workers as far as GPUs are free now; the role that is further behind comes first."""
    before = dict(draft.asked)
    while (group := _next_to_ask(draft)) is not None:
        draft.asked[group.key] += 1
    return [
        f"asks for {group.workers(draft.asked[key] - before[key])}"
        for key, group in draft.groups.items()
        if draft.asked[key] > before[key]
    ]


def unproved(draft: Draft, base: Mapping[str, int]) -> list[GroupState]:
    """Return the groups of which the goal wants more than the old plan had, and none has shown that it starts."""
    return [
        group
        for group in draft.groups.values()
        if draft.want.get(group.key, 0) > base.get(group.key, 0) and draft.asked[group.key] and not group.ready
    ]


def drain_replaced(draft: Draft, bound: WorkersByRole) -> list[str]:
    """Drain surplus workers as far as what is ready stays at the bound."""
    before = dict(draft.asked)
    drained = True
    while drained:
        drained = False
        for group in _leaving_order(draft.groups.values()):
            if draft.surplus(group) and draft.may_lower(group, bound):
                draft.asked[group.key] -= 1
                drained = True
    return [
        f"drains {group.workers(before[key] - draft.asked[key])}: what stays ready is enough"
        for key, group in draft.groups.items()
        if draft.asked[key] < before[key]
    ]


def make_room(
    draft: Draft, bounds: AvailabilityBounds, base: Mapping[str, int], *, now: datetime, outage: bool = False
) -> list[str]:
    """Drain first what must go for the next workers to find GPUs: as little as does, and nothing below the bound.

    ``outage``: where the bound lets it, the last decode worker of all goes too, and prefill workers idle meanwhile.
    """
    said = []
    for group in draft.groups.values():
        if _wants_room(draft, group, now):
            # How much is free on which node is not known here: what may go goes, until one such worker could fit.
            said += _drain_for(draft, group, bounds.hard, draft.leaving, partly=True)
    waiting = {group.key for group in unproved(draft, base)}
    for group in _coming_order(draft):
        if group.key in waiting:
            continue  # one that did not start yet is no reason to drain more for the same
        while draft.missing(group) > draft.reserved.get(group.key, 0):
            if group.role == "prefill" and not draft.has_decode(group.revision):
                break
            drained = _drain_for(draft, group, bounds.hard, draft.room_later, outage=outage)
            if draft.room_later(group.pool) < group.degree:
                break
            said += drained
            draft.reserved[group.key] = draft.reserved.get(group.key, 0) + 1
    return said


def drain_useless(draft: Draft) -> list[str]:
    """Drain surplus prefill workers that have no decode worker to pair with: nothing is lost by it."""
    said = []
    for group in _leaving_order(draft.groups.values()):
        if draft.surplus(group) and draft.may_lower(group, draft.usable(), useless=True):
            draft.asked[group.key] -= 1
            said.append(f"drains {group.workers(1)}, which has no worker to pair with")
    return said


def drain_anyway(draft: Draft) -> list[str]:
    """Drain the smallest surplus worker, whatever the bound is: the last way out where there is no way back."""
    nothing = dict.fromkeys(ROLES, 0)
    found = [group for group in draft.groups.values() if draft.surplus(group) and draft.may_lower(group, nothing)]
    if not found:
        return []
    group = min(found, key=lambda one: (one.degree, one.key))
    draft.asked[group.key] -= 1
    return [f"drains {group.workers(1)} beyond spec.rollout.maxUnavailable, for there is no other way on"]


def _next_to_ask(draft: Draft) -> GroupState | None:
    for group in _coming_order(draft):
        paired = group.role == "decode" or draft.has_decode(group.revision)
        if paired and draft.room(group.pool) >= group.degree:
            return group
    return None


def _coming_order(draft: Draft) -> list[GroupState]:
    """Return the groups that lack workers: decode first for a revision without any, then the role further behind."""

    def share(role: Role) -> float:
        mine = [group for group in draft.groups.values() if group.role == role and group.key in draft.want]
        wanted = sum(draft.want[group.key] for group in mine)
        asked = sum(min(draft.asked[group.key], draft.want[group.key]) for group in mine)
        return asked / wanted if wanted else 1.0

    shares: dict[Role, float] = {"prefill": share("prefill"), "decode": share("decode")}
    return sorted(
        (group for group in draft.groups.values() if draft.missing(group)),
        key=lambda group: (
            group.role == "prefill" or draft.has_decode(group.revision),
            shares[group.role],
            group.role == "prefill",
            -group.degree,
            group.key,
        ),
    )


def _leaving_order(groups: Iterable[GroupState]) -> list[GroupState]:
    return sorted(groups, key=lambda group: (_FIRST_OUT[group.role], -group.degree, group.key))


def _wants_room(draft: Draft, group: GroupState, now: datetime) -> bool:
    """Tell whether a wanted worker finds no node although the budget has room for it."""
    late = group.since is not None and (now - group.since).total_seconds() >= draft.limits.make_room_s
    return bool(group.unschedulable and late and draft.asked[group.key] <= draft.want.get(group.key, 0))


def _drain_for(
    draft: Draft,
    taker: GroupState,
    bound: WorkersByRole,
    room: Callable[[str], float],
    *,
    partly: bool = False,
    outage: bool = False,
) -> list[str]:
    """Drain surplus workers until ``room`` of the taker's pool is enough for one; unless ``partly``, all or none."""
    chosen: list[GroupState] = []
    while room(taker.pool) < taker.degree:
        victim = _victim(draft, taker, bound, room, outage=outage)
        if victim is None and partly:
            break
        if victim is None:
            for group in chosen:
                draft.asked[group.key] += 1
            return []
        draft.asked[victim.key] -= 1
        chosen.append(victim)
    return [f"drains {group.workers(1)} first, to make room for {taker.workers(1)}" for group in chosen]


def _victim(
    draft: Draft, taker: GroupState, bound: WorkersByRole, room: Callable[[str], float], *, outage: bool
) -> GroupState | None:
    """Return the group to take a worker from: of the same role if possible, the smallest that is enough."""
    had = room(taker.pool)
    found: list[tuple[bool, GroupState]] = []
    for group in draft.groups.values():
        if not draft.surplus(group) or not draft.may_lower(group, bound, useless=True, outage=outage):
            continue
        draft.asked[group.key] -= 1
        then = room(taker.pool)
        draft.asked[group.key] += 1
        if then > had:
            found.append((then >= taker.degree, group))

    def place(one: tuple[bool, GroupState]) -> tuple[bool, bool, int, str]:
        enough, group = one
        return group.role != taker.role, not enough, group.degree if enough else -group.degree, group.key

    return min(found, key=place)[1] if found else None
