"""Distributions of a workload's figures: constant, lognormal by mean and variation, or empirical by quantiles.

A distribution is a value. It draws from a ``Stream``, whose first k draws do not depend on how many are asked for,
so that two samples of different sizes share their common part.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Stream:
    """Normal and uniform random numbers of one figure, each in a sequence of its own."""

    __slots__ = ("_normal", "_uniform")

    def __init__(self, *key: int) -> None:
        """Begin the sequences that belong to ``key``, whole numbers of at least 0."""
        self._normal = np.random.default_rng([*key, 0])
        self._uniform = np.random.default_rng([*key, 1])

    def normal(self, size: int) -> Floats:
        """Return the next standard normal numbers."""
        return self._normal.standard_normal(size)

    def uniform(self, size: int) -> Floats:
        """Return the next numbers in [0, 1)."""
        return self._uniform.random(size)


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same value."""

    value: float

    @property
    def mean(self) -> float:
        """Return the mean."""
        return self.value

    @property
    def variation(self) -> float:
        """Return the coefficient of variation: standard deviation over mean."""
        return 0.0

    def sample(self, stream: Stream, size: int) -> Floats:
        """Draw ``size`` values."""
        del stream
        return np.full(size, float(self.value))

    def scaled(self, mean: float) -> "Constant":
        """Return the same shape with another mean."""
        return Constant(mean)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Positive values whose logarithm is normal, by mean and coefficient of variation (both above 0)."""

    mean: float
    variation: float

    def sample(self, stream: Stream, size: int) -> Floats:
        """Draw ``size`` values."""
        variance = math.log1p(self.variation**2)
        exponent = math.log(self.mean) - variance / 2 + math.sqrt(variance) * stream.normal(size)
        values: Floats = np.exp(exponent)
        return values

    def scaled(self, mean: float) -> "Distribution":
        """Return the same shape with another mean."""
        return Constant(0.0) if mean <= 0 else replace(self, mean=mean)


@dataclass(frozen=True, slots=True)
class Empirical:
    """A quantile function made of straight pieces: the share ``at[i]`` of all values is not above ``values[i]``.

    Both rise or stay; ``at`` begins with 0 and ends with 1. Two equal values side by side are a step in the
    distribution: that share of all draws has exactly this value.
    """

    at: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse what is no quantile function; the messages name the list at fault."""
        if len(self.at) != len(self.values) or len(self.at) < 2:
            raise ValueError(
                f"at and values need the same length of at least 2, they have {len(self.at)} and {len(self.values)}"
            )
        if self.at[0] != 0 or self.at[-1] != 1:
            raise ValueError(f"at must begin with 0 and end with 1, not {self.at[0]:g} and {self.at[-1]:g}")
        if any(not math.isfinite(x) or x < 0 for x in (*self.at, *self.values)):
            raise ValueError("at and values must be finite and not below 0")
        for name, numbers in (("at", self.at), ("values", self.values)):
            if any(b < a for a, b in pairwise(numbers)):
                raise ValueError(f"{name} must not fall; sort it")

    @property
    def mean(self) -> float:
        """Return the mean."""
        return sum((q - p) * (a + b) / 2 for (p, q), (a, b) in self._pieces())

    @property
    def variation(self) -> float:
        """Return the coefficient of variation: standard deviation over mean."""
        mean = self.mean
        square = sum((q - p) * (a * a + a * b + b * b) / 3 for (p, q), (a, b) in self._pieces())
        return math.sqrt(max(0.0, square - mean * mean)) / mean if mean > 0 else 0.0

    def quantile(self, shares: Floats) -> Floats:
        """Return the values that these shares (0 to 1) of all draws do not exceed."""
        return np.interp(shares, self.at, self.values)

    def sample(self, stream: Stream, size: int) -> Floats:
        """Draw ``size`` values."""
        return self.quantile(stream.uniform(size))

    def scaled(self, mean: float) -> "Distribution":
        """Return the same shape with another mean."""
        own = self.mean
        if own <= 0 or mean <= 0:
            return Constant(mean)
        return replace(self, values=tuple(value * (mean / own) for value in self.values))

    def _pieces(self) -> list[tuple[tuple[float, float], tuple[float, float]]]:
        return list(zip(pairwise(self.at), pairwise(self.values), strict=True))


Distribution = Constant | Lognormal | Empirical


def from_histogram(edges: Sequence[float], weights: Sequence[float]) -> Empirical:
    """Return the distribution of a histogram: values spread evenly within each bin, ``weights`` of any sum.

    Raises:
        ValueError: lengths do not match, an edge falls, a weight is negative or all are 0.
    """
    if len(edges) != len(weights) + 1:
        raise ValueError(f"edges must be one more than weights, they are {len(edges)} and {len(weights)}")
    total = math.fsum(weights)
    if not math.isfinite(total) or total <= 0 or any(weight < 0 for weight in weights):
        raise ValueError("weights must be finite, not below 0, and not all 0")
    heights = np.minimum(1.0, np.cumsum([0.0, *weights]) / total)
    heights[-1] = 1.0
    return Empirical(at=tuple(float(p) for p in heights), values=tuple(float(edge) for edge in edges))


def shares_below(distribution: Distribution, values: Floats) -> Floats:
    """Return which share of all draws is not above each value."""
    if isinstance(distribution, Constant):
        return (values >= distribution.value).astype(np.float64)
    if isinstance(distribution, Lognormal):
        variance = math.log1p(distribution.variation**2)
        middle, deviation = math.log(distribution.mean) - variance / 2, math.sqrt(variance)
        scores = (np.log(np.maximum(values, 1e-300)) - middle) / deviation
        return np.array([0.5 * math.erfc(-score / math.sqrt(2)) for score in scores])
    at, points = np.array(distribution.at), np.array(distribution.values)
    right = np.searchsorted(points, values, side="right")  # the last of equal points: a step counts as a whole
    low = np.clip(right - 1, 0, len(points) - 1)
    high = np.clip(right, 0, len(points) - 1)
    width = points[high] - points[low]
    part = np.where(width > 0, (values - points[low]) / np.where(width > 0, width, 1.0), 0.0)
    inside = at[low] + part * (at[high] - at[low])
    return np.where(values < points[0], 0.0, np.where(values >= points[-1], 1.0, inside))


def values_at(distribution: Distribution, shares: Floats) -> Floats:
    """Return the values that these shares (above 0, below 1) of all draws do not exceed."""
    if isinstance(distribution, Constant):
        return np.full(len(shares), distribution.value)
    if isinstance(distribution, Lognormal):
        variance = math.log1p(distribution.variation**2)
        normal = NormalDist(math.log(distribution.mean) - variance / 2, math.sqrt(variance))
        values: Floats = np.exp(np.array([normal.inv_cdf(share) for share in shares]))
        return values
    return distribution.quantile(shares)
