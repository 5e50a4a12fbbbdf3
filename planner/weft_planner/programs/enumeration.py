"""Find layouts without SCIP when it fails.

Form A has only as many layouts as candidates squared, so its stand-in tries all, at any size. Form B has one for every
count of every kind: its stand-in adds workers one by one, and is not exact.
"""

from collections.abc import Iterator, Sequence
from itertools import islice, product

from weft_core.layouts import in_order
from weft_core.plan import ROLES, Objective, PlannedGroup, Role
from weft_planner.programs.group_options import GroupOption, LayoutPair, PlanLimits, keeps_limits, objective_value
from weft_planner.programs.mixed import MixedLayout, WorkerOption
from weft_planner.programs.pairs import LayoutPairs


def best_layouts(
    prefill: Sequence[GroupOption],
    decode: Sequence[GroupOption],
    *,
    limits: PlanLimits,
    objective: Objective,
    count: int,
) -> list[LayoutPair]:
    """Return up to ``count`` feasible layouts by rising score; for ``cost`` only those within the SLO."""
    return list(islice(LayoutPairs(prefill, decode).best(limits=limits, objective=objective), count))


def assign_load(kinds: Sequence[WorkerOption], counts: Sequence[int], *, rate: float) -> MixedLayout | None:
    """Return the layout of these counts with loads spread so that each role's worst share is least, None if too few."""
    if any(_lacking(kinds, counts, role, rate) > rate * 1e-9 for role in ROLES):
        return None
    shares = []
    for role in ROLES:
        mine = [(k, n) for k, n in zip(kinds, counts, strict=True) if k.role == role and n]
        levels = sorted({level.share for k, _ in mine for level in k.levels})
        # A worker that would carry nothing within the share still has to take its least level.
        enough = (
            share
            for share in levels
            if sum(n * _carried(k, share) for k, n in mine) >= rate * (1 - 1e-9)
            and all(any(level.share <= share for level in k.levels) for k, _ in mine)
        )
        least = next(enough, None)
        if least is None:
            return None
        shares.append(least)
    groups = (PlannedGroup(k.role, k.degree, n, k.pool) for k, n in zip(kinds, counts, strict=True) if n)
    return MixedLayout(in_order(groups), shares[0], shares[1])


def _lacking(kinds: Sequence[WorkerOption], counts: Sequence[int], role: Role, rate: float) -> float:
    """Return the load that the workers of a role cannot carry even at their highest levels."""
    carried = sum(n * k.levels[-1].load for k, n in zip(kinds, counts, strict=True) if n and k.role == role)
    return max(0.0, rate - carried)


def _carried(kind: WorkerOption, share: float) -> float:
    return max((level.load for level in kind.levels if level.share <= share), default=0.0)


def greedy_mixed(
    kinds: Sequence[WorkerOption], *, rate: float, limits: PlanLimits, objective: Objective, tries: int = 200
) -> Iterator[MixedLayout]:
    """Yield layouts of form B by a rule of thumb, each better than the one before: not exact, always quick.

    From one worker of each single kind per role, the worker is added that lowers the score the most, within limits.
    """
    best: float | None = None
    for pair in product(*([i for i, k in enumerate(kinds) if k.role == role] for role in ROLES)):
        counts = [0] * len(kinds)
        for role, at in zip(ROLES, pair, strict=True):
            counts[at] = max(1, limits.workers[role][0])
        for _ in range(tries):
            options = []
            for at in range(len(kinds)):
                more = [n + (i == at) for i, n in enumerate(counts)]
                value = _value(kinds, more, rate=rate, limits=limits, objective=objective)
                if value is not None:
                    options.append((value[0], at, value[1]))
            if not options:
                break
            value_now, at, mixed = min(options, key=lambda item: item[:2])
            counts[at] += 1
            if mixed is not None and (best is None or value_now < best):
                best = value_now
                yield mixed


def _value(
    kinds: Sequence[WorkerOption], counts: Sequence[int], *, rate: float, limits: PlanLimits, objective: Objective
) -> tuple[float, MixedLayout | None] | None:
    """Return (score, layout), a large score without layout while too few workers, None when a limit is broken."""
    groups = tuple(PlannedGroup(k.role, k.degree, n, k.pool) for k, n in zip(kinds, counts, strict=True) if n)
    kv = sum(k.kv_tokens * n for k, n in zip(kinds, counts, strict=True) if k.role == "decode")
    mixed = assign_load(kinds, counts, rate=rate)
    if mixed is None or (objective == "cost" and max(mixed.shares) > 1):
        lacking = sum(_lacking(kinds, counts, role, rate) for role in ROLES)
        fits = sum(group.gpus for group in groups) <= limits.gpus
        return (1e6 + lacking / rate, None) if fits else None
    if not keeps_limits(mixed.groups, limits, kv_tokens=kv):
        return None
    return objective_value(mixed.groups, mixed.shares, limits=limits, objective=objective), mixed
