"""How requests are routed: the service's rules, what classes of requests do otherwise, and tenants."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from weft_core.durations import parse_duration
from weft_core.policies.registry import (
    DEFAULT_CAP,
    DEFAULT_WINDOW,
    BindingName,
    ModeName,
    OrderName,
    PolicyName,
)
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.engine_parts import Resources
from weft_operator.api.fields import DnsLabel, Duration
from weft_operator.api.policies import parameter_rules
from weft_operator.api.references import ConfigMapKey

MAX_CLASSES = 16
MAX_TENANTS = 128
PLAIN_CLASS = "default"
"""The class of every request that names none; it always exists."""

BY_NAME = {"x-kubernetes-list-map-keys": ["name"]}
Figure = Annotated[float, Field(ge=-1e9, le=1e9)]
TenantName = Annotated[str, StringConstraints(pattern=r"^[!-~]+$", min_length=1, max_length=128)]


class Rates(ApiModel):
    """Rate limits of each coordinator process; absent limits do not apply."""

    requests_per_second: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Requests."""
    tokens_per_minute: Annotated[float, Field(gt=0, le=1e12)] | None = None
    """Tokens of prompts and answers together."""
    concurrent: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests at the same time."""
    burst: Duration | None = None
    """How much of a rate may come at once, as the time in which it would come evenly; 10s if absent."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.burst) || (duration(self.burst) >= duration('1s') && duration(self.burst) <= duration('1h'))",
            "spec.coordinator.limits.rates.burst, and that of tenants: must be between 1s and 1h",
            lambda r: r.burst is None or 1 <= parse_duration(r.burst) <= 3600,
        ),
    )


class Hedge(ApiModel):
    """A raced second prefill for the top classes; the loser is cancelled."""

    mode: Literal["Auto", "Off"] = "Off"
    """Auto races a prefill that may miss its TTFT, if another worker, or the decode worker itself, should make it."""
    top: Annotated[int, Field(ge=0, le=1000)] = 2
    """Priority from which prefills are raced."""
    risk: Annotated[float, Field(ge=0, le=10)] = 0.7
    """Predicted TTFT, as a share of the SLO, above which a prefill is at risk."""


class Slices(ApiModel):
    """Local prefills in slices on stock engines, joined by the engine's prefix cache."""

    mode: Literal["Auto", "Off"] = "Auto"
    """Auto slices where policy and engine can."""
    block_tokens: Annotated[int, Field(ge=1, le=1024)] = 16
    """Tokens of one block of the engine's prefix cache; slices end at multiples of it."""
    least_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = 32
    """Fewest tokens of a slice; the overhead makes them longer by itself."""
    overhead: Duration = "5ms"
    """What each slice costs beyond its tokens: one more request to the engine."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "duration(self.overhead) <= duration('10s')",
            "spec.routing.slices.overhead: must be at most 10s; 5ms is common",
            lambda s: parse_duration(s.overhead) <= 10,
        ),
    )


class RequestClass(ApiModel):
    """A class of requests: its priority, what is refused or degraded under load, and its own rules.

    Its TTFT and ITL are those of the class of the same name in spec.slo.classes, else the service's.
    """

    name: DnsLabel
    """Name that requests give in the header X-Weft-Class; default is the class of all others."""
    priority: Annotated[int, Field(ge=0, le=1000)] = 0
    """The higher goes first in prefill queues."""
    queue_limit: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Most requests of the class that wait for their first byte at one coordinator process; more get 429."""
    concurrent: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Most requests of the class at the same time at one coordinator process; more get 429."""
    max_output_tokens: Annotated[int, Field(ge=1, le=10_485_760)] | None = None
    """Cap on every answer of the class."""
    early_rejection: bool = False
    """Refuse at once, with Retry-After, what is predicted to miss its TTFT or ITL."""
    tolerance: Annotated[float, Field(gt=0, le=100)] = 1
    """Times the SLO above which a predicted TTFT or ITL is refused."""
    output_cap: bool = False
    """Shorten answers while KV memory is scarce."""
    local_only: Literal["Off", "Pressure", "Always"] = "Off"
    """Keep prefills of the class off prefill workers: while these are busy, or always."""
    policy: PolicyName | None = None
    """Routing policy of the class; the service's if absent."""
    mode: ModeName | None = None
    """Mode of policy weft; needs a policy beside it."""
    params: Annotated[dict[str, Figure], Field(max_length=16)] | None = None
    """Parameters of the class's policy; needs a policy beside it."""
    binding: BindingName | None = None
    """Which decode worker a new session is bound to; the service's if absent."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.mode) || (has(self.policy) && self.policy == 'weft')",
            "spec.routing.classes.mode: only policy weft has modes; set policy weft beside it, or remove it",
            lambda c: c.mode is None or c.policy == "weft",
        ),
        Rule(
            "!has(self.policy) || self.policy != 'colocated'",
            "spec.routing.classes.policy: colocated is a layout of the whole service; use always-local",
            lambda c: c.policy != "colocated",
        ),
        Rule(
            "!has(self.params) || has(self.policy)",
            "spec.routing.classes.params: belong to a policy; set the class's policy beside them",
            lambda c: c.params is None or c.policy is not None,
        ),
        *parameter_rules("spec.routing.classes.params", optional=True),
    )


class Tenant(ApiModel):
    """What one tenant may do; its API keys name it by tenant=…, its tokens by a claim."""

    name: TenantName
    """Name of the tenant."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1
    """Its share of the waiting requests while there are many, beside the other tenants' weights."""
    default_class: DnsLabel | None = None
    """Class of its requests that name none; the service's default if absent."""
    classes: Annotated[list[DnsLabel], Field(max_length=MAX_CLASSES)] | None = None
    """Classes that it may name; all if absent."""
    rates: Rates | None = None
    """Bounds on all its keys together."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.name != '{PLAIN_CLASS}'",
            f"spec.routing.qos.tenants.name: {PLAIN_CLASS} stands for everyone where nobody has to say who they are; "
            "choose another name",
            lambda t: t.name != PLAIN_CLASS,
        ),
    )


class Pressure(ApiModel):
    """When answers are capped and low classes stay on their decode workers."""

    kv_use: Annotated[float, Field(ge=0, le=0.99)] = 0.8
    """Share of KV memory in use above which answers are capped."""
    largest_output: Annotated[int, Field(ge=1, le=10_000_000)] = 4096
    """Tokens of an answer where the cap begins."""
    least_output: Annotated[int, Field(ge=1, le=10_000_000)] = 256
    """Tokens of an answer at full memory."""
    busy_tasks: Annotated[float, Field(ge=0, le=1e6)] = 4
    """Queued prefill tasks per prefill worker from which these are busy."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.leastOutput <= self.largestOutput",
            "spec.routing.qos.pressure: leastOutput is above largestOutput; lower it",
            lambda p: p.least_output <= p.largest_output,
        ),
    )


class Qos(ApiModel):
    """Tenants, how a request names its class, and what happens under pressure."""

    default_class: DnsLabel = PLAIN_CLASS
    """Class of requests whose key, token and tenant name none."""
    class_header: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9-]*$", max_length=64)] = "X-Weft-Class"
    """Header in which a request names its class."""
    class_field: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]*$", max_length=64)] = "service_tier"
    """Body field that names the class where the header does not; names of no class are left to the engine."""
    max_waiting: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    """Most requests that wait for their first byte at one coordinator process; tenants share them by weight."""
    fallback_service: DnsLabel | None = None
    """Another service of the namespace, usually with a smaller model; it serves what this one refuses as overloaded."""
    pressure: Pressure | None = None
    """When answers are capped and low classes stay on their decode workers; at the defaults if absent."""
    tenants: Annotated[list[Tenant], Field(max_length=MAX_TENANTS, json_schema_extra=BY_NAME)] | None = None
    """Tenants that differ from others."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            None,  # the list is keyed by name
            "spec.routing.qos.tenants: two tenants have the same name; remove one",
            lambda q: len({item.name for item in q.tenants or ()}) == len(q.tenants or ()),
        ),
    )


class Routing(ApiModel):
    """Where prefill tasks run, and who goes first."""

    policy: PolicyName = "weft"
    """Routing policy; docs/reference/policies.md describes each."""
    mode: ModeName | None = None
    """Which local prefills policy weft has on offer; if absent, what the plan chose. Other policies have no modes."""
    params: Annotated[dict[str, Figure], Field(max_length=64)] = {}
    """Parameters of the policy by name, where they differ from its defaults; those of ampd are alpha and beta."""
    table_config_map_ref: ConfigMapKey | None = None
    """ppd: a ConfigMap with its offline table, as `weft ppd learn` writes it; params set single cells beside it."""
    alpha: Annotated[float, Field(gt=0, le=2)] = 0.9
    """ampd: a prefill worker is eligible while its recent TTFT is at most alpha times the SLO."""
    beta: Annotated[float, Field(gt=0, le=2)] = 0.85
    """ampd: prefill runs on the decode worker while its recent ITL is at most beta times the SLO."""
    binding: BindingName | None = None
    """Decode worker of a new session; absent, the policy's own: kv-headroom, in co-located plans least-requests."""
    min_cache_hit_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    """prefix-aware and kv-aware: a cached prefix counts from this share of the new prompt on; absent, any does."""
    order: OrderName | None = None
    """Order of prefill queues; absent, the policy's own: ampd-window, moore-hodgson for weft, fcfs for the others."""
    window: Annotated[int, Field(ge=1, le=6)] = DEFAULT_WINDOW
    """ampd-window: tasks at the head of a prefill queue that may be reordered."""
    ageing_cap: Annotated[int, Field(ge=1, le=100_000)] = DEFAULT_CAP
    """moore-hodgson: how often the oldest task may be passed over."""
    prediction_correction: Literal["Auto", "Off"] | None = None
    """Auto corrects predictions that were wrong lately by what was observed; Off if absent with ampd, else Auto."""
    stats_window: Duration = "10s"
    """Window of recent TTFT and ITL."""
    session_ttl: Annotated[Duration, Field(alias="sessionTTL")] = "60m"
    """Idle time after which a session's binding is forgotten."""
    prefill_concurrency: Annotated[int, Field(ge=1, le=64)] = 1
    """Prefill tasks that one prefill engine works on at a time."""
    hedge: Hedge | None = None
    """A raced second prefill for the top classes; none if absent."""
    slices: Slices | None = None
    """Local prefills in slices; at the defaults if absent."""
    first_token_from_prefill: Literal["Auto", "Off"] | None = None
    """Auto: an answer begins with the prefill worker's own token where that is exact; Off if absent."""
    resume: Literal["Auto", "Exact", "Off"] | None = None
    """A stream whose decode worker died goes on elsewhere: Auto (if absent), only where Exact, or ends (Off)."""
    on_prefill_failure: Literal["Local", "Other", "Error"] | None = None
    """A lost prefill runs on the decode worker (Local, if absent), on another prefill worker, or fails the request."""
    classes: Annotated[list[RequestClass], Field(max_length=MAX_CLASSES, json_schema_extra=BY_NAME)] | None = None
    """Classes of requests that are served differently."""
    qos: Qos | None = None
    """Tenants, how a request names its class, and what happens under pressure."""
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
        *parameter_rules(),
        Rule(
            "!has(self.tableConfigMapRef) || self.policy == 'ppd'",
            "spec.routing.tableConfigMapRef: only policy ppd has a table; remove it, or set policy ppd",
            lambda r: r.table_config_map_ref is None or r.policy == "ppd",
        ),
        Rule(
            "self.policy == 'ampd' || (self.alpha == 0.9 && self.beta == 0.85)",
            "spec.routing.alpha: alpha and beta are those of policy ampd; "
            "set spec.routing.policy to ampd, or remove them",
            lambda r: r.policy == "ampd" or (r.alpha, r.beta) == (0.9, 0.85),
        ),
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
        Rule(
            None,  # the list is keyed by name
            "spec.routing.classes: two classes have the same name; give each its own",
            lambda r: len({item.name for item in r.classes or ()}) == len(r.classes or ()),
        ),
    )
