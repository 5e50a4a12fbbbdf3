"""Let contestants carry rising load until few are left, and measure how much those carry: goodput at the SLO.

Goodput is the rate in sessions per second up to which the share that meets the SLO stays at its goal. Rates are
multiples of the workload's, and every contestant sees the same sessions at each of them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from weft_planner.contestants import Contestant
from weft_planner.trials import Trials

STEP = 1.25
"""Rates of the ladder rise by this factor; between two of its steps goodput is interpolated."""
RUNGS = 16
"""Steps down at most: a factor of 35."""
DESCENT = 3
DESCENTS = 4
"""Those that fail by far at the first rate are tried at rates lower by three steps (a half), four times at most."""
NEAR = 0.5
"""From this share of the goal on, attainment tells how near a contestant is; below, it failed by far."""
TOP_RUNG = 9
"""No rate above STEP to this power, 7.5 times the workload's, is tried: who carries that has room enough, and the
latency at the workload's own rate decides."""
CLOSE = 0.02
"""Goodputs that differ by less are taken as equal: beyond two points the seeds do not tell them apart."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """Multiples of the workload's rate: the highest known to hold the SLO (0: none), the lowest known not to."""

    holds: float
    fails: float


@dataclass(frozen=True, slots=True)
class Standing:
    """A finalist: its bracket from short runs and its attainment at the last rate it was tried at."""

    contestant: Contestant
    bracket: Bracket
    attained: float


def finalists(
    trials: Trials, contestants: Sequence[Contestant], *, rate: float, goal: float, start: float, count: int
) -> list[Standing]:
    """Return the ``count`` contestants that hold the SLO at the highest load, or come nearest to it.

    All run at ``start`` times the rate. While more than ``count`` hold the SLO, those go on at a higher rate. While too
    few hold it or come near, the others are tried at lower rates. The rest of the places goes by attainment.
    """
    places = {c.key: place for place, c in enumerate(contestants)}  # as the phases rank them
    begin = min(_rung(start), TOP_RUNG)
    standing = _climb(trials, contestants, rate=rate, goal=goal, rung=begin, count=count)
    for rung in range(begin - DESCENT, begin - DESCENT * DESCENTS - 1, -DESCENT):
        failed = [s.contestant for s in standing.values() if s.bracket.holds == 0]
        near = sum(s.bracket.holds > 0 or s.attained >= NEAR * goal for s in standing.values())
        if not failed or near >= min(count, len(contestants)):
            break
        for c, row in zip(failed, trials.attained(failed, rate * STEP**rung), strict=True):
            held = STEP**rung if row[0] >= goal else 0.0
            standing[c.key] = Standing(c, Bracket(held, STEP ** (rung + DESCENT if held else rung)), row[0])
    ranked = sorted(
        standing.values(),
        key=lambda s: (-_strength(s, goal), -s.bracket.fails, -round(s.attained, 2), places[s.contestant.key]),
    )
    return ranked[:count]


def _strength(standing: Standing, goal: float) -> float:
    """Return the multiple of the rate that is known to hold, or a step below the one that nearly did."""
    bracket = standing.bracket
    if bracket.holds > 0 or standing.attained < NEAR * goal:
        return bracket.holds
    return bracket.fails / STEP


def _climb(
    trials: Trials, contestants: Sequence[Contestant], *, rate: float, goal: float, rung: int, count: int
) -> dict[str, Standing]:
    """Try all at a rung, and while more than ``count`` hold the SLO those at the next one; return where each stands."""
    standing: dict[str, Standing] = {}
    left, below = list(contestants), 0.0
    while left:
        multiple = STEP**rung
        shares = [row[0] for row in trials.attained(left, rate * multiple)]
        for c, share in zip(left, shares, strict=True):
            bracket = Bracket(multiple, math.inf) if share >= goal else Bracket(below, multiple)
            standing[c.key] = Standing(c, bracket, share)
        left = [c for c, share in zip(left, shares, strict=True) if share >= goal]
        if len(left) <= count or rung >= TOP_RUNG:
            break
        rung, below = rung + 1, multiple
    return standing


def goodputs(trials: Trials, contestant: Contestant, bracket: Bracket, *, rate: float, goal: float) -> list[float]:
    """Return each seed's goodput in sessions per second, from full runs at two neighbouring rates.

    The bracket of short runs tells where to begin; attainment is taken as linear between the two rates.
    """
    known: dict[int, list[float]] = {}

    def shares(rung: int) -> list[float]:
        if rung not in known:
            known[rung] = trials.attained([contestant], rate * STEP**rung, full=True)[0]
        return known[rung]

    def holds(rung: int) -> bool:
        return fmean(shares(rung)) >= goal

    start = _rung(bracket.holds if bracket.holds > 0 else bracket.fails / STEP)
    low = _neighbour(holds, min(start, TOP_RUNG))
    if low is None:
        return [0.0] * len(shares(next(iter(known))))
    if low >= TOP_RUNG:
        return [rate * STEP**TOP_RUNG] * len(shares(TOP_RUNG))
    lower, upper = rate * STEP**low, rate * STEP ** (low + 1)
    return [
        _crossing(lower, upper, below, above, goal) for below, above in zip(shares(low), shares(low + 1), strict=True)
    ]


def _neighbour(holds: Callable[[int], bool], start: int) -> int | None:
    """Return the highest rung that holds before one that does not, up to TOP_RUNG; None when none within reach does.

    Steps away from ``start`` double, then the last one is halved: a wrong start costs little.
    """
    step = 1
    if holds(start):
        low, high = start, start + 1
        while low < TOP_RUNG and holds(high):
            step *= 2
            low, high = high, min(high + step, TOP_RUNG + 1)
        if low >= TOP_RUNG:
            return TOP_RUNG
    else:
        low, high = start - 1, start
        while not holds(low):
            if low <= start - RUNGS:
                return None
            step *= 2
            low, high = low - step, low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _rung(multiple: float) -> int:
    return round(math.log(multiple) / math.log(STEP))


def _crossing(lower: float, upper: float, below: float, above: float, goal: float) -> float:
    """Return the rate at which one seed's attainment falls to the goal, within the rates' neighbourhood."""
    if below <= above:
        return lower if below < goal else upper
    at = lower + (upper - lower) * (below - goal) / (below - above)
    return min(max(at, lower / STEP), upper * STEP)
