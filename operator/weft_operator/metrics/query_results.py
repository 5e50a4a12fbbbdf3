"""Turn Prometheus' answers about one service into an observation: what is in doubt makes it blind, never 0.

The load must never look smaller than it is because data are missing. So every pod that serves must be seen, lately and
without a hole, and the counters that tell of the same rounds must agree. A rate is over the time that was seen.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Literal

from weft_operator.metrics.histogram import Buckets, latency, rounds_of_sessions, spread
from weft_operator.metrics.observation import (
    ClassTally,
    MetricsAvailability,
    NoMetricsError,
    Observation,
    ObservedSlo,
    ObservedWorkload,
    PodTally,
    Spread,
    Tally,
    WorkerPressure,
)
from weft_operator.metrics.queries import FIGURE, GAUGES, PRESENCE, Windows

LEAST_UNITS = 20
"""Sessions or rounds below which a share says nothing."""

FIRST_METRICS_STALE_AFTERS = 2
"""How many times ``staleAfter`` a pod may be ready without a series before something is wrong.

``staleAfter`` spans some scrapes (1 min by default), so twice that is enough for Prometheus to discover a pod and to
scrape it.
"""

LARGEST = 1e15
"""The largest value that counts as one: sums and squares of such are still numbers."""

SMALLEST = 1e-9
"""The smallest bound of a bucket."""

_COPIES = 64
"""More jobs than that never scrape one pod."""

_EARLY_S = 5.0
"""How far in the future a sample may be: scrapes are stamped when they begin."""

_UNKNOWN_INTERVALS = 2
"""How many scrape intervals old a newest sample may be before what came after it counts as lost."""

_LEAST_SHARE = 0.8
"""The rest of the time is guessed from this share at least; of an old pod half a window may be missing in all."""

_NEEDED = ("last", "samples", "steps", "hole")
"""What must be known of every pod; that it was there before the window began only of old ones."""

FRESH = MetricsAvailability("Fresh", "metrics of every ready pod are current")


@dataclass(frozen=True, slots=True)
class QueryResults:
    """The results of queries as the API of Prometheus gives them: unchecked JSON."""

    clock: object
    results: Sequence[object]


@dataclass(frozen=True, slots=True)
class QueriedService:
    """The service that is queried: its windows, its pods, how fresh samples must be, and how the SLO is read."""

    windows: Windows
    stale_after_s: float
    pods: Mapping[str, float]
    """Pods that are ready, and when (Unix time) their router process began to count at 0."""
    percentile: int
    unit: Literal["session", "round"]
    target: float
    """Share of them that must meet the SLO."""
    ready_since: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Since when (Unix time) each pod is ready; one that is missing is ready since long ago."""

    def awaits(self, pod: str, now: float) -> bool:
        """Tell whether a pod became ready so lately that Prometheus need not have scraped it yet."""
        return now - self.ready_since.get(pod, 0.0) <= FIRST_METRICS_STALE_AFTERS * self.stale_after_s


@dataclass(frozen=True, slots=True)
class Row:
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float

    @property
    def figure(self) -> str:
        """Return which figure of the query it belongs to."""
        return self.labels.get(FIGURE, "")


def read(answers: QueryResults, subject: QueriedService, *, at: datetime) -> Observation:
    """Return what the answers tell; never raises."""
    whole, fast = float(subject.windows.whole), float(subject.windows.fast)
    try:
        now = _clock(answers.clock, at=at, limit_s=subject.stale_after_s)
        found = [row for result in answers.results for row in rows(result)]
        presence = [row for row in found if row.figure in PRESENCE]
        seen_s = _seen(presence, subject, now)
        found = _once(found, _copies(presence, subject))
        counts = _counts(found)
        load = _workload(counts, seen_s)
        slo = _service_level(counts, subject)
        pressure = _pressure(found)
        pods = _pods(counts)
    except NoMetricsError as error:
        return Observation(at=at, window_s=whole, fast_window_s=fast, availability=error.availability)
    return Observation(
        at=at,
        window_s=whole,
        fast_window_s=fast,
        availability=FRESH,
        workload=load,
        slo=slo,
        pressure=pressure,
        pods=pods,
    )


def rows(result: object) -> list[Row]:
    """Return the series of an instant vector.

    Raises:
        NoMetricsError: QueryFailed, when the result is none.
    """
    if not isinstance(result, list):
        raise NoMetricsError("QueryFailed", "Prometheus answered with something that is not a vector; check the URL")
    return [_row(item) for item in result]


def _row(item: object) -> Row:
    try:
        labels, (_, value) = item["metric"], item["value"]  # type: ignore[index]
        return Row({str(key): str(text) for key, text in labels.items()}, float(value))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise NoMetricsError("QueryFailed", "Prometheus answered with a malformed series; check the URL") from error


def _copies(presence: Sequence[Row], subject: QueriedService) -> float:
    """Return how many jobs or servers scrape each pod.

    Raises:
        NoMetricsError: Partial, when some pods are scraped by more than others: a sum over them is of nothing.
    """
    copies = {row.labels.get("pod", ""): row.value for row in presence if row.figure == "copies"}
    seen = {pod: copies[pod] for pod in subject.pods if pod in copies}
    odd = [pod for pod, count in seen.items() if not (1 <= count <= _COPIES)]
    if odd:
        raise NoMetricsError("NotANumber", f"how many jobs scrape {_names(odd)} is no number from 1 to {_COPIES}")
    most = max(seen.values(), default=1.0)
    fewer = [pod for pod, count in seen.items() if count != most]
    if fewer:
        raise NoMetricsError(
            "Partial",
            f"some pods are scraped {most:g} times and {_names(fewer)} fewer times; let one job scrape port 8080 of "
            "every pod (the chart's own Prometheus or a PodMonitor, not both)",
        )
    return most


def _once(found: Sequence[Row], copies: float) -> list[Row]:
    """Return the figures as one scrape of each pod tells them: sums over pods hold every copy."""
    if copies <= 1:
        return list(found)
    return [
        row if row.figure in PRESENCE or row.figure == "kv" else Row(row.labels, row.value / copies) for row in found
    ]


def _counts(found: Sequence[Row]) -> list[Row]:
    """Return the series that count something, all of them numbers from 0 on."""
    counts = [row for row in found if row.figure not in PRESENCE and row.figure not in GAUGES]
    for row in counts:
        if not 0 <= row.value <= LARGEST:
            raise NoMetricsError(
                "NotANumber",
                f"the figure {_shown(row.figure)} holds a value that is no count (NaN, infinite, huge or below 0); "
                "look at the recording or relabelling rules that change weft_router metrics",
            )
    return counts


def _clock(result: object, *, at: datetime, limit_s: float) -> float:
    try:
        now = float(result[1])  # type: ignore[index]
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        raise NoMetricsError("QueryFailed", "Prometheus did not tell its time; check the URL") from error
    if not abs(now - at.timestamp()) <= limit_s:
        raise NoMetricsError(
            "ClockSkew",
            "the clocks of Prometheus and of the operator differ by more than spec.planning.prometheus.staleAfter; "
            "synchronise the nodes' clocks",
        )
    return now


def _seen(found: Sequence[Row], subject: QueriedService, now: float) -> float:
    """Return over how many seconds of the window the service was seen.

    Raises:
        NoMetricsError: a pod is not seen, no longer, not yet long enough, or not all the time.
    """
    if not subject.pods:
        raise NoMetricsError("WaitingForMetrics", "no pod of the service is ready, so there is nothing to measure")
    figures: dict[str, dict[str, float]] = {}
    for row in found:
        figures.setdefault(row.figure, {})[row.labels.get("pod", "")] = row.value
    last = figures.get("last", {})
    unseen = [pod for pod in subject.pods if any(pod not in figures.get(name, {}) for name in _NEEDED)]
    if unseen and all(subject.awaits(pod, now) for pod in unseen):
        raise NoMetricsError(
            "WaitingForMetrics", "waiting for the first metrics of pods that became ready a moment ago"
        )
    if len(unseen) == len(subject.pods):
        raise NoMetricsError(
            "NoSeries",
            "Prometheus has no series weft_router_tasks with the labels namespace, service and pod of this service; "
            "let it scrape port 8080 of the pods, as the chart's PodMonitors do",
        )
    known = [pod for pod in subject.pods if pod not in unseen]
    doubtful = [pod for pod in known if not all(math.isfinite(figures[name][pod]) for name in _NEEDED)]
    if doubtful:
        raise NoMetricsError("NotANumber", f"the times of the samples of {_names(doubtful)} are no numbers")
    if any(last[pod] > now + _EARLY_S for pod in known):
        raise NoMetricsError("ClockSkew", "Prometheus holds samples of the future; synchronise the nodes' clocks")
    stale = [pod for pod in known if now - last[pod] > subject.stale_after_s]
    if len(stale) == len(subject.pods):
        raise NoMetricsError(
            "Stale",
            "the newest samples are older than spec.planning.prometheus.staleAfter; look at Prometheus' targets",
        )
    if unseen or stale:
        raise NoMetricsError(
            "Partial", f"ready pods that Prometheus does not see: {_names([*unseen, *stale])}; look at its targets"
        )
    return _seconds(subject, figures, now)


def _seconds(subject: QueriedService, figures: Mapping[str, Mapping[str, float]], now: float) -> float:
    whole, step = float(subject.windows.whole), subject.windows.step
    samples, steps, hole, before = (figures.get(name, {}) for name in ("samples", "steps", "hole", "before"))
    holes = [pod for pod in subject.pods if hole[pod] > max(subject.stale_after_s, 2 * step)]
    if holes:
        raise NoMetricsError(
            "Stale",
            f"within the window there were no samples of {_names(holes)} for longer than "
            "spec.planning.prometheus.staleAfter; this passes when the window does",
        )
    present: dict[str, float] = {}
    intervals: dict[str, float] = {}
    for pod, began in subject.pods.items():
        # At the border of two steps a window holds one more or one less.
        seen = min(whole, (steps[pod] + 1) * step)
        long_here = began < now - whole - subject.stale_after_s
        due = min(whole, now - began) - subject.stale_after_s
        if samples[pod] < 2 or seen <= 0 or (long_here and pod not in before) or seen < due:
            raise NoMetricsError(
                "TooFewSamples",
                f"collecting metrics: Prometheus has those of {pod} for a part of the window only; wait for its length",
            )
        intervals[pod] = seen / samples[pod]
        # What was counted in a hole at the beginning of the window is lost: increase() reaches over one interval.
        present[pod] = seen - max(0.0, hole[pod] - intervals[pod])
    old = before.keys() & subject.pods.keys()
    young = {pod: began for pod, began in subject.pods.items() if pod not in before}
    share = _share_seen(young, figures["last"], now, interval_s=min(intervals.values()))
    if before:
        return min((present[pod] for pod in old), default=whole) * share
    age = now - min(subject.pods.values())
    if age < whole / 2:
        raise NoMetricsError(
            "TooFewSamples", "collecting metrics: the service has served for less than half of the window"
        )
    # Counters of pods that began within the window count from 0, whenever they were first scraped.
    return min(whole, age) * share


def _share_seen(young: Mapping[str, float], last: Mapping[str, float], now: float, *, interval_s: float) -> float:
    """Return which share of their time the pods that began within the window were seen, of the worst of them.

    A counter that counts from 0 holds what was served up to its newest sample, and nothing of what came since then.

    Raises:
        NoMetricsError: Partial, when it is so little that the rest cannot be guessed from it.
    """
    share = 1.0
    for pod, began in young.items():
        lost = max(0.0, now - last[pod] - _UNKNOWN_INTERVALS * interval_s)
        seen = max(0.0, last[pod] - began)
        if lost and seen < _LEAST_SHARE * (seen + lost):
            raise NoMetricsError(
                "Partial", f"ready pods that Prometheus does not see: {_names([pod])}; look at its targets"
            )
        share = min(share, seen / (seen + lost) if lost else 1.0)
    return share


def _names(pods: Iterable[str]) -> str:
    ordered = sorted(pods)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(ordered[:3]) + more


def _workload(found: Sequence[Row], seen_s: float) -> ObservedWorkload:
    rounds = {row.labels.get("phase", ""): row.value for row in found if row.figure == "rounds"}
    first, later = rounds.get("first", 0.0), rounds.get("later", 0.0)
    index = _buckets(found, "index")
    for figure, metric, expected in (
        ("index", "weft_router_round_index", first + later),
        ("decode", "weft_router_decode_tokens", first + later),
        ("first_prompt", "weft_router_increment_tokens of first rounds", first),
        ("increment", "weft_router_increment_tokens of later rounds", later),
    ):
        _agree(metric, max(_buckets(found, figure).values(), default=0.0), expected)
    return ObservedWorkload(
        session_rate=first / seen_s,
        round_rate=(first + later) / seen_s,
        refused_rate=_sum(found, "refused") / seen_s,
        sessions=round(first),
        rounds=rounds_of_sessions("weft_router_round_index", index),
        first_prompt=_spread(found, "first_prompt", "weft_router_increment_tokens"),
        increment=_spread(found, "increment", "weft_router_increment_tokens"),
        decode=_spread(found, "decode", "weft_router_decode_tokens"),
        gap_s=_spread(found, "gap", "weft_router_round_gap_seconds"),
        sessions_lately=next((round(row.value) for row in found if row.figure == "rounds_lately"), None),
    )


def _spread(found: Sequence[Row], figure: str, metric: str) -> Spread | None:
    buckets = _buckets(found, figure)
    totals = [row.value for row in found if row.figure == f"{figure}_sum"]
    if buckets and not totals:
        raise NoMetricsError("Partial", f"{metric} came without its sum; Prometheus must keep {metric}_sum")
    return spread(metric, buckets, sum(totals))


def _agree(name: str, told: float, rounds: float) -> None:
    """Refuse figures of which one was dropped on its way: each round is counted in all of them at once."""
    if abs(told - rounds) > 5 + 0.25 * max(told, rounds):
        raise NoMetricsError(
            "Partial",
            f"{name} and weft_router_rounds_total do not tell of the same number of rounds; Prometheus must keep both "
            "with all of their series",
        )


def _service_level(found: Sequence[Row], subject: QueriedService) -> ObservedSlo:
    slow = [row for row in found if row.figure == "slow"]
    rounds = _tallies(row for row in slow if row.labels.get("objective") == "round")
    ttft = _tallies(row for row in slow if row.labels.get("objective") == "ttft")
    itl = _tallies(row for row in slow if row.labels.get("objective") == "itl")
    fast = _tallies(row for row in found if row.figure == "fast")
    sessions = _tallies(row for row in found if row.figure == "sessions")
    nothing = Tally()
    classes = tuple(
        ClassTally(
            name=name,
            fast=fast.get(name, nothing),
            slow=rounds.get(name, nothing),
            ttft=ttft.get(name, nothing),
            itl=itl.get(name, nothing),
            sessions=sessions.get(name, nothing),
        )
        for name in sorted({*rounds, *fast, *sessions})
    )
    by_session = subject.unit == "session" and sum(item.sessions.total for item in classes) >= LEAST_UNITS
    counted = [item.sessions if by_session else item.slow for item in classes]
    every = Tally(sum(item.good for item in counted), sum(item.bad for item in counted))
    share = subject.percentile / 100
    return ObservedSlo(
        percentile=subject.percentile,
        unit="session" if by_session else "round",
        target=subject.target,
        attainment=every.attained,
        classes=classes,
        ttft_first=latency("weft_router_ttft_seconds", _buckets(found, "ttft_first"), share),
        ttft_later=latency("weft_router_ttft_seconds", _buckets(found, "ttft_later"), share),
        itl=latency("weft_router_itl_seconds", _buckets(found, "itl"), share),
    )


def _tallies(found: Iterable[Row]) -> dict[str, Tally]:
    counts: dict[str, dict[str, float]] = {}
    for row in found:
        by_outcome = counts.setdefault(row.labels.get("class", ""), {})
        outcome = row.labels.get("outcome", "")
        by_outcome[outcome] = by_outcome.get(outcome, 0.0) + row.value
    tallies = {name: Tally(round(part.get("good", 0.0)), round(part.get("bad", 0.0))) for name, part in counts.items()}
    return {name: tally for name, tally in tallies.items() if tally.total}


def _pressure(found: Sequence[Row]) -> WorkerPressure:
    """Return what gauges say; one that is no number is not known, which is no reason to doubt the rest."""
    sane = [row for row in found if 0 <= row.value <= LARGEST]
    wait = latency("weft_router_queue_seconds", _buckets(sane, "wait"), 0.95)
    return WorkerPressure(
        queue=next((row.value for row in sane if row.figure == "queue"), None),
        sessions=next((row.value for row in sane if row.figure == "sessions_now"), None),
        queue_s=wait.value_s if wait is not None else None,
        kv_use={
            row.labels["component"]: min(1.0, row.value)
            for row in sane
            if row.figure == "kv" and row.labels.get("component") in ("prefill", "decode")
        },
    )


def _pods(found: Sequence[Row]) -> dict[str, PodTally]:
    """Return what each pod did while a plan is on trial."""
    by_pod: dict[str, list[Row]] = {}
    for row in found:
        if row.figure in ("pod_rounds", "pod_ttft", "pod_itl"):
            by_pod.setdefault(row.labels.get("pod", ""), []).append(row)
    return {pod: _pod(rows) for pod, rows in by_pod.items()}


def _pod(found: Sequence[Row]) -> PodTally:
    counts = {row.labels.get("outcome", ""): row.value for row in found if row.figure == "pod_rounds"}
    return PodTally(
        rounds=Tally(round(counts.get("good", 0.0)), round(counts.get("bad", 0.0))),
        ttft=_buckets(found, "pod_ttft"),
        itl=_buckets(found, "pod_itl"),
    )


def _buckets(found: Iterable[Row], figure: str) -> Buckets:
    try:
        buckets = {float(row.labels["le"]): row.value for row in found if row.figure == figure}
    except (KeyError, ValueError) as error:
        raise NoMetricsError(
            "Partial", f"the buckets of the figure {figure} have no bounds; Prometheus must keep le"
        ) from error
    if not all(SMALLEST <= bound <= LARGEST or bound == math.inf for bound in buckets):
        raise NoMetricsError("NotANumber", f"buckets of the figure {figure} have bounds that are no numbers above 0")
    return buckets


def _shown(figure: str) -> str:
    return figure[:32] or "(none)"


def _sum(found: Iterable[Row], figure: str) -> float:
    return sum(row.value for row in found if row.figure == figure)
