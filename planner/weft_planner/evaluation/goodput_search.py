"""Let candidates carry rising load until few are left, and measure how much those carry: goodput at the SLO.

Goodput is the rate in sessions per second up to which the share that meets the SLO stays at its goal. Rates are
multiples of the workload's, and every candidate sees the same sessions at each of them. Many are sorted by very short
runs, the better half of them by runs of one seed, and the finalists measured by runs of every seed.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from weft_planner.evaluation.candidates import Candidate
from weft_planner.evaluation.trials import SEEDS, Trials

STEP = 1.25
"""Rates of the ladder rise by this factor."""
FINE = 4
"""Goodput is looked for at rates this many times as close, 6 % apart, and interpolated between two of them: between two
steps of the ladder attainment may fall from all to nothing, by a curve that differs from layout to layout."""
RUNGS = 16
"""Steps down at most: a factor of 35."""
DESCENT = 3
DESCENTS = 4
"""Those that fail by far at the first rate are tried at rates lower by three steps (a half), four times at most."""
NEAR = 0.5
"""From this share of the goal on, attainment tells how near a candidate is; below, it failed by far."""
TOP_RUNG = 9
"""No rate above STEP to this power, 7.5 times the workload's, is tried: who carries that has room enough, and the
latency at the workload's own rate decides."""
CLOSE = 0.02
"""Goodputs that differ by less are taken as equal: beyond two points the seeds do not tell them apart."""
LEAST_FALL = 0.1
"""By so much attainment falls over a step of the ladder at least, where goodput's interval is given."""
SIEVED = 2
"""So many times the finalists are left over by very short runs."""


@dataclass(frozen=True, slots=True)
class GoodputBracket:
    """Multiples of the workload's rate: the highest known to hold the SLO (0: none), the lowest known not to."""

    holds: float
    fails: float

    @property
    def rung(self) -> int:
        """Return the step of the ladder at which to look first: the highest known to hold, or below what fails."""
        known = self.holds if self.holds > 0 else self.fails / STEP
        return math.floor(math.log(known) / math.log(STEP) + 1e-9)


@dataclass(frozen=True, slots=True)
class Finalist:
    """A finalist: its bracket from short runs and its attainment at the last rate it was tried at."""

    candidate: Candidate
    bracket: GoodputBracket
    attained: float


def finalists(
    trials: Trials, candidates: Sequence[Candidate], *, rate: float, goal: float, start: float, count: int
) -> list[Finalist]:
    """Return the ``count`` candidates that hold the SLO at the highest load, or come nearest to it.

    All run at ``start`` times the rate. While more than ``count`` hold the SLO, those go to a higher rate. While too
    few hold it or come near, the others are tried at lower rates. Those that are tied for the last places are told
    apart between two steps of the ladder, and then by attainment.
    """
    left, rung = list(candidates), min(_rung(start), TOP_RUNG)
    if not left or count <= 0:
        return []
    if len(left) > SIEVED * count:
        sieved = _sort(trials, left, rate=rate, goal=goal, rung=rung, count=SIEVED * count, sieve=True)
        kept = {standing.candidate.key for standing in sieved}
        left = [c for c in left if c.key in kept]  # as the phases rank them
        rung = min(sieved[count - 1].bracket.rung, TOP_RUNG)
    return _sort(trials, left, rate=rate, goal=goal, rung=rung, count=count, sieve=False)


def _sort(
    trials: Trials,
    candidates: Sequence[Candidate],
    *,
    rate: float,
    goal: float,
    rung: int,
    count: int,
    sieve: bool,
) -> list[Finalist]:
    places = {c.key: place for place, c in enumerate(candidates)}
    standing = _climb(trials, candidates, rate=rate, goal=goal, rung=rung, count=count, sieve=sieve)
    for lower in range(rung - DESCENT, rung - DESCENT * DESCENTS - 1, -DESCENT):
        failed = [s.candidate for s in standing.values() if s.bracket.holds == 0]
        near = sum(s.bracket.holds > 0 or s.attained >= NEAR * goal for s in standing.values())
        if not failed or near >= min(count, len(candidates)):
            break
        for c, row in zip(failed, trials.attained(failed, rate * STEP**lower, sieve=sieve), strict=True):
            held = STEP**lower if row[0] >= goal else 0.0
            standing[c.key] = Finalist(c, GoodputBracket(held, STEP ** (lower + DESCENT if held else lower)), row[0])
    for stride in (FINE // 2, FINE // 4):
        ranked = _ranked(standing.values(), goal, places)
        tied = [s for s in ranked if s.bracket == ranked[min(count, len(ranked)) - 1].bracket]
        if tied[-1] in ranked[:count] or tied[0].bracket.holds == 0 or tied[0].bracket.fails == math.inf:
            break
        held = tied[0].bracket.holds
        between = _multiple(_rung(held**FINE) + stride)
        shares = trials.attained([s.candidate for s in tied], rate * between, sieve=sieve)
        for s, row in zip(tied, shares, strict=True):
            bracket = GoodputBracket(between, s.bracket.fails) if row[0] >= goal else GoodputBracket(held, between)
            standing[s.candidate.key] = Finalist(s.candidate, bracket, s.attained if row[0] >= goal else row[0])
    return _ranked(standing.values(), goal, places)[:count]


def _ranked(standing: Iterable[Finalist], goal: float, places: Mapping[str, int]) -> list[Finalist]:
    """Return who holds most first, then who came nearest, then in the order of ``places``."""
    return sorted(
        standing,
        key=lambda s: (-_strength(s, goal), -s.bracket.fails, -round(s.attained, 2), places[s.candidate.key]),
    )


def _strength(standing: Finalist, goal: float) -> float:
    """Return the multiple of the rate that is known to hold, or a step below the one that nearly did."""
    bracket = standing.bracket
    if bracket.holds > 0 or standing.attained < NEAR * goal:
        return bracket.holds
    return bracket.fails / STEP


def _climb(
    trials: Trials,
    candidates: Sequence[Candidate],
    *,
    rate: float,
    goal: float,
    rung: int,
    count: int,
    sieve: bool,
) -> dict[str, Finalist]:
    """Try all at a rung, and while more than ``count`` hold the SLO those at the next one; return where each stands."""
    standing: dict[str, Finalist] = {}
    left, below = list(candidates), 0.0
    while left:
        multiple = STEP**rung
        shares = [row[0] for row in trials.attained(left, rate * multiple, sieve=sieve)]
        for c, share in zip(left, shares, strict=True):
            bracket = GoodputBracket(multiple, math.inf) if share >= goal else GoodputBracket(below, multiple)
            standing[c.key] = Finalist(c, bracket, share)
        left = [c for c, share in zip(left, shares, strict=True) if share >= goal]
        if len(left) <= count or rung >= TOP_RUNG:
            break
        rung, below = rung + 1, multiple
    return standing


def goodputs(trials: Trials, candidate: Candidate, bracket: GoodputBracket, *, rate: float, goal: float) -> list[float]:
    """Return each seed's goodput in sessions per second; their mean is where the mean of all seeds falls to the goal.

    Runs of one seed tell where to begin: from their bracket on they close in on two rates that are FINE steps apart.
    All seeds then run at these two, and at others when they disagree; attainment is taken as linear between the two. A
    single seed's goodput differs from the mean by what its attainment does, along the steeper of the slopes between the
    two and over a whole step.
    """

    def one(at: int) -> float:
        return trials.attained([candidate], rate * _multiple(at))[0][0]

    def every(at: int) -> list[float]:
        return trials.attained([candidate], rate * _multiple(at), full=True)[0]

    guess = _neighbour(lambda at: one(at) >= goal, min(bracket.rung, TOP_RUNG) * FINE, step=FINE)
    low = None if guess is None else _neighbour(lambda at: fmean(every(at)) >= goal, guess, step=1)
    if low is None:
        return [0.0] * SEEDS
    if low >= TOP_RUNG * FINE:
        return [rate * STEP**TOP_RUNG] * len(every(low))
    lower, upper = rate * _multiple(low), rate * _multiple(low + 1)
    below, above = every(low), every(low + 1)
    mean = fmean(below)
    crossing = lower + (upper - lower) * (mean - goal) / (mean - fmean(above))
    rung = low // FINE * FINE
    fall = max(one(rung) - one(rung + FINE), LEAST_FALL) / (rate * (_multiple(rung + FINE) - _multiple(rung)))
    fall = max(fall, (mean - fmean(above)) / (upper - lower))
    return [max(0.0, crossing + (share - mean) / fall) for share in below]


def _neighbour(holds: Callable[[int], bool], start: int, *, step: int) -> int | None:
    """Return the highest rate of the fine ladder that holds before one that does not; None when none in reach does.

    Steps away from ``start`` double from the third on, then the last one is halved: a wrong start costs little. The
    ladder ends at TOP_RUNG, and RUNGS below the start.
    """
    top = TOP_RUNG * FINE
    if holds(start):
        low, high = start, min(start + step, top + 1)
        while low < top and holds(high):
            low, high = high, min(high + step, top + 1)
            step *= 2
        if low >= top:
            return top
    else:
        low, high = start - step, start
        while not holds(low):
            if low < start - RUNGS * FINE:
                return None
            low, high = low - step, low
            step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _multiple(at: int) -> float:
    """Return the multiple of the rate at a place of the fine ladder; whole steps are exactly those of the ladder."""
    return STEP ** (at // FINE) if at % FINE == 0 else float(STEP ** (at / FINE))


def _rung(multiple: float) -> int:
    return round(math.log(multiple) / math.log(STEP))
