"""The metrics snapshot of a running service over a window: figures with their sample counts, or why there are none.

An unknown figure is None and never 0: missing metrics must not shrink a service.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Literal

UnavailableReason = Literal[
    "NotConfigured",
    "NotYetObserved",
    "WaitingForMetrics",
    "PrometheusUnreachable",
    "PrometheusUnauthorized",
    "QueryFailed",
    "NoSeries",
    "Stale",
    "Partial",
    "NotANumber",
    "TooFewSamples",
    "ClockSkew",
]
"""Why there are no usable metrics; each is a reason of the condition MetricsAvailable."""

AvailabilityReason = Literal["Fresh"] | UnavailableReason

STARTING: tuple[UnavailableReason, ...] = ("NotYetObserved", "WaitingForMetrics", "TooFewSamples")
"""Reasons of a service whose metrics are still to come, which is no fault."""

Demand = Literal["None", "Waiting", "Unknown"]
"""Whether requests wait for a service at zero, as coordinators publish it; Unknown after failed reads."""


@dataclass(frozen=True, slots=True)
class MetricsAvailability:
    """Whether the metrics of the service can be used, or why not; ``message`` ends with the remedy."""

    reason: AvailabilityReason
    message: str

    @property
    def seen(self) -> bool:
        """Return whether the figures may be used."""
        return self.reason == "Fresh"


class NoMetricsError(Exception):
    """Report that there are no usable metrics; ``availability`` says why."""

    def __init__(self, reason: UnavailableReason, message: str) -> None:
        super().__init__(message)
        self.availability = MetricsAvailability(reason, message)


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of a figure over a window; quantiles are interpolated linearly within a bucket.

    ``weights[i]`` of the ``count`` samples lay in (edges[i], edges[i + 1]]: a histogram as ``spec.workload`` takes it.
    """

    mean: float
    sd: float
    """Standard deviation, estimated from buckets."""
    p50: float
    p95: float
    count: int
    edges: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ObservedWorkload:
    """The traffic of the window; rates are per second. A spread is None without samples."""

    session_rate: float
    """Sessions whose first round arrived; served ones where these are more."""
    round_rate: float
    """Rounds that arrived; served ones where these are more."""
    refused_rate: float
    """Requests refused for lack of capacity (not by their sender's limits), which are part of the offered load."""
    sessions: int
    """Number of first rounds: the samples of ``session_rate``."""
    rounds: Spread | None
    """Rounds of a session, from how many sessions reached each; the count is of sessions."""
    first_prompt: Spread | None
    """Tokens."""
    increment: Spread | None
    """New tokens of a later round."""
    decode: Spread | None
    """Tokens of an answer."""
    gap_s: Spread | None
    """Seconds between an answer and the session's next round."""
    fast_sessions: int | None = None
    """First rounds that arrived in the fast window, which reacts faster to a changed rate."""
    fast_lengths: Mapping[str, Spread] = field(default_factory=lambda: MappingProxyType({}))
    """``first_prompt``, ``increment`` and ``decode`` of the fast window, those with samples."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of samples that met and that missed a threshold."""

    good: int = 0
    bad: int = 0

    @property
    def total(self) -> int:
        """Return the number of samples."""
        return self.good + self.bad

    @property
    def attained(self) -> float | None:
        """Return the share that met the threshold, None without samples."""
        return self.good / self.total if self.total else None


@dataclass(frozen=True, slots=True)
class ClassTally:
    """SLO attainment of one class of sessions."""

    name: str
    fast: Tally
    """Rounds that met both thresholds, in the fast window."""
    slow: Tally
    """The same in the whole window."""
    ttft: Tally
    """Rounds that met the TTFT, in the whole window."""
    itl: Tally
    """Rounds that met the ITL, in the whole window."""
    sessions: Tally
    """Sessions that ended in the window, by their client or by a timeout."""


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency at the SLO's percentile, in seconds, and its number of samples."""

    value_s: float
    count: int


@dataclass(frozen=True, slots=True)
class ObservedSlo:
    """SLO attainment; latencies are at ``percentile`` over the whole window, None without samples."""

    percentile: int
    unit: Literal["session", "round"]
    """What ``attainment`` counts: spec.slo.unit, but rounds while too few sessions have ended."""
    target: float
    """Share that must meet the SLO: spec.slo.attainment."""
    attainment: float | None
    """Share that met the SLO in the whole window, over all classes."""
    classes: tuple[ClassTally, ...]
    """Classes with at least one round, by name."""
    ttft_first: Latency | None
    ttft_later: Latency | None
    itl: Latency | None
    """Gaps between tokens."""

    @property
    def fast(self) -> Tally:
        """Return the rounds of all classes in the fast window."""
        return Tally(sum(item.fast.good for item in self.classes), sum(item.fast.bad for item in self.classes))

    @property
    def slow(self) -> Tally:
        """Return the rounds of all classes in the whole window."""
        return Tally(sum(item.slow.good for item in self.classes), sum(item.slow.bad for item in self.classes))


@dataclass(frozen=True, slots=True)
class WorkerPressure:
    """The current load of the workers; None where there are no samples."""

    queue: float | None = None
    """Prefill tasks that wait or run on all workers."""
    queue_s: float | None = None
    """P95 of the wait in prefill queues over the window, seconds."""
    sessions: float | None = None
    """Sessions that are bound to decode workers."""
    kv_use: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Largest share of KV cache in use on one worker, 0 to 1, by role."""


@dataclass(frozen=True, slots=True)
class PodTally:
    """The results of one decode pod since the start of a canary; buckets (seconds) are cumulative."""

    rounds: Tally
    ttft: Mapping[float, float]
    itl: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Observation:
    """The metrics snapshot of one service; ``workload`` and ``slo`` are None where metrics are not available."""

    at: datetime
    """When the queries ended, by the operator's clock."""
    window_s: float
    """The whole (slow) window: workload, latencies and slow tallies are over it."""
    fast_window_s: float
    availability: MetricsAvailability
    workload: ObservedWorkload | None = None
    slo: ObservedSlo | None = None
    pressure: WorkerPressure = WorkerPressure()
    canary_since: datetime | None = None
    """When the canary started, None without one."""
    pods: Mapping[str, PodTally] = field(default_factory=lambda: MappingProxyType({}))
    """Results by pod since then; pods without a served round are absent."""
    triggers: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Means of spec.planning.triggers by metric, each over its window; unknown ones are absent."""
