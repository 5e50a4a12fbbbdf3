"""What was observed of a running service over a window: figures with their sample counts, or why there are none.

A figure that is not known is None and never 0: nothing may shrink because nothing is seen.
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
"""Why nothing is known; each is a reason of the condition MetricsAvailable."""

AvailabilityReason = Literal["Fresh"] | UnavailableReason

STARTING: tuple[UnavailableReason, ...] = ("NotYetObserved", "WaitingForMetrics", "TooFewSamples")
"""Reasons of a service whose metrics are on their way: nothing is known, and nothing is wrong."""


@dataclass(frozen=True, slots=True)
class MetricsAvailability:
    """Whether metrics of the service can be used, and why not; ``message`` ends with the remedy."""

    reason: AvailabilityReason
    message: str

    @property
    def seen(self) -> bool:
        """Tell whether the figures may be used."""
        return self.reason == "Fresh"


class NoMetricsError(Exception):
    """Nothing can be concluded; ``availability`` says why."""

    def __init__(self, reason: UnavailableReason, message: str) -> None:
        super().__init__(message)
        self.availability = MetricsAvailability(reason, message)


@dataclass(frozen=True, slots=True)
class Spread:
    """How a figure was distributed over a window; quantiles are straight within a bucket.

    ``weights[i]`` of the ``count`` samples lay in (edges[i], edges[i + 1]]: a histogram as ``spec.workload`` takes it.
    """

    mean: float
    sd: float
    """Standard deviation, as far as buckets tell."""
    p50: float
    p95: float
    count: int
    edges: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ObservedWorkload:
    """What arrived in the window; rates are a second. A spread is None where no round told of it (count 0)."""

    session_rate: float
    """Sessions whose first round was served."""
    round_rate: float
    """Rounds served."""
    refused_rate: float
    """Requests refused for lack of capacity, not because of their sender's limits: the load was higher by these."""
    sessions: int
    """First rounds that were counted: the samples behind ``session_rate``."""
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
    sessions_lately: int | None = None
    """First rounds of the fast window, which the end of a whole window of other traffic does not dilute."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How many met a threshold and how many missed it."""

    good: int = 0
    bad: int = 0

    @property
    def total(self) -> int:
        """Return how many were counted."""
        return self.good + self.bad

    @property
    def attained(self) -> float | None:
        """Return the share that met it, None where nothing was counted."""
        return self.good / self.total if self.total else None


@dataclass(frozen=True, slots=True)
class ClassTally:
    """One class of sessions held against its SLO."""

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
    """Sessions that ended in the window; a session ends when its client says so or it is forgotten."""


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency at the SLO's percentile, in seconds, and the samples behind it."""

    value_s: float
    count: int


@dataclass(frozen=True, slots=True)
class ObservedSlo:
    """How the promise was kept; latencies are at ``percentile`` over the whole window, None without samples."""

    percentile: int
    unit: Literal["session", "round"]
    """What ``attainment`` counts: as spec.slo.unit says, but rounds while too few sessions have ended."""
    target: float
    """Share that must meet the SLO: spec.slo.attainment."""
    attainment: float | None
    """Share that met the SLO in the whole window, over all classes."""
    classes: tuple[ClassTally, ...]
    """Classes with at least one streamed round, by name."""
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
    """How full the workers are now; None where no worker tells."""

    queue: float | None = None
    """Prefill tasks that wait or run, on all workers."""
    queue_s: float | None = None
    """P95 of the wait in prefill queues over the window, seconds."""
    sessions: float | None = None
    """Sessions that decode workers remember."""
    kv_use: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Largest share of KV cache in use on one worker, 0 to 1, by role."""


@dataclass(frozen=True, slots=True)
class PodTally:
    """What one decode pod did since a plan is on trial; buckets are in seconds, their counts rising."""

    rounds: Tally
    ttft: Mapping[float, float]
    itl: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Observation:
    """The metrics snapshot of one service. Without metrics workload and slo are None, and nothing may be concluded."""

    at: datetime
    """When the look ended, by the operator's clock."""
    window_s: float
    """The whole (slow) window: workload, latencies and slow tallies are over it."""
    fast_window_s: float
    availability: MetricsAvailability
    workload: ObservedWorkload | None = None
    slo: ObservedSlo | None = None
    pressure: WorkerPressure = WorkerPressure()
    canary_since: datetime | None = None
    """Since when a plan is on trial, None where none is."""
    pods: Mapping[str, PodTally] = field(default_factory=lambda: MappingProxyType({}))
    """What each pod did since then; one that served no round is not there."""
