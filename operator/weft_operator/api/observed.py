"""``status.observed``: the traffic and SLO attainment of the running service, from Prometheus."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

from typing import Annotated, Literal

from pydantic import Field

from weft_operator.api.base import ApiModel
from weft_operator.api.fields import ShortText


class ObservedSpread(ApiModel):
    """Distribution of a figure."""

    mean: float
    """Mean."""
    p50: float
    """Median."""
    p95: float
    """P95."""
    count: int
    """Number of samples."""


class ObservedWorkloadStatus(ApiModel):
    """Traffic; figures without samples are absent."""

    session_rate: float
    """New sessions per second: arrivals, or served first rounds where these are more."""
    round_rate: float
    """Rounds per second, counted likewise."""
    refused_rate: float
    """Requests per second refused for lack of capacity."""
    sessions: int
    """New sessions in the window."""
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
    """Number of samples."""


class ObservedClass(ApiModel):
    """SLO attainment of one class, as shares of its rounds."""

    name: ShortText
    """The class."""
    count: int
    """Rounds in the window."""
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
    """SLO attainment."""

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


class ObservedTrigger(ApiModel):
    """A load of the workers that spec.planning.triggers names."""

    metric: ShortText
    """Its metric."""
    value: float
    """Its mean over the trigger's window."""


class ObservedStatus(ApiModel):
    """Metrics of the running service; only metricsReason and window where there are none."""

    metrics_reason: ShortText
    """Fresh, or why there are no current metrics: the reason of the condition MetricsAvailable."""
    window: ShortText
    """Length of the window of the figures."""
    at: Annotated[str | None, Field(json_schema_extra={"format": "date-time"})] = None
    """When the figures were queried; similar newer ones do not replace them."""
    workload: ObservedWorkloadStatus | None = None
    """Traffic."""
    slo: ObservedSloStatus | None = None
    """SLO attainment."""
    triggers: Annotated[
        list[ObservedTrigger], Field(max_length=5, json_schema_extra={"x-kubernetes-list-map-keys": ["metric"]})
    ] = []
    """Loads of the workers that spec.planning.triggers names; those without metrics are absent."""
