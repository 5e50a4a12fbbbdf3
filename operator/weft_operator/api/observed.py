"""What the status says of the running service: its traffic and how its SLO was kept, as Prometheus tells it."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

from typing import Annotated, Literal

from pydantic import Field

from weft_operator.api.base import ApiModel
from weft_operator.api.fields import ShortText


class ObservedSpread(ApiModel):
    """How a figure was distributed."""

    mean: float
    """Mean."""
    p50: float
    """Median."""
    p95: float
    """P95."""
    count: int
    """Samples behind it."""


class ObservedWorkloadStatus(ApiModel):
    """What arrived; figures without samples are absent."""

    session_rate: float
    """New sessions per second."""
    round_rate: float
    """Rounds per second."""
    refused_rate: float
    """Requests per second that were refused for lack of capacity."""
    sessions: int
    """New sessions that were counted."""
    rounds: ObservedSpread | None = None
    """Rounds of a session."""
    first_prompt: ObservedSpread | None = None
    """Tokens of a session's first prompt."""
    increment: ObservedSpread | None = None
    """New tokens of later rounds."""
    decode: ObservedSpread | None = None
    """Tokens of an answer."""
    gap: ObservedSpread | None = None
    """Seconds between an answer and the next round."""


class ObservedLatency(ApiModel):
    """A latency at the SLO's percentile."""

    value: float
    """Seconds."""
    count: int
    """Samples behind it."""


class ObservedClass(ApiModel):
    """How the SLO of one class was kept, as shares of its streamed rounds."""

    name: ShortText
    """The class."""
    count: int
    """Rounds that were counted."""
    attainment: float | None = None
    """Share that met both thresholds."""
    recent: float | None = None
    """The same over the last fifth of the window."""
    ttft: float | None = None
    """Share that met the TTFT."""
    itl: float | None = None
    """Share that met the ITL."""
    session_attainment: float | None = None
    """Share of ended sessions that met the SLO."""


class ObservedSloStatus(ApiModel):
    """How the SLO was kept."""

    percentile: int
    """Percentile of the latencies: spec.slo.percentile."""
    unit: Literal["session", "round"]
    """What attainment counts: spec.slo.unit, but rounds while few sessions have ended."""
    attainment: float | None = None
    """Share that met the SLO, over all classes."""
    classes: Annotated[list[ObservedClass], Field(max_length=64)] = []
    """Each class with rounds."""
    ttft_first: ObservedLatency | None = None
    """TTFT of first rounds."""
    ttft_later: ObservedLatency | None = None
    """TTFT of later rounds."""
    itl: ObservedLatency | None = None
    """Gaps between tokens."""


class ObservedStatus(ApiModel):
    """What the operator last saw of the running service; only metricsReason and window without current metrics."""

    metrics_reason: ShortText
    """Fresh, or why there are no current metrics: the reason of the condition MetricsAvailable."""
    window: ShortText
    """Over how long the figures are."""
    at: Annotated[str | None, Field(json_schema_extra={"format": "date-time"})] = None
    """When these figures were taken; newer ones that say the same do not take their place."""
    workload: ObservedWorkloadStatus | None = None
    """What arrived."""
    slo: ObservedSloStatus | None = None
    """How the SLO was kept."""
