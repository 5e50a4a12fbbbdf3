"""Say whether measured latencies meet a service-level objective, under a named reading.

An attainment figure means nothing without its reading: what counts as one success (a session or
a round) and which statistic of the inter-token gaps is held against the ITL threshold.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["session", "round"]
ItlStatistic = Literal["mean", "p95", "max"]
_STATISTIC = {"mean": "mean", "p95": "P95", "max": "largest"}


@dataclass(frozen=True, slots=True)
class Slo:
    """Thresholds in seconds, the percentile that plans are sized for, and the share that must meet both thresholds."""

    ttft_s: float
    itl_s: float
    percentile: float = 95
    attainment: float = 0.9

    def __post_init__(self) -> None:
        for name, value in (("ttft_s", self.ttft_s), ("itl_s", self.itl_s)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: {value!r} is not a finite time above 0 seconds")
        if not 0 < self.percentile < 100:
            raise ValueError(f"percentile: {self.percentile!r} is not between 0 and 100")
        if not 0 < self.attainment <= 1:
            raise ValueError(f"attainment: {self.attainment!r} is not a share above 0 and up to 1")


@dataclass(frozen=True, slots=True)
class Reading:
    """How attainment is counted: the unit of success and the ITL statistic."""

    unit: Unit = "session"
    itl: ItlStatistic = "mean"

    @property
    def name(self) -> str:
        """Return the short name under which predictions list attainment: ``session, mean ITL``."""
        return f"{self.unit}, {_STATISTIC[self.itl]} ITL"

    def __str__(self) -> str:
        statistic = _STATISTIC[self.itl]
        if self.unit == "session":
            return f"per session: every TTFT met and the session's {statistic} inter-token gap met"
        return f"per round: the round's TTFT met and its {statistic} inter-token gap met"


PER_SESSION = Reading()
"""The default: every TTFT met and session-mean ITL met, which is how AMPD's figures were counted."""


@dataclass(frozen=True, slots=True)
class RoundLatency:
    """What a client saw in one round: time to first token, then the gaps between tokens, in seconds.

    A round that failed has a TTFT of infinity.
    """

    ttft_s: float
    gaps_s: tuple[float, ...] = ()


def percentile(values: Sequence[float], q: float) -> float:
    """Return the q-th percentile (0..100) with linear interpolation between the two nearest ranks.

    Raises:
        ValueError: no values, or q outside 0..100.
    """
    if not values:
        raise ValueError("percentile of no values")
    if not 0 <= q <= 100:
        raise ValueError(f"percentile {q!r} is not between 0 and 100")
    ordered = sorted(values)
    rank = (len(ordered) - 1) * q / 100
    low = math.floor(rank)
    high = math.ceil(rank)
    if low == high or ordered[low] == ordered[high]:
        return ordered[low]
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def itl(gaps_s: Sequence[float], statistic: ItlStatistic) -> float:
    """Return one figure for a list of inter-token gaps; without gaps there is nothing to violate, so 0."""
    if not gaps_s:
        return 0.0
    if statistic == "mean":
        return math.fsum(gaps_s) / len(gaps_s)
    return percentile(gaps_s, 95) if statistic == "p95" else max(gaps_s)


def round_met(latency: RoundLatency, slo: Slo, statistic: ItlStatistic = "mean") -> bool:
    """Return whether one round met both thresholds."""
    return latency.ttft_s <= slo.ttft_s and itl(latency.gaps_s, statistic) <= slo.itl_s


def session_met(rounds: Sequence[RoundLatency], slo: Slo, statistic: ItlStatistic = "mean") -> bool:
    """Return whether a session met every TTFT and, over all its gaps, the ITL threshold."""
    gaps = [gap for latency in rounds for gap in latency.gaps_s]
    return all(latency.ttft_s <= slo.ttft_s for latency in rounds) and itl(gaps, statistic) <= slo.itl_s


def session_attainment(
    sessions: Iterable[Sequence[RoundLatency]], slo: Slo, statistic: ItlStatistic = "mean"
) -> float | None:
    """Return the share of sessions that met the SLO, None when there was none."""
    return _share(session_met(rounds, slo, statistic) for rounds in sessions if rounds)


def round_attainment(
    sessions: Iterable[Sequence[RoundLatency]], slo: Slo, statistic: ItlStatistic = "mean"
) -> float | None:
    """Return the share of rounds that met the SLO, None when there was none."""
    return _share(round_met(latency, slo, statistic) for rounds in sessions for latency in rounds)


def attainment(sessions: Iterable[Sequence[RoundLatency]], slo: Slo, reading: Reading = PER_SESSION) -> float | None:
    """Return the attained share under a reading, None when nothing was measured."""
    count = session_attainment if reading.unit == "session" else round_attainment
    return count(sessions, slo, reading.itl)


def _share(outcomes: Iterable[bool]) -> float | None:
    results = list(outcomes)
    return sum(results) / len(results) if results else None
