"""Read a planning request: one JSON object, every field checked, every refusal naming the field and the fix."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from weft_core.plan import Objective
from weft_planner.request.capacity import Capacity
from weft_planner.request.engines import layout_faults, speculation_faults
from weft_planner.request.enumeration import with_strategies
from weft_planner.request.error import RequestError
from weft_planner.request.parts import (
    Analytic,
    Bounds,
    Engine,
    Group,
    Model,
    Objectives,
    Part,
    Positive,
    RoutingSpec,
    Silicon,
)
from weft_planner.workload.resolving import resolve_workload
from weft_planner.workload.traffic import Workload

__all__ = ["Request", "RequestError", "parse_request", "request_of"]


_NULLABLE = (
    "bounds",
    "engine",
    "seed",
    "routing",
    "headroom",
    "current",
    "min_improvement",
    "minImprovement",
    "profiles",
)


class Request(Part):
    """Everything a plan follows from."""

    model: Model
    engine: Engine = Engine()
    slo: Objectives
    workload: Workload
    capacity: Capacity
    profile: dict[str, object] | None = None
    profiles: Annotated[tuple[dict[str, object], ...], Field(max_length=16)] = ()
    """Further profiles, each of a GPU type of its own, where the pools have several."""
    analytic: Analytic | None = None
    silicon: Silicon | None = None
    """Take the figures of silicon tables where there are some; the analytic profile has what they lack."""
    bounds: Bounds = Bounds()
    routing: RoutingSpec = RoutingSpec()
    objective: Objective = "latency"
    budget_per_hour: Positive | None = None
    """Most that all GPUs may cost for an hour; needs prices of all pools."""
    headroom: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.2
    """Objective cost: the SLO must still hold at this share more load."""
    current: Annotated[tuple[Group, ...], Field(max_length=64)] = ()
    """What runs now; a change must be worth its transition."""
    min_improvement: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.05
    """The share by which another plan must be better than the current one to replace it."""
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0

    @model_validator(mode="before")
    @classmethod
    def _null_means_default(cls, value: object) -> object:
        if isinstance(value, Mapping):
            return {k: v for k, v in value.items() if v is not None or k not in _NULLABLE}
        return value

    @field_validator("workload", mode="before")
    @classmethod
    def _presets_and_traces_are_figures(cls, value: object) -> object:
        return resolve_workload(value) if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _a_budget_needs_prices(self) -> Self:
        unpriced = [pool.name for pool in self.capacity.pools if pool.price_per_gpu_hour is None]
        if self.budget_per_hour is not None and unpriced:
            raise ValueError(
                f"budgetPerHour: pool {unpriced[0]} has no price; give capacity.pools.pricePerGpuHour for every pool"
            )
        return self

    @model_validator(mode="after")
    def _a_system_is_of_one_gpu_type(self) -> Self:
        types = sorted({pool.gpu_type for pool in self.capacity.pools})
        if self.silicon is not None and self.silicon.system is not None and len(types) > 1:
            raise ValueError(
                f"silicon.system: {self.silicon.system} is one system, and the pools have several GPU types "
                f"({', '.join(types)}); remove it, or keep the pools of one type"
            )
        return self

    @model_validator(mode="after")
    def _every_pool_has_strategies(self) -> Self:
        return with_strategies(self)

    @model_validator(mode="after")
    def _the_engine_can_run_the_layouts(self) -> Self:
        faults = list(layout_faults(self.engine))
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @model_validator(mode="after")
    def _the_engine_can_speculate(self) -> Self:
        degrees = [degree for pool in self.capacity.pools for degree in pool.all_degrees]
        faults = list(speculation_faults(self.engine, degrees))
        if faults:
            raise ValueError("; ".join(faults))
        return self


def parse_request(text: str | bytes) -> Request:
    """Read a request from JSON text.

    Raises:
        RequestError: not JSON, a field unknown, missing or out of range; all faults on one line.
    """
    try:
        return Request.model_validate_json(text)
    except ValidationError as error:
        raise RequestError(*_faults(error)) from error


def request_of(body: object) -> Request:
    """Check a request that is already parsed.

    Raises:
        RequestError: as ``parse_request``.
    """
    try:
        return Request.model_validate(body)
    except ValidationError as error:
        raise RequestError(*_faults(error)) from error


_PLAIN = {"extra_forbidden": "unknown field, remove it", "missing": "is missing, add it"}


def _faults(error: ValidationError) -> list[str]:
    faults = []
    for fault in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in fault["loc"]) or "request"
        what = _PLAIN.get(fault["type"]) or fault["msg"].removeprefix("Value error, ")
        given = fault["input"]
        shown = f" (got {given!r})" if isinstance(given, str | int | float | bool) and fault["loc"] else ""
        faults.append(f"{where}: {what}{shown}".replace("\n", " "))
    return faults
