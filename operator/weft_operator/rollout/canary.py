"""A canary: which workers of a new plan come first, for which share of new sessions, and how far it is.

Groups that the old plan has not are the canary. As many of its workers come up as the share needs, so that each of them
carries what it would carry in the whole plan; where the budget has no room for them, fewer come, and the share is
smaller; where not even a pair fits beside the old plan, within what may be unavailable, or only the number of workers
of a kind changes, all sessions are the trial: the plan is carried out and watched.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from weft_core.layouts import ROLES, Role
from weft_operator.rollout.groups import GroupIdentity, GroupState, GroupTarget, RolloutLimits, beyond
from weft_operator.rollout.ledger import CanaryTrial, Ledger, target_hash


@dataclass(frozen=True, slots=True)
class CanaryRequest:
    """The share of new sessions for a canary in percent, and the result of its analysis, once there is one."""

    percent: int
    passed: bool | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class CanaryShare:
    """The groups while a plan is on trial beside the old one; ``percent`` of new sessions go to those of ``canary``."""

    goal: tuple[GroupTarget, ...]
    canary: tuple[GroupIdentity, ...]
    percent: int


def trial_of(
    ledger: Ledger,
    groups: Sequence[GroupState],
    target: Sequence[GroupTarget],
    canary: CanaryRequest,
    limits: RolloutLimits,
    *,
    now: datetime,
) -> CanaryTrial:
    """Return the trial of a target as it stands now: a new one where the last one was of another plan."""
    name = target_hash(target)
    trial = ledger.trial
    if trial is None or trial.plan != name:
        trial = CanaryTrial(name, "Whole" if share_of(ledger.base, target, limits, canary.percent) is None else "Share")
    if trial.state != "Running":
        return trial
    if canary.passed is not None:
        return replace(trial, state="Passed" if canary.passed else "Failed", message=canary.message)
    if trial.kind == "Share" and trial.since is None and _no_node(groups, target, ledger.base, limits, now=now):
        return replace(trial, kind="Whole")
    return trial


def _no_node(
    groups: Iterable[GroupState],
    target: Iterable[GroupTarget],
    base: Iterable[GroupTarget],
    limits: RolloutLimits,
    *,
    now: datetime,
) -> bool:
    """Tell whether a worker of the canary finds no node beside the old ones: some of these have to go first."""
    fresh = {group.key for group in fresh_groups(base, target)}
    return any(
        group.key in fresh
        and bool(group.unschedulable)
        and group.since is not None
        and (now - group.since).total_seconds() >= limits.make_room_s
        for group in groups
    )


def fresh_groups(base: Iterable[GroupTarget], target: Iterable[GroupTarget]) -> tuple[GroupTarget, ...]:
    """Return the groups of a plan that the plan before has not."""
    had = {group.key for group in base if group.replicas}
    return tuple(group for group in target if group.replicas and group.key not in had)


def share_of(
    base: Sequence[GroupTarget], target: Sequence[GroupTarget], limits: RolloutLimits, percent: int
) -> CanaryShare | None:
    """Return what runs while a share of new sessions tries a plan; None where there is no such middle.

    The old plan keeps all its workers where there is room; else it gives up as few as the canary needs, and leaves
    no role more than ``limits.max_unavailable`` workers below the lower of both plans.
    """
    fresh = fresh_groups(base, target)
    if not any(group.role == "decode" for group in fresh):
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
            new[max(larger, key=lambda group: (group.degree * new[group.key], group.key)).key] -= 1
            continue
        may_go = {key: count for key, count in old.items() if count and helps(key)}
        victim = _victim(known, may_go, old, new, base, target, limits)
        if victim is None:
            return None
        old[victim.key] -= 1
    share = _carried(fresh, new, target)
    return CanaryShare(goal, fresh, max(1, min(percent, math.floor(100 * share))))


def _goal(known: Mapping[str, GroupTarget], counts: Mapping[str, int]) -> tuple[GroupTarget, ...]:
    return tuple(replace(known[key], replicas=count) for key, count in sorted(counts.items()))


def _carried(fresh: Iterable[GroupTarget], new: Mapping[str, int], target: Sequence[GroupTarget]) -> float:
    """Return the share of the whole plan's load that the canary's workers have the GPUs for, in each role it has."""
    found = []
    for role in ROLES:
        mine = sum(group.degree * new[group.key] for group in fresh if group.role == role)
        if mine:
            found.append(mine / sum(group.degree * group.replicas for group in target if group.role == role))
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
    """Return the group of the old plan to take a worker from, of those that ``may_go``: prefill, then the smallest."""
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
        left = sum(known[one].degree * number for one, number in counts.items() if known[one].role == group.role)
        if left >= least[group.role]:
            found.append(group)
    return min(found, key=lambda group: (group.role != "prefill", group.degree, group.key), default=None)


def _least(base: Sequence[GroupTarget], target: Sequence[GroupTarget], limits: RolloutLimits) -> dict[Role, int]:
    least: dict[Role, int] = {}
    for role in ROLES:
        plans = [[group for group in plan if group.role == role and group.replicas] for plan in (base, target)]
        lower = min(sum(group.degree * group.replicas for group in plan) for plan in plans)
        largest = max((group.degree for plan in plans for group in plan), default=0)
        least[role] = lower - limits.max_unavailable * largest
    return least
