"""Where predicted times come from, how plans are made, and how workers are replaced."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from weft_core.durations import parse_duration
from weft_core.layouts import LayoutKind
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.canary import Canary
from weft_operator.api.capacity import Degree
from weft_operator.api.fields import Duration, Fraction, ObjectName
from weft_operator.api.prometheus import Prometheus
from weft_operator.api.scaling import DAY_S, Bounds, ScaleToZero, Schedules
from weft_operator.api.triggers import Triggers
from weft_planner.silicon.systems import VERSION, Backend, System

Seconds = Annotated[float, Field(ge=0, le=60)]


class ProfileRef(ApiModel):
    """A CostProfile in the service's namespace."""

    name: ObjectName
    """Name of the CostProfile."""


class Analytic(ApiModel):
    """Assumptions of the profile that is derived from the GPU's data sheet; the catalogue's values where absent."""

    compute: Fraction | None = None
    """Share of peak compute that the matrices of all tokens reach."""
    expert_compute: Fraction | None = None
    """Share of the 16-bit peak that routed experts reach."""
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
    prefill_layer: Seconds | None = None
    """Seconds that a layer of a prefill takes beside its work."""
    decode_layer: Seconds | None = None
    """Seconds that a layer of a decode step takes beside its work."""
    expert_layer: Seconds | None = None
    """Seconds that routed experts add to these in each of their layers."""
    sparse_layer: Seconds | None = None
    """Seconds that sparse attention adds in each of its layers where there are new tokens of a prompt."""
    all_reduce_latency: Seconds | None = None
    """Seconds of one all-reduce over 2 GPUs."""
    all_reduce_growth: Annotated[float, Field(ge=0, le=10)] | None = None
    """Growth of that latency with each doubling of the degree."""
    all_reduce_crowding: Annotated[float, Field(ge=0, le=100)] | None = None
    """Growth of the time of an all-reduce's bytes with each GPU beyond two, where GPUs have no switch."""
    kv_latency: Seconds | None = None
    """Seconds added to every KV transfer."""
    reserve_bytes_per_gpu: Annotated[int, Field(ge=0, le=10**12)] | None = None
    """Bytes per GPU kept for activations."""


class Silicon(ApiModel):
    """Figures that NVIDIA measured on its GPUs: those that Weft ships, and those of the package with the tables."""

    system: System | None = None
    """System that the figures are of; that of the pools' gpuType if absent."""
    backend: Backend | None = None
    """Engine that the figures are of; spec.engine.type if absent."""
    version: Annotated[str, StringConstraints(pattern=VERSION, max_length=64)] | None = None
    """Version of that engine; that of the shipped figures if absent."""
    prefill_overhead: Seconds | None = None
    """Seconds that the engine adds to the kernels of a prefill, where there are such figures; 0.002 if absent."""
    decode_overhead: Seconds | None = None
    """Seconds that the engine adds to the kernels of a step, where there are such figures; 0.001 if absent."""


class MeasureProfile(ApiModel):
    """The operator measures the profile by Jobs, with engines separate from those that serve."""

    when: Literal["Missing", "Stale"] = "Stale"
    """Missing: once for each model, engine, GPU type and degree. Stale: also when CostModelFresh becomes False."""
    budget: Duration = "10m"
    """Time limit for one degree, without the start of its engine."""
    degrees: (
        Annotated[list[Degree], Field(min_length=1, max_length=7, json_schema_extra={"x-kubernetes-list-type": "set"})]
        | None
    ) = None
    """Degrees to measure; all those of the pools if absent. Afterwards plans use measured degrees only."""
    extra_gpus: Annotated[int, Field(ge=0, le=128)] = 0
    """GPUs beyond spec.capacity.gpus for the measurement; without them it waits until the plan leaves some."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "duration(self.budget) >= duration('30s') && duration(self.budget) <= duration('2h')",
            "spec.profile.measure.budget: must be between 30s and 2h",
            lambda m: 30 <= parse_duration(m.budget) <= 2 * 3600,
        ),
    )


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
    silicon: Silicon | None = None
    """NVIDIA's measured figures, used without ref, refs, analytic and measure; what they lack is as under analytic."""
    analytic: Analytic | None = None
    """A profile derived from the model's dimensions and the GPU's data sheet."""
    measure: MeasureProfile | None = None
    """Measure a profile, which replaces the one above; never if absent."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(has(self.ref) ? 1 : 0) + (has(self.refs) ? 1 : 0) + (has(self.analytic) ? 1 : 0) <= 1",
            "spec.profile: give at most one of ref, refs and analytic",
            lambda p: sum(source is not None for source in (p.ref, p.refs, p.analytic)) <= 1,
        ),
        Rule(
            None,  # the list is keyed by name
            "spec.profile.refs: names a CostProfile twice; remove one",
            lambda p: len({item.name for item in p.refs or ()}) == len(p.refs or ()),
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


class Drift(ApiModel):
    """How far traffic and SLO may drift from what the plan was made for."""

    burn_rate: Annotated[float, Field(gt=0, le=1000)] = 1
    """Burn rate of the error budget (1 - slo.attainment) that counts as drift, in the fast and in the slow window."""
    workload: Annotated[float, Field(gt=0, le=10)] = 0.2
    """Share by which mean lengths and rounds may differ; rates may be within status.plan.validity."""
    residual: Annotated[float, Field(gt=0, le=100)] = 0.5
    """Share by which TTFT or ITL may be above the prediction, where the SLO is missed by it too."""
    min_samples: Annotated[int, Field(ge=5, le=1_000_000)] = 30
    """Rounds or sessions that a figure needs."""
    shrink_after: Duration = "30m"
    """Stabilization window: how long a smaller plan must have been enough before one is requested."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "duration(self.shrinkAfter) >= duration('1m') && duration(self.shrinkAfter) <= duration('24h')",
            "spec.planning.drift.shrinkAfter: must be between 1m and 24h; 30m is common",
            lambda d: 60 <= parse_duration(d.shrink_after) <= DAY_S,
        ),
    )


class Planning(ApiModel):
    """How plans are made."""

    objective: Literal["latency", "cost"] = "latency"
    """latency: meet the SLO at the highest load. cost: the cheapest plan that meets it with headroom."""
    mode: Literal["Auto", "Advisory", "Manual", "Off"] = "Auto"
    """How a changed spec or drift changes workers. Auto: at once. Manual: after a person approved the hash of
    status.proposedPlan (annotation weft.dev/approve). Advisory: plans are only proposed. Off: the active plan
    stays."""
    layouts: (
        Annotated[
            list[LayoutKind], Field(min_length=1, max_length=4, json_schema_extra={"x-kubernetes-list-type": "set"})
        ]
        | None
    ) = None
    """Allowed layouts; all that the engine can run if absent. disaggregated: prefill and decode workers. colocated:
    each worker prefills for its own sessions. symmetric: each one decodes its own sessions and prefills for any.
    hybrid: some workers do so, beside prefill and decode workers."""
    mixed_degrees: bool | None = None
    """Whether workers of one role may differ in degree and pool; absent, they may where there are several pools."""
    degree_pairs: Annotated[list[DegreePair], Field(min_length=1, max_length=64)] | None = None
    """Pairs of degrees that may exchange KV; absent, those that the engine supports: in vllm one divides the other."""
    prefill: Bounds = Bounds()
    """Bounds on prefill workers, those with both roles included. Co-located workers count for ``min`` only."""
    decode: Bounds = Bounds()
    """Bounds on decode workers, those with both roles included."""
    ratio: WorkerRatio | None = None
    """Bounds on prefill workers for each decode worker."""
    budget_per_hour: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Most that all GPUs may cost for an hour; every pool needs a pricePerGpuHour."""
    headroom: Annotated[float, Field(ge=0, le=10)] = 0.2
    """Objective cost: extra load, as a share of the workload, at which the SLO must still be met."""
    min_improvement: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share by which another layout must be better than the active one to replace it."""
    prometheus: Prometheus = Prometheus()
    """The Prometheus that has the service's metrics."""
    interval: Duration = "10s"
    """Interval of metrics queries."""
    cooldown: Duration = "10m"
    """Shortest time from one plan, or from a decision that none is better, to the next replanning for drift."""
    scale_to_zero: ScaleToZero | None = None
    """Scale idle services to zero, with objective cost and mode Auto; never if absent."""
    schedules: Schedules = []  # noqa: RUF012 - pydantic copies it
    """Times of the day with other bounds; the first one that matches is active."""
    drift: Drift = Drift()
    """Thresholds of drift at which another plan is requested."""
    triggers: Triggers | None = None
    """Loads of the workers at which another plan is requested, too; none if absent."""
    revision_history_limit: Annotated[int, Field(ge=1, le=100)] = 10
    """Number of plans to keep as ControllerRevisions, including the active one."""
    prediction_error: Annotated[float, Field(ge=0, le=2)] = 0
    """How far predicted prefill times may be off, as the sigma of a lognormal (0.3: a third); 0 trusts the profile."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of the planner; the same inputs and seed give the same plan."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            None,  # the list is keyed by metric
            "spec.planning.triggers: two triggers have the same metric; remove one",
            lambda p: len({item.metric for item in p.triggers or ()}) == len(p.triggers or ()),
        ),
        Rule(
            "duration(self.interval) >= duration('1s') && duration(self.interval) <= duration('10m')",
            "spec.planning.interval: must be between 1s and 10m",
            lambda p: 1 <= parse_duration(p.interval) <= 600,
        ),
        Rule(
            "duration(self.cooldown) <= duration('24h')",
            "spec.planning.cooldown: must be at most 24h; 10m is common",
            lambda p: parse_duration(p.cooldown) <= DAY_S,
        ),
        Rule(
            "!has(self.scaleToZero) || self.objective == 'cost'",
            "spec.planning.scaleToZero: only objective cost takes GPUs away; set spec.planning.objective to cost, or "
            "remove scaleToZero",
            lambda p: p.scale_to_zero is None or p.objective == "cost",
        ),
        Rule(
            None,  # the list is keyed by name
            "spec.planning.schedules: two have the same name; rename one",
            lambda p: len({item.name for item in p.schedules}) == len(p.schedules),
        ),
        Rule(
            None,  # the list is a set
            "spec.planning.layouts: names a layout twice; remove one",
            lambda p: len(set(p.layouts or ())) == len(p.layouts or ()),
        ),
    )


class Rollout(ApiModel):
    """How workers are replaced."""

    drain_timeout: Duration = "60s"
    """How long a worker that stops may take to finish its live requests."""
    max_unavailable: Annotated[int, Field(ge=0, le=1024)] = 1
    """Workers of each role that may be missing during a rollout, counted as the largest involved."""
    start_timeout: Duration = "30m"
    """How long a new worker may take from scheduled to ready before the rollout is aborted; on top of drainTimeout, a
    change of role."""
    unschedulable_timeout: Duration = "10m"
    """How long, plus drainTimeout, a new worker may be unschedulable before the rollout is aborted; and how long a
    partly scheduled worker on several nodes holds its nodes."""
    canary: Canary | None = None
    """Canary of a new plan before it replaces the old one; none if absent."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "duration(self.drainTimeout) >= duration('1s') && duration(self.drainTimeout) <= duration('1h')",
            "spec.rollout.drainTimeout: must be between 1s and 1h",
            lambda r: 1 <= parse_duration(r.drain_timeout) <= 3600,
        ),
        Rule(
            "duration(self.startTimeout) >= duration('10s') && duration(self.startTimeout) <= duration('24h')",
            "spec.rollout.startTimeout: must be between 10s and 24h; 30m is common",
            lambda r: 10 <= parse_duration(r.start_timeout) <= DAY_S,
        ),
        Rule(
            "duration(self.unschedulableTimeout) >= duration('10s') "
            "&& duration(self.unschedulableTimeout) <= duration('24h')",
            "spec.rollout.unschedulableTimeout: must be between 10s and 24h; 10m is common",
            lambda r: 10 <= parse_duration(r.unschedulable_timeout) <= DAY_S,
        ),
    )
