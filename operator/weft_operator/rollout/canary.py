"""A canary: which workers of a new plan start first, and for which share of new sessions.

The canary consists of the groups that the old plan does not have. As many of their workers are started as the share
needs, so that each has the load that it would have in the complete plan. Where the budget does not allow them, fewer
are started and the share is smaller. A canary of all sessions (kind Whole) is used where not even one pair of workers
fits beside the old plan within ``maxUnavailable``, or where only replica counts change: the plan is rolled out and
then analyzed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from weft_core.layouts import ROLES, Role, duties_of
from weft_core.parallelism import gpus_of
from weft_operator.rollout.groups import GroupIdentity, GroupState, GroupTarget, RolloutLimits, beyond
from weft_operator.rollout.ledger import CanaryRun, Ledger, target_hash
from weft_operator.workers.roles import is_role_key


@dataclass(frozen=True, slots=True)
class CanaryRequest:
    """The share of new sessions for a canary in percent, and the result of its analysis, once there is one."""

    percent: int
    passed: bool | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class CanaryShare:
    """The groups while a canary runs beside the old plan; ``percent`` of new sessions go to those of ``canary``."""

    goal: tuple[GroupTarget, ...]
    canary: tuple[GroupIdentity, ...]
    percent: int


def current_canary(
    ledger: Ledger,
    groups: Sequence[GroupState],
    target: Sequence[GroupTarget],
    request: CanaryRequest,
    limits: RolloutLimits,
    *,
    now: datetime,
) -> CanaryRun:
    """Return the canary of a target: the one in the ledger, updated, or a new one where that is of another plan."""
    name = target_hash(target)
    canary = ledger.canary
    if canary is None or canary.plan != name:
        canary = CanaryRun(name, "Whole" if share_of(ledger.base, target, limits, request.percent) is None else "Share")
    if canary.state != "Running":
        return canary
    if request.passed is not None:
        return replace(canary, state="Passed" if request.passed else "Failed", message=request.message)
    if canary.kind == "Share" and canary.since is None and _no_node(groups, target, ledger.base, limits, now=now):
        return replace(canary, kind="Whole")
    return canary


def _no_node(
    groups: Iterable[GroupState],
    target: Iterable[GroupTarget],
    base: Iterable[GroupTarget],
    limits: RolloutLimits,
    *,
    now: datetime,
) -> bool:
    """Return whether a worker of the canary is unschedulable beside the old workers, some of which must go first."""
    fresh = {group.key for group in fresh_groups(base, target)}
    return any(
        group.key in fresh
        and bool(group.unschedulable)
        and group.since is not None
        and (now - group.since).total_seconds() >= limits.make_room_s
        for group in groups
    )


def fresh_groups(base: Iterable[GroupTarget], target: Iterable[GroupTarget]) -> tuple[GroupTarget, ...]:
    """Return the groups of a plan that the old plan does not have."""
    had = {group.key for group in base if group.replicas}
    return tuple(group for group in target if group.replicas and group.key not in had)


def share_of(
    base: Sequence[GroupTarget], target: Sequence[GroupTarget], limits: RolloutLimits, percent: int
) -> CanaryShare | None:
    """Return the groups while a canary runs beside the old plan; None where both do not fit.

    The old plan keeps all its workers where the budget allows. Otherwise it loses as few as the canary needs, and no
    role is more than ``limits.max_unavailable`` workers below the lower of both plans.
    """
    fresh = fresh_groups(base, target)
    if not any(group.decodes for group in fresh) or _only_names_differ(base, fresh):
        return None
    new = {group.key: math.ceil(group.replicas * percent / 100) for group in fresh}
    old = {group.key: group.replicas for group in base}
    known: dict[str, GroupTarget] = {group.key: group for group in (*base, *fresh)}
    while too_much := beyond(goal := _goal(known, {**old, **new}), limits):

        def helps(key: str, too_much: float = too_much) -> bool:
            counts = {**old, **new}
            return beyond(_goal(known, {**counts, key: counts[key] - 1}), limits) < too_much

        larger = [known[key] for key, count in new.items() if count > 1 and helps(key)]
        if larger:
            new[max(larger, key=lambda group: (gpus_of(group.degree) * new[group.key], group.key)).key] -= 1
            continue
        may_go = {key: count for key, count in old.items() if count and helps(key)}
        victim = _victim(known, may_go, old, new, base, target, limits)
        if victim is None:
            return None
        old[victim.key] -= 1
    return CanaryShare(goal, fresh, max(1, min(percent, _carried(fresh, new, target))))


def _only_names_differ(base: Iterable[GroupTarget], fresh: Iterable[GroupTarget]) -> bool:
    """Return whether groups named by role are replaced by such whose roles can change: routers see no difference."""
    places = {(one.role, one.degree, one.pool, one.revision) for one in base if not is_role_key(one.key)}
    return any(is_role_key(one.key) and (one.role, one.degree, one.pool, one.revision) in places for one in fresh)


def _goal(known: Mapping[str, GroupTarget], counts: Mapping[str, int]) -> tuple[GroupTarget, ...]:
    return tuple(replace(known[key], replicas=count) for key, count in sorted(counts.items()))


def _carried(fresh: Iterable[GroupTarget], new: Mapping[str, int], target: Sequence[GroupTarget]) -> int:
    """Return the whole percent of the complete plan's GPUs that the canary's workers have: the least over its roles."""
    found = []
    for role in ROLES:
        mine = sum(gpus_of(group.degree) * new[group.key] for group in fresh if role in duties_of(group.role))
        if mine:
            every = (gpus_of(group.degree) * group.replicas for group in target if role in duties_of(group.role))
            found.append(100 * mine // sum(every))
    return min(found)


def _victim(
    known: Mapping[str, GroupTarget],
    may_go: Mapping[str, int],
    old: Mapping[str, int],
    new: Mapping[str, int],
    base: Sequence[GroupTarget],
    target: Sequence[GroupTarget],
    limits: RolloutLimits,
) -> GroupTarget | None:
    """Return the group of ``may_go`` to take a worker from: prefill first, then the smallest degree."""
    wanted = {group.key: group.replicas for group in target}
    least = _least(base, target, limits)
    found = []
    for key, count in may_go.items():
        group = known[key]
        if count <= wanted.get(key, 0):
            continue
        alike = [one for one in old if (known[one].role, known[one].revision) == (group.role, group.revision)]
        if sum(old[one] for one in alike) <= 1:
            continue  # sessions of the old plan need a pair, too
        counts = {**old, **new, key: count - 1}
        left = {
            role: sum(
                gpus_of(known[one].degree) * number
                for one, number in counts.items()
                if role in duties_of(known[one].role)
            )
            for role in duties_of(group.role)
        }
        if all(left[role] >= least[role] for role in left):
            found.append(group)
    return min(found, key=lambda group: (group.role != "prefill", gpus_of(group.degree), group.key), default=None)


def _least(base: Sequence[GroupTarget], target: Sequence[GroupTarget], limits: RolloutLimits) -> dict[Role, int]:
    least: dict[Role, int] = {}
    for role in ROLES:
        plans = [
            [group for group in plan if role in duties_of(group.role) and group.replicas] for plan in (base, target)
        ]
        lower = min(sum(gpus_of(group.degree) * group.replicas for group in plan) for plan in plans)
        largest = max((gpus_of(group.degree) for plan in plans for group in plan), default=0)
        least[role] = lower - limits.max_unavailable * largest
    return least
