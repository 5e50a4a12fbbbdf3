"""Compare two contenders by all their runs with the same seeds, not by two rates alone. Pure.

Goodput is where one curve of attainment crosses the goal: a single run that goes wrong near there moves it by a tenth.
Two contenders that are close have curves of the same shape, so their ratio is how far apart these are along the rate:
the logit of attainment is taken to fall by the same slope for both, from where each seed's sessions put it.
"""

from collections.abc import Sequence

import numpy as np
from bench.live.search import PER_OCTAVE, Ratio, Shares, seeds_of, with_seeds

from weft_core.prediction import Estimate
from weft_planner.simulation.statistics import estimate

PASSES = 50
CLOSE_ENOUGH = 1e-9
RIDGE = 1e-3
"""Keeps the fit finite where every session of some runs is within the SLO, and none of others."""


def shift_ratio(mine: Shares, other: Shares) -> Ratio:
    """Return the rate at which ``mine`` attains what ``other`` attains, as a multiple of the latter's.

    The interval is of the jackknife over seeds: of the ratios that are found without each of them.

    Raises:
        ValueError: the two have no seed in common, or one rate only.
    """
    seeds = sorted(seeds_of(mine) & seeds_of(other))
    if not seeds or len({*mine, *other}) < 2:
        raise ValueError("a ratio needs runs with the same seeds, at two rates or more")
    whole = _shift(mine, other, seeds)
    if len(seeds) == 1:
        return Ratio(_multiple(whole), Estimate(_multiple(whole), float("nan"), float("nan")))
    without = [_shift(mine, other, [one for one in seeds if one != seed]) for seed in seeds]
    each = [len(seeds) * whole - (len(seeds) - 1) * one for one in without]
    return Ratio(_multiple(whole), estimate([_multiple(one) for one in each]))


def _multiple(steps: float) -> float:
    return float(2.0 ** (steps / PER_OCTAVE))


def _shift(mine: Shares, other: Shares, seeds: Sequence[int]) -> float:
    """Return how many steps of the ladder ``mine`` is ahead: a fit of logit(share) = seed - slope step + contender."""
    rows = [
        (place, seed, step, share)
        for place, shares in enumerate((other, mine))
        for step, of in with_seeds(shares, seeds).items()
        for seed, share in of.items()
    ]
    middle = np.mean([step for _, _, step, _ in rows])
    terms = np.zeros((len(rows), len(seeds) + 2))
    for row, (place, seed, step, _) in enumerate(rows):
        terms[row, seeds.index(seed)] = 1
        terms[row, -2:] = middle - step, place
    shares = np.array([share for *_, share in rows])
    found = np.zeros(terms.shape[1])
    found[-2] = 0.3
    for _ in range(PASSES):
        fitted = 1 / (1 + np.exp(-terms @ found))
        weights = np.maximum(fitted * (1 - fitted), 1e-9)
        curvature = terms.T @ (terms * weights[:, None]) + RIDGE * np.eye(len(found))
        change = np.linalg.solve(curvature, terms.T @ (shares - fitted) - RIDGE * found)
        found += np.clip(change, -2, 2)
        if np.abs(change).max() < CLOSE_ENOUGH:
            break
    return float(found[-1] / found[-2])
