"""The status of a DisaggInferenceService, as the CRD's schema knows it; ``weft_operator.status`` fills it in."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from weft_operator.api.base import ApiModel
from weft_operator.api.fields import Role

Text = Annotated[str, StringConstraints(max_length=4096)]
ShortText = Annotated[str, StringConstraints(max_length=253)]


class Condition(ApiModel):
    """One aspect of the service's state."""

    type: Annotated[str, StringConstraints(max_length=64)]
    """Planned, Ready or Progressing."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, StringConstraints(max_length=64)]
    """Why, in one stable word; docs/reference/status.md lists them."""
    message: Text = ""
    """The same for people, with numbers and the remedy."""
    observed_generation: int
    """Generation of the spec that this is about."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When status last changed."""


class PlannedGroup(ApiModel):
    """Workers of one role, degree and pool."""

    role: Role
    """prefill or decode."""
    degree: int
    """Tensor-parallel degree: GPUs of one worker."""
    replicas: int
    """Workers."""
    pool: ShortText
    """GPU pool."""


class Predicted(ApiModel):
    """What the plan should achieve at the workload; absent where the load exceeds the capacity."""

    ttft_p95: Annotated[float | None, Field(alias="ttftP95")] = None
    """TTFT at the SLO's percentile, seconds."""
    itl_p95: Annotated[float | None, Field(alias="itlP95")] = None
    """ITL at the SLO's percentile, seconds."""
    ttft_mean: float | None = None
    """Mean TTFT, seconds."""
    itl_mean: float | None = None
    """Mean ITL, seconds."""
    slo_met: bool
    """Whether the SLO should hold."""


class PlanStatus(ApiModel):
    """The plan in force."""

    revision: ShortText
    """Name of the plan: changes with the groups, the profile and what engines are told."""
    inputs_hash: ShortText
    """Hash of all that the plan was made from."""
    objective: ShortText
    """latency or cost."""
    groups: Annotated[list[PlannedGroup], Field(max_length=64)]
    """Workers to run."""
    gpus: int
    """GPUs that all groups take."""
    predicted: Predicted
    """What the plan should achieve."""
    reason: Text = ""
    """Why this plan."""
    slo_reading: Text = ""
    """How the SLO was read."""


class GroupStatus(ApiModel):
    """How far the workers of one group are."""

    role: Role
    """prefill or decode."""
    degree: int
    """Tensor-parallel degree."""
    pool: ShortText
    """GPU pool."""
    desired: int
    """Workers the plan asks for."""
    ready: int
    """Workers that are ready at the newest template."""


class Status(ApiModel):
    """What the operator last saw and did."""

    observed_generation: int | None = None
    """Generation of the spec that this status is about."""
    conditions: Annotated[
        list[Condition], Field(max_length=16, json_schema_extra={"x-kubernetes-list-map-keys": ["type"]})
    ] = []
    """Planned, Ready, Progressing."""
    plan: PlanStatus | None = None
    """The plan in force."""
    plan_summary: ShortText | None = None
    """The plan in short: P4x2 D8x1 is two prefill workers of 4 GPUs and one decode worker of 8."""
    slo_summary: ShortText | None = None
    """Whether the plan should hold the SLO: met or missed."""
    ttft_summary: ShortText | None = None
    """Predicted TTFT."""
    itl_summary: ShortText | None = None
    """Predicted ITL."""
    groups: Annotated[list[GroupStatus], Field(max_length=64)] = []
    """How far the workers of each group are."""
    url: ShortText | None = None
    """Where requests go."""
