"""SLO attainment, latencies, load of the workers and a canary's pods, from the series of a window."""

from collections.abc import Iterable, Sequence

from weft_operator.metrics.histogram import latency
from weft_operator.metrics.observation import ClassTally, ObservedSlo, PodTally, Tally, WorkerPressure
from weft_operator.metrics.query_target import QueriedService
from weft_operator.metrics.series import LARGEST, Series, buckets_of
from weft_operator.metrics.trigger_queries import TRIGGER

MIN_UNITS = 20
"""Sessions or rounds below which a share is not meaningful."""


def slo_of(found: Sequence[Series], subject: QueriedService) -> ObservedSlo:
    """Return SLO attainment by class and in all, and latencies at the SLO's percentile."""
    slow = [one for one in found if one.figure == "slow"]
    rounds = _tallies(one for one in slow if one.labels.get("objective") == "round")
    ttft = _tallies(one for one in slow if one.labels.get("objective") == "ttft")
    itl = _tallies(one for one in slow if one.labels.get("objective") == "itl")
    fast = _tallies(one for one in found if one.figure == "fast")
    sessions = _tallies(one for one in found if one.figure == "sessions")
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
    by_session = subject.unit == "session" and sum(item.sessions.total for item in classes) >= MIN_UNITS
    counted = [item.sessions if by_session else item.slow for item in classes]
    every = Tally(sum(item.good for item in counted), sum(item.bad for item in counted))
    share = subject.percentile / 100
    return ObservedSlo(
        percentile=subject.percentile,
        unit="session" if by_session else "round",
        target=subject.target,
        attainment=every.attained,
        classes=classes,
        ttft_first=latency("weft_router_ttft_seconds", buckets_of(found, "ttft_first"), share),
        ttft_later=latency("weft_router_ttft_seconds", buckets_of(found, "ttft_later"), share),
        itl=latency("weft_router_itl_seconds", buckets_of(found, "itl"), share),
    )


def _tallies(found: Iterable[Series]) -> dict[str, Tally]:
    counts: dict[str, dict[str, float]] = {}
    for one in found:
        by_outcome = counts.setdefault(one.labels.get("class", ""), {})
        outcome = one.labels.get("outcome", "")
        by_outcome[outcome] = by_outcome.get(outcome, 0.0) + one.value
    tallies = {name: Tally(round(part.get("good", 0.0)), round(part.get("bad", 0.0))) for name, part in counts.items()}
    return {name: tally for name, tally in tallies.items() if tally.total}


def pressure_of(found: Sequence[Series]) -> WorkerPressure:
    """Return the load of the workers; invalid values are ignored, because they do not affect the rest."""
    valid = [one for one in found if 0 <= one.value <= LARGEST]
    wait = latency("weft_router_queue_seconds", buckets_of(valid, "wait"), 0.95)
    return WorkerPressure(
        queue=next((one.value for one in valid if one.figure == "queue"), None),
        sessions=next((one.value for one in valid if one.figure == "sessions_now"), None),
        queue_s=wait.value_s if wait is not None else None,
        kv_use={
            one.labels["component"]: min(1.0, one.value)
            for one in valid
            if one.figure == "kv" and one.labels.get("component") in ("prefill", "decode")
        },
    )


def triggers_of(found: Sequence[Series]) -> dict[str, float]:
    """Return the means of triggers by metric; one without a sample, or that is no number, is absent."""
    return {
        one.figure.removeprefix(TRIGGER): one.value
        for one in found
        if one.figure.startswith(TRIGGER) and 0 <= one.value <= LARGEST
    }


def pods_of(found: Sequence[Series]) -> dict[str, PodTally]:
    """Return the results of each pod since the start of a canary."""
    by_pod: dict[str, list[Series]] = {}
    for one in found:
        if one.figure in ("pod_rounds", "pod_ttft", "pod_itl"):
            by_pod.setdefault(one.labels.get("pod", ""), []).append(one)
    return {pod: _pod(series) for pod, series in by_pod.items()}


def _pod(found: Sequence[Series]) -> PodTally:
    counts = {one.labels.get("outcome", ""): one.value for one in found if one.figure == "pod_rounds"}
    return PodTally(
        rounds=Tally(round(counts.get("good", 0.0)), round(counts.get("bad", 0.0))),
        ttft=buckets_of(found, "pod_ttft"),
        itl=buckets_of(found, "pod_itl"),
    )
