"""Turn runs into figures that people compare: percentiles, attainment under every reading, intervals over seeds.

A figure is the mean over seeds of what each run shows, with Student's 95 % interval. Runs of different layouts or
policies at equal seeds see the same sessions, so their differences are much better known than each figure alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from weft_core.prediction import Estimate
from weft_core.slo import PER_SESSION, ItlStatistic, Reading, Unit
from weft_planner.simulation.layout import SimulationError
from weft_planner.simulation.outcome import Outcome
from weft_planner.simulation.records import SERVED
from weft_planner.workload.distributions import Floats

UNITS: tuple[Unit, ...] = ("session", "round")
ITL_STATISTICS: tuple[ItlStatistic, ...] = ("mean", "p95", "max")
READINGS: tuple[Reading, ...] = tuple(Reading(unit, itl) for unit, itl in product(UNITS, ITL_STATISTICS))
P95_SHARE = 0.05
"""A P95 meets its threshold while at most this share of the gaps is over it."""

_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t, 97.5 %, for 1 to 30 degrees of freedom (every table of statistics has it); 1.96 beyond is 4 % off."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Median, P95 and mean of a latency in seconds, each with its interval."""

    p50: Estimate
    p95: Estimate
    mean: Estimate


@dataclass(frozen=True, slots=True)
class Summary:
    """What a layout and a policy achieve at a load; latencies in seconds, infinite for rounds that were not served.

    ``itl`` is over rounds, each by its mean gap. ``attainment`` holds every reading; ``of_class`` each session class's,
    in the reading that was asked for. Per worker, prefill workers first: share of time busy, largest KV use as a share
    of capacity, mean number of prefills queued and running. ``local_share`` is of routed rounds. ``unserved`` is the
    share of counted rounds without an answer.
    """

    reading: Reading
    seeds: int
    sessions: int
    rounds: int
    ttft: Percentiles
    ttft_first: Percentiles
    ttft_later: Percentiles
    itl: Percentiles
    attainment: Mapping[Reading, Estimate]
    of_class: Mapping[str, Estimate]
    unserved: float
    local_share: float
    busy: tuple[float, ...]
    kv_peak: tuple[float, ...]
    queue_mean: tuple[float, ...]
    preemptions: float
    read_tokens: float
    back_tokens: float
    moved_tokens: float
    loaded_tokens: float
    recomputed_tokens: float
    history_tokens: float
    events: int

    @property
    def attained(self) -> Estimate:
        """Return the attainment in the reading that was asked for."""
        return self.attainment[self.reading]


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean over seeds and its 95 % interval; one seed tells nothing about its own scatter.

    An infinite value makes the mean infinite, without an interval.
    """
    count = len(values)
    if count == 0:
        return Estimate(math.nan, math.nan, math.nan)
    mean = math.fsum(values) / count if all(math.isfinite(v) for v in values) else float(np.mean(values))
    if count == 1 or not math.isfinite(mean):
        return Estimate(mean, mean if count > 1 else math.nan, mean if count > 1 else math.nan)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (count - 1))
    half = (_T_975[count - 2] if count - 2 < len(_T_975) else 1.96) * deviation / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half)


def met(outcome: Outcome, reading: Reading) -> NDArray[np.bool_]:
    """Return for every counted session, or round, whether it met its class's SLO; unserved ones did not."""
    sample = outcome.sample
    kinds = sample.session_class[sample.session]
    ttft_slo = np.array([c.ttft_s for c in outcome.slo])[kinds]
    in_time = (outcome.state == SERVED) & (outcome.ttft <= ttft_slo)
    seconds = outcome.itl_mean * outcome.gaps
    over = outcome.itl_over * outcome.gaps
    gaps = outcome.gaps.astype(np.float64)
    itl_slo = np.array([c.itl_s for c in outcome.slo])
    counted = outcome.counted
    if reading.unit == "session":
        in_time = np.logical_and.reduceat(in_time, sample.first_row)
        seconds, over, gaps = (np.add.reduceat(figure, sample.first_row) for figure in (seconds, over, gaps))
        limit = itl_slo[sample.session_class]
        counted = counted[sample.first_row]
    else:
        limit = itl_slo[kinds]
    some = np.maximum(gaps, 1)
    if reading.itl == "mean":
        smooth = seconds / some <= limit
    elif reading.itl == "p95":
        smooth = over / some <= P95_SHARE + 1e-12
    else:
        smooth = np.rint(over) == 0
    result: NDArray[np.bool_] = (in_time & smooth)[counted]
    return result


def attainment(outcome: Outcome, reading: Reading = PER_SESSION) -> float:
    """Return the share of counted sessions, or rounds, that met the SLO; NaN when none was counted."""
    successes = met(outcome, reading)
    return float(successes.mean()) if len(successes) else math.nan


def summarise(outcomes: Sequence[Outcome], reading: Reading = PER_SESSION) -> Summary:
    """Summarise runs of one layout and policy at one load that differ in their seeds.

    Raises:
        SimulationError: there is no run, or no session was counted.
    """
    if not outcomes:
        raise SimulationError("outcomes: none to summarise; simulate at least one seed")
    if not all(o.counted.any() for o in outcomes):
        raise SimulationError("outcomes: a run counts no session; draw a longer window or shorten the warm-up")
    first = [_is_first(o) for o in outcomes]
    names = [c.name for c in outcomes[0].slo]
    every = range(len(outcomes))
    return Summary(
        reading=reading,
        seeds=len(outcomes),
        sessions=sum(int(o.counted[o.sample.first_row].sum()) for o in outcomes),
        rounds=sum(int(o.counted.sum()) for o in outcomes),
        ttft=_percentiles([o.ttft[o.counted] for o in outcomes]),
        ttft_first=_percentiles([outcomes[i].ttft[outcomes[i].counted & first[i]] for i in every]),
        ttft_later=_percentiles([outcomes[i].ttft[outcomes[i].counted & ~first[i]] for i in every]),
        itl=_percentiles([o.itl_mean[o.counted & (o.gaps > 0)] for o in outcomes]),
        attainment={r: estimate([attainment(o, r) for o in outcomes]) for r in READINGS},
        of_class={
            name: estimate([value for o in outcomes if not math.isnan(value := _of_class(o, reading, kind))])
            for kind, name in enumerate(names)
        },
        unserved=float(np.mean([(o.state[o.counted] != SERVED).mean() for o in outcomes])),
        local_share=_mean([o.local_share for o in outcomes]),
        busy=_over_seeds([o.busy for o in outcomes]),
        kv_peak=_over_seeds([o.kv_peak / o.kv_capacity for o in outcomes]),
        queue_mean=_over_seeds([o.queue_mean for o in outcomes]),
        preemptions=_mean([o.preemptions for o in outcomes]),
        read_tokens=_mean([o.read_tokens for o in outcomes]),
        back_tokens=_mean([o.back_tokens for o in outcomes]),
        moved_tokens=_mean([o.moved_tokens for o in outcomes]),
        loaded_tokens=_mean([o.loaded_tokens for o in outcomes]),
        recomputed_tokens=_mean([o.recomputed_tokens for o in outcomes]),
        history_tokens=_mean([float(o.sample.history[o.state == SERVED].sum()) for o in outcomes]),
        events=sum(o.events for o in outcomes),
    )


def _is_first(outcome: Outcome) -> NDArray[np.bool_]:
    first = np.zeros(outcome.sample.rows, np.bool_)
    first[outcome.sample.first_row] = True
    return first


def _of_class(outcome: Outcome, reading: Reading, kind: int) -> float:
    sample = outcome.sample
    kinds = sample.session_class
    of_unit = (
        kinds[outcome.counted[sample.first_row]]
        if reading.unit == "session"
        else kinds[sample.session][outcome.counted]
    )
    chosen = met(outcome, reading)[of_unit == kind]
    return float(chosen.mean()) if len(chosen) else math.nan


def _percentiles(values: Sequence[Floats]) -> Percentiles:
    some = [v for v in values if len(v)]
    at = [[_quantile(v, q) for v in some] for q in (50, 95)]
    return Percentiles(estimate(at[0]), estimate(at[1]), estimate([float(v.mean()) for v in some]))


def _quantile(values: Floats, q: float) -> float:
    """Return a percentile; numpy's interpolation next to infinity is not a number."""
    ordered = np.sort(values)
    rank = (len(ordered) - 1) * q / 100
    low, high = float(ordered[math.floor(rank)]), float(ordered[math.ceil(rank)])
    return low if low == high else low + (high - low) * (rank - math.floor(rank))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _over_seeds(values: Sequence[Floats]) -> tuple[float, ...]:
    return tuple(float(v) for v in np.mean(np.stack(values), axis=0))
