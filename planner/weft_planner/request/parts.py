"""The parts of a planning request beside workload and capacity; every refusal names the field and the fix."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from weft_core.kv_tiers import BYTES_PER_S, KVTier, KVTierName, check_order
from weft_core.layouts import LayoutKind, Role, WorkerRole
from weft_core.parallelism import Parallelism, degree_to_json, parse_degree
from weft_core.policies.policy import PolicyError
from weft_core.policies.registry import BINDINGS, DEFAULT_MODE, MODES, ORDERS, POLICIES, parameters
from weft_core.speculation import Method, Speculation
from weft_planner.silicon.all_to_all import AllToAll
from weft_planner.silicon.systems import VERSION, Backend, System

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Overhead = Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)]
Precision = Literal["auto", "float32", "bfloat16", "float16", "fp8"]
Count = Annotated[int, Field(ge=1, le=1_000_000_000, strict=True)]
Workers = Annotated[int, Field(ge=1, le=4096, strict=True)]
GPUs = Annotated[int, Field(ge=1, le=1024, strict=True)]


def _read_degree(value: object) -> object:
    return parse_degree(value) if isinstance(value, str) else value


AnyDegree = Annotated[GPUs | InstanceOf[Parallelism], BeforeValidator(_read_degree), PlainSerializer(degree_to_json)]
"""A number of GPUs, or the parts as text: tp4pp2, dp16ep."""


class Part(BaseModel):
    """A part of a request: unknown fields are refused, names are camelCase in JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Model(Part):
    """The model to serve; ``max_model_len`` is the longest context in tokens that must fit one worker.

    ``config`` is the model's Hugging Face config.json, for models outside of the catalogue; it wins over the catalogue.
    """

    name: Annotated[str, Field(min_length=1)]
    max_model_len: Count = 32768
    dtype: Precision = "auto"
    kv_cache_dtype: Precision = "auto"
    config: dict[str, object] | None = None


class Speculative(Part):
    """Speculative decoding: ``tokens`` drafted by ``method`` each step, each accepted with probability ``acceptance``.

    ``model`` is the draft of method eagle, and of no other.
    """

    method: Method
    tokens: Annotated[int, Field(ge=1, le=8, strict=True)] = 2
    acceptance: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.7
    model: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _eagle_has_a_draft(self) -> Self:
        if self.method == "eagle" and self.model is None:
            raise ValueError("model: eagle needs a draft model trained for this one; name it")
        if self.method != "eagle" and self.model is not None:
            raise ValueError(f"model: {self.method} has no draft model; remove it, or set method to eagle")
        return self

    @property
    def speculation(self) -> Speculation:
        """Return it as the cost model takes it."""
        return Speculation(self.method, self.tokens, self.acceptance)


def absent(value: object) -> bool:
    return value is None


def _absent_text(value: object) -> bool:
    return value == ""


class EngineRole(Part):
    """What the engines of one role are started with: sequences and tokens of a step, at most; absent: no limit.

    ``all_to_all``: how whole experts exchange tokens; absent: as the engine does by itself.
    """

    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    all_to_all: AllToAll = Field(default="", exclude_if=_absent_text)

    @model_validator(mode="after")
    def _a_token_for_each_sequence(self) -> Self:
        if self.max_num_batched_tokens is not None and (self.max_num_seqs or 0) > self.max_num_batched_tokens:
            raise ValueError(
                f"maxNumSeqs: {self.max_num_seqs} is above maxNumBatchedTokens {self.max_num_batched_tokens}, and "
                "every sequence of a step takes a token; raise maxNumBatchedTokens or lower maxNumSeqs"
            )
        return self


class KVTierSize(Part):
    """Memory below each worker's GPUs that keeps KV: its size in bytes; bandwidth and latency of a load are assumed."""

    name: KVTierName
    size: Positive

    @property
    def tier(self) -> KVTier:
        """Return it as the simulator takes it."""
        return KVTier(self.name, self.size, BYTES_PER_S[self.name])


def _unlimited(value: object) -> bool:
    return value == EngineRole()


def _one(value: object) -> bool:
    return value == 1


def _untrue(value: object) -> bool:
    return not value


class Engine(Part):
    """What the engine, and the router before it, can do.

    Without ``bidirectional`` KV a later round recomputes its history. ``chunked``: local prefills run in chunks beside
    decode steps. ``layouts`` are those that a plan may have, absent: all that the engine can run; others are only
    advised. ``fixed_roles``: the service's prefill and decode workers differ in more than what they are told to do, so
    that a worker keeps its role. ``pairs`` are (prefill, decode) degrees that may exchange KV and ``block_sizes`` the
    tokens per KV block of each role, which must be equal unless ``block_pairs`` lists them; absent: what the table of
    ``type`` says (``weft_planner.request.engines``).
    ``mixed_degrees``: workers of one role may differ in degree and pool. ``prefill``, ``decode``: limits of each role.
    ``kv_tiers``: memory below each worker's GPUs, fastest first.
    ``context_buckets``: lengths that an engine of fixed shapes is compiled for, ascending; absent: its own choice.
    What is absent is absent from JSON, too, so that hashes of other requests stay.
    """

    type: str = ""
    bidirectional: bool = True
    chunked: bool = False
    mixed_degrees: bool = False
    layouts: Annotated[tuple[LayoutKind, ...], Field(min_length=1)] | None = Field(default=None, exclude_if=absent)
    fixed_roles: bool = Field(default=False, exclude_if=_untrue)
    pairs: Annotated[tuple[tuple[AnyDegree, AnyDegree], ...], Field(min_length=1, max_length=256)] | None = None
    block_sizes: dict[Role, Count] | None = None
    block_pairs: Annotated[tuple[tuple[Count, Count], ...], Field(max_length=64)] = ()
    speculative: Speculative | None = Field(default=None, exclude_if=absent)
    prefill: EngineRole = Field(default=EngineRole(), exclude_if=_unlimited)
    decode: EngineRole = Field(default=EngineRole(), exclude_if=_unlimited)
    context_buckets: Annotated[tuple[Count, ...], Field(min_length=1, max_length=32)] | None = Field(
        default=None, exclude_if=absent
    )

    kv_tiers: tuple[KVTierSize, ...] = Field(default=(), exclude_if=_untrue)

    @field_validator("kv_tiers")
    @classmethod
    def _fastest_first(cls, value: tuple[KVTierSize, ...]) -> tuple[KVTierSize, ...]:
        check_order([one.name for one in value])
        return value

    @field_validator("context_buckets")
    @classmethod
    def _ascending(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and any(one >= other for one, other in pairwise(value)):
            raise ValueError(f"{list(value)} do not ascend; sort them")
        return value

    @field_validator("layouts", "pairs", "block_pairs")
    @classmethod
    def _in_one_order(cls, value: tuple[object, ...] | None) -> tuple[object, ...] | None:
        return None if value is None else tuple(sorted(set(value), key=str))


class RoutingSpec(Part):
    """The rules that the router will follow; times in seconds.

    ``modes`` of policy weft are tried; absent: ``remote-jsq``, and ``whole-or-chunked`` where the engine takes
    ``slices`` (``imd`` where the ITL SLO is on a tail), else ``ia``. With ``mode`` the planner has no choice. Without
    ``slices`` no prompt is sent in slices. ``binding`` and ``order`` default to the policy's own. ``prediction_error``
    is the lognormal sigma of what prefills and slices really take against the profile: above 0 every layout is judged
    by the worse of a run as predicted and a run with such errors, and slices may be cut shorter.
    ``prefill_concurrency`` prefills are at work in one engine at a time. Bindings count a cached prefix from the share
    ``min_cache_hit_ratio`` of the prompt on.
    """

    policy: str = "weft"
    mode: str = ""
    modes: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    slices: bool = True
    binding: str = ""
    order: str = ""
    params: dict[str, float] = {}
    window: Annotated[int, Field(ge=1, le=6, strict=True)] = 3
    ageing_cap: Count | None = None
    stats_window: Positive = 10.0
    min_cache_hit_ratio: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = Field(
        default=0.0, exclude_if=_untrue
    )
    prefill_concurrency: Annotated[int, Field(ge=1, le=1024, strict=True)] = Field(default=1, exclude_if=_one)
    prediction_error: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.0

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name, value, known in (
            ("policy", self.policy, POLICIES),
            ("mode", self.mode or DEFAULT_MODE, MODES),
            ("binding", self.binding or "kv-headroom", BINDINGS),
            ("order", self.order or "fcfs", ORDERS),
            *(("modes", mode, MODES) for mode in self.modes or ()),
        ):
            if value not in known:
                raise ValueError(f"{name}: {value!r} is not known; use one of {', '.join(known)}")
        try:
            parameters(self.policy, self.mode or DEFAULT_MODE, self.params)
        except PolicyError as error:
            raise ValueError(str(error)) from error
        return self


class Objectives(Part):
    """The service-level objective: seconds, the percentile to plan for, and the share of sessions that must meet it."""

    ttft: Positive
    itl: Positive
    percentile: Annotated[float, Field(ge=50, lt=100, allow_inf_nan=False)] = 95
    attainment: Share = 0.9
    unit: Literal["session", "round"] = "session"
    itl_statistic: Literal["mean", "p95", "max"] = "mean"


class Analytic(Part):
    """Efficiency factors of the analytic cost model that differ from the defaults of ``weft_core.analytic``."""

    compute: Share | None = None
    expert_compute: Share | None = None
    attention: Share | None = None
    memory: Share | None = None
    all_reduce_link: Share | None = None
    kv_link: Share | None = None
    prefill_overhead: Overhead | None = None
    decode_overhead: Overhead | None = None
    prefill_layer: Overhead | None = None
    decode_layer: Overhead | None = None
    expert_layer: Overhead | None = None
    sparse_layer: Overhead | None = None
    all_reduce_latency: Overhead | None = None
    all_reduce_growth: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None = None
    all_reduce_crowding: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    kv_latency: Overhead | None = None
    memory_fraction: Share | None = None
    reserve_bytes_per_gpu: Annotated[int, Field(ge=0, le=10**12)] | None = None


class Silicon(Part):
    """Which silicon tables, and what an engine adds to their kernels in seconds; absent: Weft's own figures.

    Absent, ``system`` follows from the pool's GPU type, ``backend`` from the engine's type, and ``version`` is that of
    the shipped profiles, or the current one of the tables.
    """

    system: System | None = None
    backend: Backend | None = None
    version: Annotated[str, Field(pattern=VERSION, max_length=64)] | None = None
    prefill_overhead: Overhead | None = None
    decode_overhead: Overhead | None = None


class Bound(Part):
    """How many workers a role may have."""

    min: Workers = 1
    max: Workers | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max: {self.max} is below min {self.min}; raise max or lower min")
        return self


class Ratio(Part):
    """Prefill workers for each decode worker, at least and at most."""

    min: Positive | None = None
    max: Positive | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min is not None and self.max is not None and self.max < self.min:
            raise ValueError(f"max: {self.max:g} is below min {self.min:g}; raise max or lower min")
        return self


class Bounds(Part):
    """Worker counts that the plan must keep, per role, and their ratio."""

    prefill: Bound = Bound()
    decode: Bound = Bound()
    ratio: Ratio = Ratio()

    @model_validator(mode="before")
    @classmethod
    def _null_means_no_bound(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        roles = {key: bound for key, bound in value.items() if bound is not None}
        return {
            key: {k: v for k, v in bound.items() if v is not None} if isinstance(bound, Mapping) else bound
            for key, bound in roles.items()
        }

    def of(self, role: Role) -> Bound:
        """Return a role's bound."""
        return self.prefill if role == "prefill" else self.decode


class Group(Part):
    """A group of workers that runs already."""

    role: WorkerRole
    degree: AnyDegree
    replicas: Workers
    pool: Annotated[str, Field(min_length=1)]
