"""Read the buckets of a Prometheus histogram: mean, quantiles, and the distribution itself."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from weft_operator.metrics.observation import Latency, NoMetricsError, Spread

Buckets = Mapping[float, float]
"""Cumulative counts by upper bound, which may be infinite."""


def spread(name: str, buckets: Buckets, total: float) -> Spread | None:
    """Return the distribution of a figure with the sum ``total`` of its samples; None without samples.

    Raises:
        NoMetricsError: Partial, when buckets are missing.
    """
    bounds, counts = _rising(name, buckets)
    if not counts or counts[-1] < 0.5:
        return None
    edges = (0.0, *(bound if math.isfinite(bound) else 2 * bounds[-2] for bound in bounds))
    weights = tuple(after - before for before, after in pairwise((0.0, *counts)))
    while weights[-1] == 0:
        edges, weights = edges[:-1], weights[:-1]
    return Spread(
        mean=total / counts[-1],
        sd=_deviation(edges, weights),
        p50=_quantile(0.5, bounds, counts),
        p95=_quantile(0.95, bounds, counts),
        count=round(counts[-1]),
        edges=edges,
        weights=weights,
    )


def latency(name: str, buckets: Buckets, share: float) -> Latency | None:
    """Return a quantile and the number of samples; None without samples."""
    bounds, counts = _rising(name, buckets)
    if not counts or counts[-1] < 0.5:
        return None
    return Latency(_quantile(share, bounds, counts), round(counts[-1]))


def rounds_of_sessions(name: str, buckets: Buckets) -> Spread | None:
    """Return the distribution of rounds per session, from each round's index; None without first rounds.

    As many sessions have at least k rounds as there are k-th rounds, so no session need have ended, which may take an
    hour. Bounds are whole numbers; within a bucket of several indices each has the same count.
    """
    bounds, counts = _rising(name, buckets)
    if len(bounds) < 2 or counts[0] < 0.5:
        return None
    reached: list[float] = []
    for (low, high), (before, after) in zip(pairwise((0.0, *bounds)), pairwise((0.0, *counts)), strict=True):
        width = high - low if math.isfinite(high) else low
        share = (after - before) / width
        reached.append(min(share, reached[-1]) if reached else share)
    ended = [after - before for before, after in pairwise((*(-n for n in reached), 0.0))]
    tops = [bound if math.isfinite(bound) else 2 * bounds[-2] for bound in bounds]
    cumulative = [sum(ended[: n + 1]) for n in range(len(ended))]
    edges = (0.5, *(top + 0.5 for top in tops))
    while ended[-1] <= 0 and len(ended) > 1:
        edges, ended = edges[:-1], ended[:-1]
    return Spread(
        mean=max(1.0, counts[-1] / counts[0]),
        sd=_deviation(edges, ended),
        p50=float(math.ceil(_quantile(0.5, tops, cumulative))),
        p95=float(math.ceil(_quantile(0.95, tops, cumulative))),
        count=round(counts[0]),
        edges=edges,
        weights=tuple(ended),
    )


def _deviation(edges: Sequence[float], weights: Sequence[float]) -> float:
    """Return the standard deviation of samples that are uniform within each bucket."""
    bins = [(low, high, weight) for (low, high), weight in zip(pairwise(edges), weights, strict=True)]
    count = sum(weights)
    mean = sum(weight * (low + high) / 2 for low, high, weight in bins) / count
    square = sum(weight * (low * low + low * high + high * high) / 3 for low, high, weight in bins) / count
    return math.sqrt(max(0.0, square - mean * mean))


def _rising(name: str, buckets: Buckets) -> tuple[list[float], list[float]]:
    """Return bounds and cumulative counts in order, made monotone because each is extrapolated separately."""
    bounds = sorted(buckets)
    if bounds and (len(bounds) < 2 or math.isfinite(bounds[-1])):
        raise NoMetricsError("Partial", f"{name} came without all of its buckets; Prometheus must keep them")
    counts: list[float] = []
    for bound in bounds:
        counts.append(max(buckets[bound], counts[-1] if counts else 0.0))
    return bounds, counts


def _quantile(share: float, bounds: list[float], counts: list[float]) -> float:
    """Return a quantile, linear within its bucket; the last finite bound when it is above all."""
    rank = share * counts[-1]
    number = next((n for n, count in enumerate(counts) if count >= rank), len(counts) - 1)
    if not math.isfinite(bounds[number]):
        return bounds[number - 1]
    low = bounds[number - 1] if number else 0.0
    below = counts[number - 1] if number else 0.0
    inside = counts[number] - below
    return low + (bounds[number] - low) * ((rank - below) / inside if inside > 0 else 1.0)
