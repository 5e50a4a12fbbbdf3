"""Read a planning request: one JSON object, every field checked, every refusal naming the field and the fix."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from weft_core.plan import Objective, Role


class RequestError(ValueError):
    """Report a request that cannot be read; one line that names the field."""


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Tokens = Annotated[float, Field(gt=0, le=10_000_000, allow_inf_nan=False)]
Precision = Literal["auto", "float32", "bfloat16", "float16", "fp8"]
Count = Annotated[int, Field(ge=1, le=1_000_000_000, strict=True)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Model(_Part):
    """The model to serve; ``max_model_len`` is the longest context in tokens that must fit one worker."""

    name: Annotated[str, Field(min_length=1)]
    max_model_len: Count = 32768
    dtype: Precision = "auto"
    kv_cache_dtype: Precision = "auto"


class Engine(_Part):
    """What the engine can do; without ``bidirectional`` KV a later round recomputes its history."""

    bidirectional: bool = True


class Objectives(_Part):
    """The service-level objective: seconds, the percentile to plan for, and the share of sessions that must meet it."""

    ttft: Positive
    itl: Positive
    percentile: Annotated[float, Field(ge=50, lt=100, allow_inf_nan=False)] = 95
    attainment: Share = 0.9


class Workload(_Part):
    """Means of the traffic: sessions per second, rounds per session, tokens per round, seconds between rounds."""

    arrival_rate: Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)]
    rounds: Annotated[float, Field(ge=1, le=10_000, allow_inf_nan=False)]
    first_prompt: Tokens
    increment: Tokens
    decode: Tokens
    gap: Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False)] = 0


class Pool(_Part):
    """GPUs of one type in nodes of one shape; ``gpus`` defaults to the whole capacity."""

    name: Annotated[str, Field(min_length=1)]
    gpu_type: Annotated[str, Field(min_length=1)]
    gpus_per_node: Annotated[int, Field(ge=1, le=1024, strict=True)] = 8
    degrees: Annotated[tuple[Count, ...], Field(min_length=1, max_length=16)] = (1, 2, 4, 8)
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=2)] = ("prefill", "decode")
    gpus: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = None

    @field_validator("degrees", "roles")
    @classmethod
    def _in_one_order(cls, value: tuple[object, ...]) -> tuple[object, ...]:
        """Sort them: their order means nothing, so it must not change a plan's inputs hash."""
        return tuple(sorted(set(value), key=lambda item: (len(str(item)), str(item))))

    @model_validator(mode="after")
    def _a_degree_fits_a_node(self) -> Self:
        if all(degree > self.gpus_per_node for degree in self.degrees):
            raise ValueError(
                f"degrees: none of {list(self.degrees)} fits a node of {self.gpus_per_node} GPUs; add one that does"
            )
        return self


class Capacity(_Part):
    """How many GPUs the plan may use in all, and where they are."""

    gpus: Annotated[int, Field(ge=1, le=4096, strict=True)]
    pools: Annotated[tuple[Pool, ...], Field(min_length=1, max_length=16)]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [pool.name for pool in self.pools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"pools: the name {twice[0]!r} is used twice; give each pool its own")
        return self


class Analytic(_Part):
    """Efficiency factors of the analytic cost model that differ from the defaults of ``weft_core.analytic``."""

    compute: Share | None = None
    attention: Share | None = None
    memory: Share | None = None
    all_reduce_link: Share | None = None
    kv_link: Share | None = None
    prefill_overhead: NotNegative | None = None
    decode_overhead: NotNegative | None = None
    all_reduce_latency: NotNegative | None = None
    all_reduce_growth: NotNegative | None = None
    kv_latency: NotNegative | None = None
    memory_fraction: Share | None = None
    reserve_bytes_per_gpu: Annotated[int, Field(ge=0)] | None = None


class Bound(_Part):
    """How many workers a role may have."""

    min: Annotated[int, Field(ge=1, le=4096, strict=True)] = 1
    max: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max: {self.max} is below min {self.min}; raise max or lower min")
        return self


class Bounds(_Part):
    """Worker counts that the plan must keep, per role."""

    prefill: Bound = Bound()
    decode: Bound = Bound()

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


class Request(_Part):
    """Everything a plan follows from."""

    model: Model
    engine: Engine = Engine()
    slo: Objectives
    workload: Workload
    capacity: Capacity
    profile: dict[str, object] | None = None
    analytic: Analytic | None = None
    bounds: Bounds = Bounds()
    objective: Objective = "latency"
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0

    @model_validator(mode="before")
    @classmethod
    def _null_means_default(cls, value: object) -> object:
        if isinstance(value, Mapping):
            return {k: v for k, v in value.items() if v is not None or k not in ("bounds", "engine", "seed")}
        return value


def parse_request(text: str | bytes) -> Request:
    """Read a request from JSON text.

    Raises:
        RequestError: not JSON, a field unknown, missing or out of range; all faults on one line.
    """
    try:
        return Request.model_validate_json(text)
    except ValidationError as error:
        raise RequestError(_one_line(error)) from error


def request_of(body: object) -> Request:
    """Check a request that is already parsed.

    Raises:
        RequestError: as ``parse_request``.
    """
    try:
        return Request.model_validate(body)
    except ValidationError as error:
        raise RequestError(_one_line(error)) from error


_PLAIN = {"extra_forbidden": "unknown field, remove it", "missing": "is missing, add it"}


def _one_line(error: ValidationError) -> str:
    faults = []
    for fault in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in fault["loc"]) or "request"
        what = _PLAIN.get(fault["type"]) or fault["msg"].removeprefix("Value error, ")
        given = fault["input"]
        shown = f" (got {given!r})" if isinstance(given, str | int | float | bool) and fault["loc"] else ""
        faults.append(f"{where}: {what}{shown}")
    return "; ".join(faults).replace("\n", " ")
