"""Where predicted times come from, how plans are made, and how workers are replaced."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from weft_core.durations import parse_duration
from weft_core.layouts import LayoutKind
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.capacity import Degree
from weft_operator.api.fields import Duration, Fraction, ObjectName

Seconds = Annotated[float, Field(ge=0, le=60)]


class ProfileRef(ApiModel):
    """A CostProfile in the service's namespace."""

    name: ObjectName
    """Name of the CostProfile."""


class Analytic(ApiModel):
    """Assumptions of the profile that is derived from the GPU's data sheet; the catalogue's values where absent."""

    compute: Fraction | None = None
    """Share of peak compute that prefill reaches."""
    attention: Fraction | None = None
    """Share of peak compute that attention reaches."""
    memory: Fraction | None = None
    """Share of memory bandwidth that decode reaches."""
    all_reduce_link: Fraction | None = None
    """Share of the scale-up link that an all-reduce reaches."""
    kv_link: Fraction | None = None
    """Share of the link that a KV transfer reaches."""
    memory_fraction: Fraction | None = None
    """Share of GPU memory for weights and KV; spec.engine.memoryFraction if absent."""
    prefill_overhead: Seconds | None = None
    """Seconds added to every prefill."""
    decode_overhead: Seconds | None = None
    """Seconds added to every decode step."""
    all_reduce_latency: Seconds | None = None
    """Seconds of one all-reduce over 2 GPUs."""
    all_reduce_growth: Annotated[float, Field(ge=0, le=10)] | None = None
    """Growth of that latency with each doubling of the degree."""
    kv_latency: Seconds | None = None
    """Seconds added to every KV transfer."""
    reserve_bytes_per_gpu: Annotated[int, Field(ge=0, le=10**12)] | None = None
    """Bytes per GPU kept for activations."""


class Profile(ApiModel):
    """Where predicted times come from."""

    ref: ProfileRef | None = None
    """A measured profile."""
    refs: (
        Annotated[
            list[ProfileRef],
            Field(min_length=1, max_length=16, json_schema_extra={"x-kubernetes-list-map-keys": ["name"]}),
        ]
        | None
    ) = None
    """Measured profiles, one for each GPU type of the pools."""
    analytic: Analytic | None = None
    """A profile derived from the model's dimensions and the GPU's data sheet."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(has(self.ref) ? 1 : 0) + (has(self.refs) ? 1 : 0) + (has(self.analytic) ? 1 : 0) == 1",
            "spec.profile: give exactly one of ref, refs and analytic",
            lambda p: sum(source is not None for source in (p.ref, p.refs, p.analytic)) == 1,
        ),
        Rule(
            None,  # the list is keyed by name
            "spec.profile.refs: names a CostProfile twice; remove one",
            lambda p: len({item.name for item in p.refs or ()}) == len(p.refs or ()),
        ),
    )


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


Ratio = Annotated[float, Field(gt=0, le=1024)]


class WorkerRatio(ApiModel):
    """Prefill workers for each decode worker."""

    min: Ratio | None = None
    """Fewest."""
    max: Ratio | None = None
    """Most."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.min) || !has(self.max) || self.min <= self.max",
            "spec.planning.ratio: min is above max; lower min or raise max",
            lambda r: r.min is None or r.max is None or r.min <= r.max,
        ),
    )


class DegreePair(ApiModel):
    """Degrees of a prefill and a decode worker that may exchange KV."""

    prefill: Degree
    """Degree of the prefill worker."""
    decode: Degree
    """Degree of the decode worker."""


class Planning(ApiModel):
    """How plans are made."""

    objective: Literal["latency", "cost"] = "latency"
    """latency holds the SLO at the highest load; cost takes the cheapest plan that holds it with headroom."""
    mode: Literal["Auto", "Off"] = "Auto"
    """Auto plans anew when the spec changes; Off keeps the plan in force, and makes one only where there is none."""
    layouts: Annotated[
        list[LayoutKind], Field(min_length=1, max_length=4, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = ["disaggregated"]  # noqa: RUF012 - pydantic copies it
    """Layouts to choose from: disaggregated, and colocated, whose workers all prefill for their own sessions."""
    mixed_degrees: bool | None = None
    """Whether workers of one role may differ in degree and pool; absent, they may where there are several pools."""
    degree_pairs: Annotated[list[DegreePair], Field(min_length=1, max_length=64)] | None = None
    """Pairs of degrees that may exchange KV; absent, what is known of the engine: in vllm one divides the other."""
    prefill: Bounds = Bounds()
    """Bounds on prefill workers; a colocated layout has none."""
    decode: Bounds = Bounds()
    """Bounds on decode workers."""
    ratio: WorkerRatio | None = None
    """Bounds on prefill workers for each decode worker."""
    budget_per_hour: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Most that all GPUs may cost for an hour; every pool needs a pricePerGpuHour."""
    headroom: Annotated[float, Field(ge=0, le=10)] = 0.2
    """Objective cost: share of load beyond the workload at which the SLO must still hold."""
    min_improvement: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share by which another layout must be better than the one in force to replace it."""
    prediction_error: Annotated[float, Field(ge=0, le=2)] = 0
    """How far predicted prefill times may be off, as the sigma of a lognormal (0.3: a third); 0 trusts the profile."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of the planner; the same inputs and seed give the same plan."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.layouts.all(l, l in ['disaggregated', 'colocated'])",
            "spec.planning.layouts: symmetric and hybrid layouts are only advised yet; use disaggregated and colocated",
            lambda p: set(p.layouts) <= {"disaggregated", "colocated"},
        ),
        Rule(
            None,  # the list is a set
            "spec.planning.layouts: names a layout twice; remove one",
            lambda p: len(set(p.layouts)) == len(p.layouts),
        ),
    )


class Rollout(ApiModel):
    """How workers are replaced."""

    drain_timeout: Duration = "60s"
    """How long a worker that stops may finish its live requests."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "duration(self.drainTimeout) >= duration('1s') && duration(self.drainTimeout) <= duration('1h')",
            "spec.rollout.drainTimeout: must be between 1s and 1h",
            lambda r: 1 <= parse_duration(r.drain_timeout) <= 3600,
        ),
    )
