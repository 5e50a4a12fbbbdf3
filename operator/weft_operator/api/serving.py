"""How plans are made, how requests are routed, and what stands in front."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from weft_core.durations import parse_duration
from weft_core.layouts import LayoutKind
from weft_core.policies.catalogue import (
    DEFAULT_BINDING,
    DEFAULT_CAP,
    DEFAULT_WINDOW,
    BindingName,
    ModeName,
    OrderName,
    PolicyName,
)
from weft_core.policies.live import LIVE_BINDINGS, LIVE_MODES
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.capacity import Degree
from weft_operator.api.engine import Resources, SecretKey
from weft_operator.api.fields import Duration, Fraction, ObjectName
from weft_operator.api.policies import parameter_rules

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


class Routing(ApiModel):
    """Where prefill tasks run."""

    policy: PolicyName = "ampd"
    """Routing policy; docs/reference/policies.md describes each."""
    mode: ModeName | None = None
    """Which local prefills policy weft has on offer; ia if absent. Other policies have no modes."""
    params: Annotated[dict[str, Annotated[float, Field(ge=-1e9, le=1e9)]], Field(max_length=64)] = {}  # noqa: RUF012 - pydantic copies it
    """Parameters of the policy by name, where they differ from its defaults; those of ampd are alpha and beta."""
    alpha: Annotated[float, Field(gt=0, le=2)] = 0.9
    """ampd: a prefill worker is eligible while its recent TTFT is at most alpha times the SLO."""
    beta: Annotated[float, Field(gt=0, le=2)] = 0.85
    """ampd: prefill runs on the decode worker while its recent ITL is at most beta times the SLO."""
    binding: BindingName = DEFAULT_BINDING
    """Which decode worker a new session is bound to."""
    order: OrderName | None = None
    """Order of prefill queues; absent, the policy's own: ampd-window, moore-hodgson for weft, fcfs for the others."""
    window: Annotated[int, Field(ge=1, le=6)] = DEFAULT_WINDOW
    """ampd-window: tasks at the head of a prefill queue that may be reordered."""
    ageing_cap: Annotated[int, Field(ge=1, le=100_000)] = DEFAULT_CAP
    """moore-hodgson: how often the oldest task may be passed over."""
    stats_window: Duration = "10s"
    """How far back recent TTFT and ITL look."""
    session_ttl: Annotated[Duration, Field(alias="sessionTTL")] = "60m"
    """Idle time after which a session's binding is forgotten."""
    prefill_concurrency: Annotated[int, Field(ge=1, le=64)] = 1
    """Prefill tasks that one prefill engine works on at a time."""
    request_log: Literal["Off", "Stdout"] | None = None
    """Stdout: decode sidecars print a line of lengths and times for each round, which `weft workload fit` reads."""
    resources: Resources = Resources(requests={"cpu": "100m", "memory": "96Mi"}, limits={"memory": "512Mi"})
    """CPU and memory of the router sidecar."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.mode) || self.policy == 'weft'",
            "spec.routing.mode: only policy weft has modes; remove it, or set policy weft",
            lambda r: r.mode is None or r.policy == "weft",
        ),
        Rule(
            f"!has(self.mode) || self.mode in {list(LIVE_MODES)}",
            "spec.routing.mode: imd and whole-or-chunked need local prefills in chunks, which the router cannot run "
            f"yet; use {' or '.join(LIVE_MODES)}",
            lambda r: r.mode is None or r.mode in LIVE_MODES,
        ),
        Rule(
            f"self.binding in {list(LIVE_BINDINGS)}",
            "spec.routing.binding: prefix-aware and kv-aware need to know what decode workers' prefix caches hold, "
            f"which the router does not yet; use one of {', '.join(LIVE_BINDINGS)}",
            lambda r: r.binding in LIVE_BINDINGS,
        ),
        *parameter_rules(),
        Rule(
            "duration(self.statsWindow) >= duration('1s') && duration(self.statsWindow) <= duration('10m')",
            "spec.routing.statsWindow: must be between 1s and 10m",
            lambda r: 1 <= parse_duration(r.stats_window) <= 600,
        ),
        Rule(
            "duration(self.sessionTTL) >= duration('1m') && duration(self.sessionTTL) <= duration('168h')",
            "spec.routing.sessionTTL: must be between 1m and 168h",
            lambda r: 60 <= parse_duration(r.session_ttl) <= 168 * 3600,
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


class Auth(ApiModel):
    """Who may send requests."""

    api_key_secret_ref: SecretKey | None = None
    """Secret key that holds the accepted API keys, one per line; no key is asked for if absent."""


class Limits(ApiModel):
    """Bounds on one request; beyond them it is refused with a 4xx."""

    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 32 << 20
    """Size of a request body."""
    max_n: Annotated[int, Field(ge=1, le=128)] = 8
    """Answers asked for at once."""
    max_output_tokens: Annotated[int, Field(ge=1, le=10_485_760)] = 32768
    """Tokens of one answer."""


class Coordinator(ApiModel):
    """The front door."""

    replicas: Annotated[int, Field(ge=1, le=50)] = 2
    """Coordinator pods."""
    resources: Resources = Resources(requests={"cpu": "100m", "memory": "128Mi"}, limits={"memory": "512Mi"})
    """CPU and memory of a coordinator."""
    auth: Auth = Auth()
    """Who may send requests."""
    limits: Limits = Limits()
    """Bounds on one request."""
