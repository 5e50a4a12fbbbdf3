"""Fit distributions to values, and say how far they are from them.

Two distances are given. ``ks`` is the largest difference between the shares of values and of draws below any value
(Kolmogorov-Smirnov); ``shift`` the mean distance that values must be moved to become draws, as a share of their mean
(Wasserstein). The first sees the body, the second the tail.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from weft_planner.workload.distributions import (
    Constant,
    Distribution,
    Empirical,
    Floats,
    Lognormal,
    shares_below,
    values_at,
)
from weft_planner.workload.traffic import ASSUMED_VARIATION

Shape = Literal["auto", "mean", "lognormal", "empirical"]

CLOSE_KS = 0.05
CLOSE_SHIFT = 0.1
"""A lognormal this close to the values is taken by ``auto``: two numbers say as much as a table."""
MOST_POINTS = 24
"""Points of an empirical shape: enough for a KS distance of some percent, and still readable in a manifest."""
GOOD_ENOUGH = 0.01
"""Both distances at which a shape needs no more points."""
SLACK = 0.01
"""Share by which a draw may exceed a value that is not whole and still count as not above it."""
LEAST_STEP = 0.01
"""Share of all values that a single value must have to become a step of its own."""
VALUES_PER_POINT = 3
"""With fewer values to a point a shape would repeat them instead of showing what they follow."""
FEW = 30
"""Fewer values than this say little about the tail."""
_GRID = (np.arange(2000) + 0.5) / 2000


@dataclass(frozen=True, slots=True)
class FigureFit:
    """One figure's values and the distribution chosen for them; ``mean`` and ``variation`` are the values' own.

    ``shape`` is the distribution before it was scaled to the mean: its points are values that occurred.
    """

    name: str
    count: int
    mean: float
    variation: float
    p50: float
    p95: float
    largest: float
    distribution: Distribution
    shape: Distribution
    ks: float
    shift: float
    fitted_p95: float


def fit_figure(name: str, values: Sequence[float], *, shape: Shape = "auto", whole: bool = True) -> FigureFit:
    """Fit one figure; ``whole`` values are rounded draws (tokens, rounds), others are not (seconds).

    Raises:
        ValueError: there are no values.
    """
    if len(values) == 0:
        raise ValueError(f"{name}: there are no values to fit")
    data = np.sort(np.asarray(values, dtype=np.float64))
    mean = float(data.mean())
    raw = _chosen(data, shape=shape, whole=whole)
    chosen = raw.scaled(mean)
    ks, shift = distances(data, chosen, whole=whole)
    return FigureFit(
        name=name,
        count=len(data),
        mean=mean,
        variation=float(data.std() / mean) if mean > 0 else 0.0,
        p50=float(np.quantile(data, 0.5)),
        p95=float(np.quantile(data, 0.95)),
        largest=float(data[-1]),
        distribution=chosen,
        shape=raw,
        ks=ks,
        shift=shift,
        fitted_p95=float(values_at(chosen, np.array([0.95]))[0]),
    )


def _chosen(data: Floats, *, shape: Shape, whole: bool) -> Distribution:
    mean = float(data.mean())
    if data[0] == data[-1]:
        return Constant(mean)
    if shape == "mean":
        return Lognormal(mean, ASSUMED_VARIATION)
    lognormal = Lognormal(mean, float(data.std() / mean))
    if shape == "lognormal":
        return lognormal
    if shape == "auto":
        ks, shift = distances(data, lognormal, whole=whole)
        if ks <= CLOSE_KS and shift <= CLOSE_SHIFT:
            return lognormal
    return fit_empirical(data)


def distances(data: Floats, distribution: Distribution, *, whole: bool) -> tuple[float, float]:
    """Return (ks, shift) between sorted values and a distribution."""
    distinct, counts = np.unique(data, return_counts=True)
    below = np.cumsum(counts) / len(data)
    mean = float(data.mean())
    model = shares_below(distribution, distinct + 0.5 if whole else distinct * (1 + SLACK))
    moved = np.abs(np.quantile(data, _GRID, method="inverted_cdf") - values_at(distribution, _GRID)).mean()
    return float(np.abs(below - model).max()), float(moved / mean) if mean > 0 else 0.0


def fit_empirical(data: Floats, *, points: int = MOST_POINTS) -> Distribution:
    """Return a quantile function through sorted values; its mean is near theirs.

    At most ``points`` places are taken; a value that occurs often is two points, a step.

    Points are added where the straight line misses the values most: in turn by the area it misses (the tail weighs)
    and by the share of values it misplaces (the body weighs).
    """
    size, mean = len(data), float(data.mean())
    knots = [(0.0, float(data[0])), (1.0, float(data[-1]))]
    p = (np.arange(size) + 0.5) / size
    for step in range(min(points, size // VALUES_PER_POINT) - 2):
        line = np.interp(p, [k[0] for k in knots], [k[1] for k in knots])
        missed = np.abs(data - line)
        misplaced, far = _misplaced(data, line)
        if far <= GOOD_ENOUGH * size and missed.mean() <= GOOD_ENOUGH * mean:
            break
        if step % 2:
            worst = misplaced
        else:
            edges = np.searchsorted(p, [k[0] for k in knots])
            areas = [float(missed[a:b].sum()) for a, b in pairwise(edges)]
            k = int(np.argmax(areas))
            start, end = int(edges[k]), int(edges[k + 1])
            worst = start + int(np.argmax(missed[start:end])) if end > start else 0
        if missed[worst] <= 0:
            break
        knots = _with(knots, data, worst)
    at = tuple(round(k[0], 4) for k in knots)
    return Empirical(at=at, values=tuple(k[1] for k in knots))


def _misplaced(data: Floats, line: Floats) -> tuple[int, int]:
    """Return the place where the straight pieces stand most ranks away from the values, and how many."""
    ranks = np.abs(np.searchsorted(line, data, side="right") - np.searchsorted(data, data, side="right"))
    worst = int(np.argmax(ranks))
    return worst, int(ranks[worst])


def _with(knots: list[tuple[float, float]], data: Floats, worst: int) -> list[tuple[float, float]]:
    """Add a value's place; of values that occur often both ends, which makes a step."""
    value = float(data[worst])
    low, high = np.searchsorted(data, value, side="left"), np.searchsorted(data, value, side="right")
    size = len(data)
    often = high - low > 1 and (high - low) / size > LEAST_STEP
    places = [low / size, high / size] if often else [(worst + 0.5) / size]
    return sorted({*knots, *((round(float(at), 6), value) for at in places)})
