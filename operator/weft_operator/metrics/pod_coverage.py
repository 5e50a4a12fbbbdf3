"""Whether every ready pod was scraped throughout the window, and for how many of its seconds.

The load must never look smaller than it is because samples are missing. So every pod that serves needs current samples
without a gap, and rates are computed over the time that was covered.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from weft_operator.metrics.observation import NoMetricsError
from weft_operator.metrics.queries import PRESENCE
from weft_operator.metrics.query_target import QueriedService
from weft_operator.metrics.series import Series
from weft_operator.metrics.trigger_queries import UNCOUNTED

_MAX_COPIES = 64
"""No pod is scraped by more jobs than this."""

_EARLY_S = 5.0
"""How far in the future a sample may be: scrapes have the time of their start."""

_UNKNOWN_INTERVALS = 2
"""Age of a newest sample, in scrape intervals, from which what came after it counts as lost."""

_MIN_SHARE = 0.8
"""Least share of a young pod's time that must be covered to extrapolate to the rest."""

_NEEDED = ("last", "samples", "steps", "hole")
"""Figures that are needed of every pod; ``before`` is needed of pods that are older than the window."""


def scrape_copies(presence: Sequence[Series], subject: QueriedService) -> float:
    """Return the number of jobs or servers that scrape each pod.

    Raises:
        NoMetricsError: Partial, when the number differs between pods, so that sums over pods are wrong.
    """
    copies = {row.labels.get("pod", ""): row.value for row in presence if row.figure == "copies"}
    known = {pod: copies[pod] for pod in subject.pods if pod in copies}
    invalid = [pod for pod, count in known.items() if not (1 <= count <= _MAX_COPIES)]
    if invalid:
        raise NoMetricsError(
            "NotANumber", f"the number of jobs that scrape {_names(invalid)} is not from 1 to {_MAX_COPIES}"
        )
    most = max(known.values(), default=1.0)
    fewer = [pod for pod, count in known.items() if count != most]
    if fewer:
        raise NoMetricsError(
            "Partial",
            f"some pods are scraped {most:g} times and {_names(fewer)} fewer times; let one job scrape port 8080 of "
            "every pod (the chart's own Prometheus or a PodMonitor, not both)",
        )
    return most


def without_copies(found: Sequence[Series], copies: float) -> list[Series]:
    """Return the series as with one scrape of each pod: sums over pods contain every copy."""
    if copies <= 1:
        return list(found)
    return [
        one if one.figure in {*PRESENCE, *UNCOUNTED, "kv"} else Series(one.labels, one.value / copies) for one in found
    ]


def covered_seconds(found: Sequence[Series], subject: QueriedService, now: float) -> float:
    """Return the number of seconds of the window for which the service has samples.

    Raises:
        NoMetricsError: a pod has no samples, old ones, too few yet, or a gap in them.
    """
    if not subject.pods:
        raise NoMetricsError("WaitingForMetrics", "no pod of the service is ready, so there is nothing to measure")
    figures: dict[str, dict[str, float]] = {}
    for one in found:
        figures.setdefault(one.figure, {})[one.labels.get("pod", "")] = one.value
    last = figures.get("last", {})
    missing = [pod for pod in subject.pods if any(pod not in figures.get(name, {}) for name in _NEEDED)]
    if missing and all(subject.awaits(pod, now) for pod in missing):
        raise NoMetricsError(
            "WaitingForMetrics", "waiting for the first metrics of pods that became ready a moment ago"
        )
    if len(missing) == len(subject.pods):
        raise NoMetricsError(
            "NoSeries",
            "Prometheus has no series weft_router_tasks with the labels namespace, service and pod of this service; "
            "let it scrape port 8080 of the pods, as the chart's PodMonitors do",
        )
    known = [pod for pod in subject.pods if pod not in missing]
    invalid = [pod for pod in known if not all(math.isfinite(figures[name][pod]) for name in _NEEDED)]
    if invalid:
        raise NoMetricsError("NotANumber", f"the times of the samples of {_names(invalid)} are no numbers")
    if any(last[pod] > now + _EARLY_S for pod in known):
        raise NoMetricsError("ClockSkew", "Prometheus holds samples of the future; synchronise the nodes' clocks")
    stale = [pod for pod in known if now - last[pod] > subject.stale_after_s]
    if len(stale) == len(subject.pods):
        raise NoMetricsError(
            "Stale",
            "the newest samples are older than spec.planning.prometheus.staleAfter; look at Prometheus' targets",
        )
    if missing or stale:
        raise NoMetricsError(
            "Partial", f"ready pods that Prometheus does not see: {_names([*missing, *stale])}; look at its targets"
        )
    return _covered(subject, figures, now)


def _covered(subject: QueriedService, figures: Mapping[str, Mapping[str, float]], now: float) -> float:
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
    for pod, started in subject.pods.items():
        # A window has one step more or less, depending on its phase.
        seen = min(whole, (steps[pod] + 1) * step)
        is_old = started < now - whole - subject.stale_after_s
        due = min(whole, now - started) - subject.stale_after_s
        if samples[pod] < 2 or seen <= 0 or (is_old and pod not in before) or seen < due:
            raise NoMetricsError(
                "TooFewSamples",
                f"collecting metrics: Prometheus has those of {pod} for a part of the window only; wait for its length",
            )
        intervals[pod] = seen / samples[pod]
        # Counts within a gap at the start of the window are lost: increase() reaches over one interval.
        present[pod] = seen - max(0.0, hole[pod] - intervals[pod])
    old = before.keys() & subject.pods.keys()
    young = {pod: started for pod, started in subject.pods.items() if pod not in before}
    share = _covered_share(young, figures["last"], now, interval_s=min(intervals.values()))
    if before:
        return min((present[pod] for pod in old), default=whole) * share
    age = now - min(subject.pods.values())
    if age < whole / 2:
        raise NoMetricsError(
            "TooFewSamples", "collecting metrics: the service has served for less than half of the window"
        )
    # Counters of pods that started within the window start at 0, whenever they were first scraped.
    return min(whole, age) * share


def _covered_share(young: Mapping[str, float], last: Mapping[str, float], now: float, *, interval_s: float) -> float:
    """Return the covered share of the time of pods that started within the window: the least of them.

    A counter from 0 has everything up to its newest sample and nothing since then.

    Raises:
        NoMetricsError: Partial, when the share is too small to extrapolate.
    """
    share = 1.0
    for pod, started in young.items():
        lost = max(0.0, now - last[pod] - _UNKNOWN_INTERVALS * interval_s)
        seen = max(0.0, last[pod] - started)
        if lost and seen < _MIN_SHARE * (seen + lost):
            raise NoMetricsError(
                "Partial", f"ready pods that Prometheus does not see: {_names([pod])}; look at its targets"
            )
        share = min(share, seen / (seen + lost) if lost else 1.0)
    return share


def _names(pods: Iterable[str]) -> str:
    ordered = sorted(pods)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(ordered[:3]) + more
