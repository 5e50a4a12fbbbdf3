"""Turn the records of a replay into the figures of the report. Pure; times in seconds."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import get_args

from weft_core.slo import ItlStatistic, Reading, RoundLatency, Slo, Unit, attainment, percentile
from weft_e2e.replay.records import RoundRecord


@dataclass(frozen=True, slots=True)
class Distribution:
    """Count, mean and percentiles of one measured quantity."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    largest: float


@dataclass(frozen=True, slots=True)
class Attained:
    """The share that met the SLO under one reading, with its counts."""

    reading: Reading
    met: int
    total: int

    @property
    def share(self) -> float:
        """Return the share, 0..1."""
        return self.met / self.total


@dataclass(frozen=True, slots=True)
class Summary:
    """What a replay gave; a distribution is None where nothing was measured.

    ``itl`` is over every gap between tokens, ``itl_rounds`` over the mean gap of each round.
    """

    sessions: int
    sessions_complete: int
    rounds: int
    rounds_ok: int
    outcomes: Mapping[str, int]
    ttft_first: Distribution | None
    ttft_later: Distribution | None
    ttft_all: Distribution | None
    itl: Distribution | None
    itl_rounds: Distribution | None
    attained: tuple[Attained, ...]
    routes: Mapping[str, int]
    reasons: Mapping[str, int]
    workers: Mapping[str, int]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    span_s: float
    most_at_once: int

    @property
    def default_attained(self) -> Attained:
        """Return the attainment under the default reading."""
        return self.attained[0]


def summarise(records: Sequence[RoundRecord], slo: Slo) -> Summary:
    """Count and summarise every round; a round that failed counts as one that missed the SLO."""
    if not records:
        raise ValueError("no rounds were recorded: there is nothing to summarise")
    by_session = sessions_of(records)
    ok = [r for r in records if r.ok]
    seen = [r for r in records if r.ttft_s is not None]
    latencies = [[_latency(r) for r in rounds] for rounds in by_session.values()]
    return Summary(
        sessions=len(by_session),
        sessions_complete=sum(all(r.ok for r in rounds) for rounds in by_session.values()),
        rounds=len(records),
        rounds_ok=len(ok),
        outcomes=dict(Counter(r.outcome for r in records)),
        ttft_first=distribution([r.ttft_s for r in seen if r.ttft_s is not None and r.phase == "first"]),
        ttft_later=distribution([r.ttft_s for r in seen if r.ttft_s is not None and r.phase == "later"]),
        ttft_all=distribution([r.ttft_s for r in seen if r.ttft_s is not None]),
        itl=distribution([g for r in records for g in r.gaps_s]),
        itl_rounds=distribution([math.fsum(r.gaps_s) / len(r.gaps_s) for r in records if r.gaps_s]),
        attained=tuple(_attained(latencies, slo, reading) for reading in readings()),
        routes=dict(Counter(r.route or "unknown" for r in ok)),
        reasons=dict(Counter(r.reason or "unknown" for r in ok)),
        workers=dict(Counter(r.worker or "unknown" for r in ok)),
        prompt_tokens=sum(r.prompt_tokens or 0 for r in ok),
        cached_tokens=sum(r.cached_tokens or 0 for r in ok),
        output_tokens=sum(r.completion_tokens or 0 for r in ok),
        span_s=max(r.sent_s + r.total_s for r in records) - min(r.sent_s for r in records),
        most_at_once=most_at_once((r.sent_s, r.sent_s + r.total_s) for r in records if r.outcome != "not_sent"),
    )


def sessions_of(records: Sequence[RoundRecord]) -> dict[str, list[RoundRecord]]:
    """Group the records by session, rounds in order, sessions in order of their first request."""
    ordered = sorted(records, key=lambda r: (r.session, r.index))
    grouped = {name: list(rounds) for name, rounds in groupby(ordered, key=lambda r: r.session)}
    return dict(sorted(grouped.items(), key=lambda item: item[1][0].sent_s))


def distribution(values: Sequence[float]) -> Distribution | None:
    """Summarise values; None when there are none."""
    if not values:
        return None
    return Distribution(
        count=len(values),
        mean=math.fsum(values) / len(values),
        p50=percentile(values, 50),
        p95=percentile(values, 95),
        p99=percentile(values, 99),
        largest=max(values),
    )


def readings() -> tuple[Reading, ...]:
    """Return every reading of an SLO, the default first."""
    return tuple(Reading(unit, itl) for unit in get_args(Unit) for itl in get_args(ItlStatistic))


def most_at_once(intervals: Iterable[tuple[float, float]]) -> int:
    """Return how many intervals overlap at most; one that ends as another starts does not overlap it."""
    edges = sorted(edge for start, end in intervals for edge in ((start, 1), (end, -1)))
    most = now = 0
    for _time, step in edges:
        now += step
        most = max(most, now)
    return most


def _latency(record: RoundRecord) -> RoundLatency:
    ttft = record.ttft_s if record.ok and record.ttft_s is not None else math.inf
    return RoundLatency(ttft_s=ttft, gaps_s=record.gaps_s)


def _attained(latencies: Sequence[Sequence[RoundLatency]], slo: Slo, reading: Reading) -> Attained:
    total = len(latencies) if reading.unit == "session" else sum(len(rounds) for rounds in latencies)
    share = attainment(latencies, slo, reading)
    return Attained(reading=reading, met=round((share or 0.0) * total), total=total)
