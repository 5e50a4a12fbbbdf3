"""Bounds on workers, schedules with other bounds, and scale to zero."""

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, StringConstraints

from weft_core.durations import parse_duration
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import DnsLabel, Duration

DAY_S = 86400.0


class Bounds(ApiModel):
    """How many workers a role may have."""

    min: Annotated[int, Field(ge=1, le=1024)] = 1
    """Fewest workers."""
    max: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Most workers; the GPU budget decides if absent."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.max) || self.min <= self.max",
            "spec.planning: min is above max; lower min or raise max",
            lambda b: b.max is None or b.min <= b.max,
        ),
    )


Day = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
DAYS: tuple[Day, ...] = get_args(Day)
"""In the order of datetime.weekday()."""

Clock = Annotated[str, StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$", max_length=5)]
"""A time of day: 08:30."""


class Schedule(ApiModel):
    """Times of the day with other bounds."""

    name: DnsLabel
    """Unique name, for status and messages."""
    days: Annotated[list[Day], Field(min_length=1, max_length=7, json_schema_extra={"x-kubernetes-list-type": "set"})]
    """Days on which it begins."""
    begin: Clock
    """When it begins."""
    end: Clock
    """When it ends: on the next day where that is no later than begin, a whole day where they are equal."""
    time_zone: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$", max_length=64)
    ] = "UTC"
    """The time zone of begin and end, daylight saving included: Europe/Berlin."""
    prefill: Bounds | None = None
    """Bounds on prefill workers in place of spec.planning.prefill."""
    decode: Bounds | None = None
    """Bounds on decode workers in place of spec.planning.decode."""
    gpus: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """GPUs that a plan may use in place of spec.capacity.gpus; no more than these."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.prefill) || has(self.decode) || has(self.gpus)",
            "spec.planning.schedules: sets no bound in these hours; give prefill, decode or gpus",
            lambda s: s.prefill is not None or s.decode is not None or s.gpus is not None,
        ),
    )


Schedules = Annotated[list[Schedule], Field(max_length=16, json_schema_extra={"x-kubernetes-list-map-keys": ["name"]})]


class ScaleToZero(ApiModel):
    """Remove all workers while there are no requests; the first request starts them and waits for them."""

    after: Duration = "30m"
    """How long there must be no request, by metrics without a gap, before the service is scaled to zero."""
    hold: Duration = "60s"
    """Longest wait of a request at the coordinator for workers; then it gets 503 with Retry-After. Best as long as a
    worker takes to start, if clients wait so long."""
    max_held: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Most requests that wait at one coordinator pod; others get 503 at once."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "duration(self.after) >= duration('1m') && duration(self.after) <= duration('24h')",
            "spec.planning.scaleToZero.after: must be between 1m and 24h; 30m is common",
            lambda s: 60 <= parse_duration(s.after) <= DAY_S,
        ),
        Rule(
            "duration(self.hold) >= duration('1s') && duration(self.hold) <= duration('1h')",
            "spec.planning.scaleToZero.hold: must be between 1s and 1h; a little more than a worker takes to start",
            lambda s: 1 <= parse_duration(s.hold) <= 3600,
        ),
    )
