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
    """prefill or decode; in a colocated layout all are decode."""
    degree: int
    """Tensor-parallel degree: GPUs of one worker."""
    replicas: int
    """Workers."""
    pool: ShortText
    """GPU pool."""


class Quantiles(ApiModel):
    """Median and P95 of a latency."""

    p50: float | None = None
    """Median, seconds."""
    p95: float | None = None
    """P95, seconds."""


class Estimate(ApiModel):
    """A predicted figure."""

    value: float
    """The figure."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    """Upper end of its 95 % interval."""


class GroupUse(ApiModel):
    """How much of a group is used."""

    role: Role
    """prefill or decode."""
    degree: int
    """Tensor-parallel degree."""
    pool: ShortText
    """GPU pool."""
    utilisation: float
    """Share of the time that its workers are busy."""
    kv_peak: float
    """Largest share of the KV cache in use on one worker."""


class Limit(ApiModel):
    """Something the plan runs into."""

    kind: Literal["compute", "kv", "link", "ttft", "itl"]
    """compute, kv, link, ttft or itl."""
    share: float
    """How much of it is used; 1 is all."""
    role: Role | None = None
    """Whose, for compute and kv."""


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
    source: Literal["phases", "simulation"] | None = None
    """simulation: with the routing policy; phases: prefill and decode alone."""
    ttft: Quantiles | None = None
    """TTFT of all rounds."""
    ttft_first: Quantiles | None = None
    """TTFT of sessions' first rounds."""
    ttft_later: Quantiles | None = None
    """TTFT of later rounds."""
    itl: Quantiles | None = None
    """Mean ITL of rounds."""
    attainment: Estimate | None = None
    """Share that meets the SLO, counted as reading says."""
    reading: ShortText | None = None
    """What attainment counts: the unit and the ITL statistic of spec.slo."""
    readings: Annotated[dict[str, float] | None, Field(max_length=8)] = None
    """Attainment under every reading."""
    goodput: Estimate | None = None
    """Sessions per second up to which the SLO should hold."""
    use: Annotated[list[GroupUse] | None, Field(max_length=64)] = None
    """How much of each group is used."""
    kv_headroom: float | None = None
    """Share of the KV cache that stays free on the fullest decode worker."""
    local_share: float | None = None
    """Share of prefills that run on decode workers."""
    cost_per_hour: float | None = None
    """Price of all GPUs for an hour, where pools have prices."""
    cost_per_million_tokens: float | None = None
    """Price of a million new prompt and answer tokens at the workload."""
    limits: Annotated[list[Limit] | None, Field(max_length=16)] = None
    """What the plan runs into, most used first."""


class Policy(ApiModel):
    """The rules that the predictions were made with."""

    route: ShortText
    """Routing rule."""
    mode: ShortText | None = None
    """Mode of the routing rule."""
    order: ShortText
    """Order of prefill queues."""
    binding: ShortText
    """Binding of sessions to decode workers."""
    chunked: bool
    """Whether local prefills run in slices beside decode steps."""


class Slo(ApiModel):
    """Latency thresholds in seconds."""

    ttft: float | None = None
    """Time to first token."""
    itl: float | None = None
    """Inter-token latency."""


class Shortfall(ApiModel):
    """Why the SLO is missed and what would do."""

    binding: ShortText
    """The constraint that binds."""
    message: Text
    """The same in words."""
    nearest_slo: Slo | None = None
    """The nearest SLO that these GPUs hold."""
    least_gpus: int | None = None
    """GPUs that would hold the SLO."""


class PlanStatus(ApiModel):
    """The plan in force."""

    revision: ShortText
    """Name of the plan: changes with the groups, the profile and what engines are told."""
    inputs_hash: ShortText
    """Hash of all that the plan was made from."""
    objective: ShortText
    """latency or cost."""
    layout: ShortText | None = None
    """disaggregated; or colocated: no prefill workers, every decode worker prefills for its own sessions."""
    policy: Policy | None = None
    """The rules that the predictions were made with; absent for phases alone."""
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
    search: ShortText | None = None
    """How layouts were found: optimal, incumbent, enumeration or heuristic."""
    shortfall: Shortfall | None = None
    """Why the SLO is missed and what would do, when it is missed."""
    nodes_seen: bool | None = None
    """Whether the free GPUs of real nodes were known to the planner."""
    notes: Annotated[list[Text] | None, Field(max_length=16)] = None
    """What else to know about the plan."""


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
    """The plan in short: P4x2 D8x1 is two prefill workers of 4 GPUs and one decode worker of 8; C means co-located."""
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
