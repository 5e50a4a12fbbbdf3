"""Sum up runs: latencies, sessions within the SLO and use of the workers, with 95 % intervals over seeds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weft_core.prediction import Estimate
from weft_planner.distributions import Floats
from weft_planner.request_parts import Objectives
from weft_planner.simulation.outcome import Outcome
from weft_planner.verdicts import attainment

STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""97.5 % quantiles of Student's t for 1, 2, … degrees of freedom."""
NORMAL = 1.96


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run in figures: median and the SLO's percentile of latencies in seconds, shares of 1 for the rest."""

    ttft_first: tuple[float, float]
    ttft_later: tuple[float, float]
    ttft: tuple[float, float]
    itl: tuple[float, float]
    attainment: float
    prefill_busy: float
    decode_busy: float
    kv_peak: float
    local_share: float


@dataclass(frozen=True, slots=True)
class Pair:
    """A median and a percentile, each with its interval."""

    median: Estimate
    high: Estimate


@dataclass(frozen=True, slots=True)
class Figures:
    """Runs that differ in the seed alone, in figures."""

    ttft_first: Pair
    ttft_later: Pair
    ttft: Pair
    itl: Pair
    attainment: Estimate
    prefill_busy: float
    decode_busy: float
    kv_peak: float
    local_share: float
    runs: tuple[RunFigures, ...]


def run_figures(outcome: Outcome, slo: Objectives) -> RunFigures:
    """Return one run's figures over the rounds that are counted."""
    counted = outcome.counted
    first = np.zeros(outcome.sample.rows, dtype=np.bool_)
    first[outcome.sample.first_row] = True
    ttft = outcome.ttft
    decoding = counted & (outcome.gaps > 0)
    prefills = len(outcome.layout.prefill)
    return RunFigures(
        ttft_first=_quantiles(ttft[counted & first], slo.percentile),
        ttft_later=_quantiles(ttft[counted & ~first], slo.percentile),
        ttft=_quantiles(ttft[counted], slo.percentile),
        itl=_quantiles(outcome.itl_mean[decoding], slo.percentile),
        attainment=attainment(outcome, slo.unit, slo.itl_statistic),
        prefill_busy=_mean(outcome.busy[:prefills]),
        decode_busy=_mean(outcome.busy[prefills:]),
        kv_peak=float((outcome.kv_peak / outcome.kv_capacity)[prefills:].max()),
        local_share=outcome.local_share,
    )


def summed_up(runs: Sequence[RunFigures]) -> Figures:
    """Return the means over runs, with intervals where people look."""

    def pair(of: Callable[[RunFigures], tuple[float, float]]) -> Pair:
        return Pair(estimate([of(run)[0] for run in runs]), estimate([of(run)[1] for run in runs]))

    def mean(of: Callable[[RunFigures], float]) -> float:
        return sum(of(run) for run in runs) / len(runs)

    share = estimate([run.attainment for run in runs])
    return Figures(
        ttft_first=pair(lambda run: run.ttft_first),
        ttft_later=pair(lambda run: run.ttft_later),
        ttft=pair(lambda run: run.ttft),
        itl=pair(lambda run: run.itl),
        attainment=Estimate(share.value, max(0.0, share.low), min(1.0, share.high)),
        prefill_busy=mean(lambda run: run.prefill_busy),
        decode_busy=mean(lambda run: run.decode_busy),
        kv_peak=max(run.kv_peak for run in runs),
        local_share=mean(lambda run: run.local_share),
        runs=tuple(runs),
    )


def estimate(values: Sequence[float], *, signed: bool = False) -> Estimate:
    """Return the mean with its 95 % interval; without bounds where a value has none, a point where there is one.

    Unless ``signed`` the figure cannot be below 0, whatever a wide interval of few runs says.
    """
    if not all(math.isfinite(value) for value in values):
        return Estimate(math.inf, min(values), math.inf)
    mean = sum(values) / len(values)
    if len(values) == 1:
        return Estimate(mean, mean, mean)
    freedom = len(values) - 1
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / freedom)
    factor = STUDENT_T[freedom - 1] if freedom <= len(STUDENT_T) else NORMAL
    half = factor * deviation / math.sqrt(len(values))
    return Estimate(mean, mean - half if signed else max(0.0, mean - half), mean + half)


def _quantiles(values: Floats, percentile: float) -> tuple[float, float]:
    """Return median and percentile; no interpolation, because unserved rounds are infinite."""
    if not len(values):
        return 0.0, 0.0
    low, high = np.quantile(values, (0.5, percentile / 100), method="inverted_cdf")
    return float(low), float(high)


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0
