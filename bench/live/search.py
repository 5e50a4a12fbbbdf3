"""Find the rate at which 9 sessions of 10 meet the SLO from few runs, and say how sure that is. Pure.

All contenders are tried at rates of one ladder, 9 % apart, with the same sessions at each. Attainment is taken to fall
with the rate: where it does not, neighbouring rates are pooled.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from bench.paper.goodputs import GOAL, crossing, falling

from weft_core.prediction import Estimate
from weft_planner.simulation.statistics import estimate

PER_OCTAVE = 8
"""Rates lie this close, 9 % apart; goodput is interpolated between them."""
STRIDE = 2
"""Steps to the next rate while all rates so far hold the goal, or none does."""
FAR = (0.6, 0.25)
"""Below each of these shares the next rate is a stride further down."""
LEAST_FALL = 0.03
"""Least fall of attainment between two rates for the goodput of one seed to be interpolated."""

Shares = Mapping[int, Mapping[int, float]]
"""The share of sessions within the SLO, by step of the ladder and seed."""
Bound = Literal["", "<", ">"]


def rate_of(step: float) -> float:
    """Return the rate of a step of the ladder, sessions per second."""
    return float(2.0 ** (step / PER_OCTAVE))


def step_of(rate: float) -> int:
    """Return the step of the ladder nearest to a rate."""
    return round(math.log2(rate) * PER_OCTAVE)


def means(shares: Shares, seeds: Sequence[int]) -> dict[int, float]:
    """Return the mean over these seeds at every step that all of them were tried at, steps ascending."""
    whole = {step: of for step, of in sorted(shares.items()) if set(seeds) <= of.keys()}
    return {step: fmean(of[seed] for seed in seeds) for step, of in whole.items()}


def seeds_of(shares: Shares) -> set[int]:
    """Return the seeds that were tried at any step."""
    return {seed for of in shares.values() for seed in of}


def with_seeds(shares: Shares, seeds: Collection[int]) -> Shares:
    """Return only what was tried with these seeds."""
    kept = {step: {seed: share for seed, share in of.items() if seed in seeds} for step, of in shares.items()}
    return {step: of for step, of in kept.items() if of}


def next_step(shares: Shares, seeds: Sequence[int], *, start: int, resolution: int, most: int) -> int | None:
    """Return the step to try next, None when the goal lies between two that are ``resolution`` apart at most.

    It also ends after ``most`` steps.
    """
    known = means(shares, seeds)
    if not known:
        return start
    if len(known) >= most:
        return None
    points = dict(falling([(float(step), share) for step, share in known.items()]))
    holds = [step for step in known if _pooled(points, step) >= GOAL]
    fails = [step for step in known if _pooled(points, step) < GOAL]
    if not fails:
        return max(holds) + STRIDE
    if not holds:
        nearest = max(known.values())
        return min(fails) - STRIDE * (1 + sum(nearest < far for far in FAR))
    low, high = max(holds), min(fails)
    return (low + high) // 2 if high - low > resolution else None


def highest_held(shares: Shares) -> int:
    """Return the highest step tried that holds the goal by the mean of its seeds, the lowest tried where none does."""
    tried = {step: fmean(of.values()) for step, of in shares.items() if of}
    return max((step for step, share in tried.items() if share >= GOAL), default=min(tried))


def _pooled(points: Mapping[float, float], step: int) -> float:
    """Return the pooled share nearest to a step: pooling replaces neighbours by one point between them."""
    return points[min(points, key=lambda at: (abs(at - step), at))]


@dataclass(frozen=True, slots=True)
class Goodput:
    """Sessions per second at the goal, pooled over all seeds and for each seed.

    ``bound``: no rate that was tried held the goal ("<"), or every one did (">"); the rate is then the nearest tried.
    """

    rate: float
    of_seed: Mapping[int, float]
    bound: Bound = ""

    @property
    def interval(self) -> Estimate:
        """Return the mean over seeds with Student's 95 % interval, which one seed does not have."""
        return estimate(list(self.of_seed.values()))

    def __str__(self) -> str:
        """Say it with half of its interval, where there is one."""
        if self.bound:
            return f"{self.bound} {self.rate:.2f}"
        span = self.interval
        return f"{self.rate:.2f}" if math.isnan(span.low) else f"{self.rate:.2f} ± {(span.high - span.low) / 2:.2f}"


def goodput_of(shares: Shares) -> Goodput:
    """Return the goodput from the runs of the same seeds; a seed's own differs by what its attainment does.

    Raises:
        ValueError: nothing was tried.
    """
    if not any(shares.values()):
        raise ValueError("shares: nothing was tried; run at one rate at least")
    tried = _comparable({step: of for step, of in sorted(shares.items()) if of})
    points = falling([(float(step), fmean(of.values()) - _ease(tried, of)) for step, of in tried.items()])
    found = crossing(points)
    bound: Bound = "<" if points[0][1] < GOAL else ">" if points[-1][1] >= GOAL else ""
    span = points[-1][0] - points[0][0]
    fall = max((points[0][1] - points[-1][1]) / span, LEAST_FALL) if span else LEAST_FALL
    seeds = sorted({seed for of in tried.values() for seed in of})
    return Goodput(rate_of(found), {seed: rate_of(found + _ease(tried, [seed]) / fall) for seed in seeds}, bound)


def _comparable(tried: Shares) -> Shares:
    """Return what was tried with the same seeds, whose sessions differ in how hard they are.

    These are as many as possible of which the goal lies between two rates. Without any, all is returned.
    """
    for seeds in sorted({frozenset(of) for of in tried.values()}, key=len, reverse=True):
        held = [share >= GOAL for share in means(tried, sorted(seeds)).values()]
        if len(seeds) > 1 and any(held) and not all(held):
            return with_seeds({step: of for step, of in tried.items() if of.keys() >= seeds}, seeds)
    return tried


def _ease(tried: Shares, seeds: Collection[int]) -> float:
    """Return by how much the attainment of some seeds is above the mean of all, at the rates tried with most seeds.

    Seeds that were not tried at these rates are taken for as hard as the others.
    """
    every = max((sorted(of) for of in tried.values()), key=lambda one: (len(one), one))
    known = [seed for seed in seeds if seed in every]
    whole = [of for of in tried.values() if of.keys() >= set(every)]
    if not known:
        return 0.0
    return fmean(fmean(of[seed] for seed in known) - fmean(of[seed] for seed in every) for of in whole)


@dataclass(frozen=True, slots=True)
class Ratio:
    """One goodput as a multiple of another, and of their seeds in common with a 95 % interval.

    ``bound``: the true ratio is below ("<") or above (">") the value, because one of both was not bracketed.
    """

    value: float
    interval: Estimate
    bound: Bound = ""

    def __str__(self) -> str:
        """Say it with half of its interval, where there is one."""
        sign = f"{self.bound} " if self.bound else ""
        if math.isnan(self.interval.low):
            return f"{sign}{self.value:.2f}"
        return f"{sign}{self.value:.2f} ± {(self.interval.high - self.interval.low) / 2:.2f}"


def ratio(mine: Goodput, other: Goodput) -> Ratio:
    """Return one goodput over another; seeds are paired."""
    common = sorted(mine.of_seed.keys() & other.of_seed.keys())
    signs = {sign for sign in (mine.bound, {"<": ">", ">": "<", "": ""}[other.bound]) if sign}
    bound: Bound = ">" if signs == {">"} else "<" if signs == {"<"} else ""
    each = estimate([mine.of_seed[seed] / other.of_seed[seed] for seed in common])
    return Ratio(mine.rate / other.rate, each, bound)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean, NaN of nothing."""
    return math.exp(fmean(map(math.log, values))) if values else math.nan
