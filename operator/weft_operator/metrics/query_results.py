"""Turn Prometheus' results for one service into an observation; doubtful metrics make it unavailable, never 0."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from weft_operator.metrics.observation import MetricsAvailability, NoMetricsError, Observation
from weft_operator.metrics.pod_coverage import covered_seconds, scrape_copies, without_copies
from weft_operator.metrics.queries import PRESENCE
from weft_operator.metrics.query_target import QueriedService
from weft_operator.metrics.series import counts_of, parse_vector
from weft_operator.metrics.slo_results import pods_of, pressure_of, slo_of, triggers_of
from weft_operator.metrics.workload_results import workload_of

FRESH = MetricsAvailability("Fresh", "metrics of every ready pod are current")


@dataclass(frozen=True, slots=True)
class QueryResults:
    """The results of queries as Prometheus returns them: unchecked JSON."""

    clock: object
    results: Sequence[object]


def read(answers: QueryResults, subject: QueriedService, *, at: datetime) -> Observation:
    """Return the observation; never raises."""
    whole, fast = float(subject.windows.whole), float(subject.windows.fast)
    try:
        now = _clock(answers.clock, at=at, limit_s=subject.stale_after_s)
        found = [series for result in answers.results for series in parse_vector(result)]
        presence = [series for series in found if series.figure in PRESENCE]
        seconds = covered_seconds(presence, subject, now)
        found = without_copies(found, scrape_copies(presence, subject))
        counts = counts_of(found)
        return Observation(
            at=at,
            window_s=whole,
            fast_window_s=fast,
            availability=FRESH,
            workload=workload_of(counts, seconds),
            slo=slo_of(counts, subject),
            pressure=pressure_of(found),
            pods=pods_of(counts),
            triggers=triggers_of(found),
        )
    except NoMetricsError as error:
        return Observation(at=at, window_s=whole, fast_window_s=fast, availability=error.availability)


def _clock(result: object, *, at: datetime, limit_s: float) -> float:
    try:
        now = float(result[1])  # type: ignore[index]
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        raise NoMetricsError("QueryFailed", "Prometheus did not return its time; check the URL") from error
    if not abs(now - at.timestamp()) <= limit_s:
        raise NoMetricsError(
            "ClockSkew",
            "the clocks of Prometheus and of the operator differ by more than spec.planning.prometheus.staleAfter; "
            "synchronise the nodes' clocks",
        )
    return now
