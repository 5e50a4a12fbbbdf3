"""The status of a DisaggInferenceService in the CRD's schema; ``weft_operator.status.conditions`` fills it in."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from weft_operator.api.base import ApiModel
from weft_operator.api.fields import Role, ShortText, Text
from weft_operator.api.observed import ObservedStatus


class Condition(ApiModel):
    """One aspect of the service's state."""

    type: Annotated[str, StringConstraints(max_length=64)]
    """Its name, such as Ready; docs/reference/status.md lists all."""
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


class PredictedQuantiles(ApiModel):
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
    ttft: PredictedQuantiles | None = None
    """TTFT of all rounds."""
    ttft_first: PredictedQuantiles | None = None
    """TTFT of sessions' first rounds."""
    ttft_later: PredictedQuantiles | None = None
    """TTFT of later rounds."""
    itl: PredictedQuantiles | None = None
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


class SloThresholds(ApiModel):
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
    nearest_slo: SloThresholds | None = None
    """The nearest SLO that these GPUs hold."""
    least_gpus: int | None = None
    """GPUs that would hold the SLO."""


class Validity(ApiModel):
    """The traffic that the plan is for: means over all sessions."""

    arrival_rate: float
    """Sessions per second it was made for."""
    rate_low: float
    """Below so many a smaller plan might do; 0 where all GPUs are used at any load."""
    rate_high: float
    """Up to so many the SLO should hold."""
    rounds: float
    """Rounds of a session."""
    first_prompt: float
    """Tokens of a first prompt."""
    increment: float
    """New tokens of a later round."""
    decode: float
    """Tokens of an answer."""
    gap: float
    """Seconds between an answer and the next round."""


class ProposedPlan(ApiModel):
    """A plan that waits for a person."""

    hash: ShortText
    """What the annotation weft.dev/approve must hold for mode Manual to carry it out."""
    revision: ShortText
    """Name of the proposed plan."""
    summary: ShortText
    """The plan in short."""
    reason: Text
    """Why it is proposed."""
    made_from: ShortText
    """spec.workload, or observed."""
    made_at: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When it was proposed."""
    groups: Annotated[list[PlannedGroup], Field(max_length=64)]
    """Workers to run."""
    gpus: int
    """GPUs that all groups take."""
    predicted: Predicted
    """What it should achieve at the traffic it was made for."""
    diff: Annotated[list[Text], Field(max_length=32)] = []
    """What would change, a line each; figures of both plans are at the traffic that the proposal was made for."""


class PlanStatus(ApiModel):
    """The plan in force."""

    revision: ShortText
    """Name of the plan: changes with the groups, the profile and what engines are told."""
    number: int | None = None
    """Number of its ControllerRevision, as `weft rollout history` lists it."""
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
    made_from: ShortText | None = None
    """spec.workload, or observed."""
    validity: Validity | None = None
    """The traffic that it is for."""
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
    name: ShortText | None = None
    """The WorkerGroup; absent before it is made."""
    draining: int = 0
    """Workers on their way out whose pods are still there."""
    sessions: int | None = None
    """Sessions that are bound to the workers; absent where they do not tell."""


class RouterStatus(ApiModel):
    """The router image of the service's pods."""

    image: Text
    """What its pods run, or are being changed to."""
    offered: Text | None = None
    """What the operator would begin a new service with, where it is another; weft rollout upgrade changes to it."""


class CanaryStatus(ApiModel):
    """A plan on trial."""

    plan: ShortText
    """The plan in short."""
    hash: ShortText
    """Its name, as `weft rollout promote` and `abort` use it."""
    state: Literal["Running", "Passed", "Failed", "RolledBack"]
    """Open: not judged yet; Passed: the rest of it comes; Failed: on the way back; Returned: all workers are back."""
    percent: int
    """Share of new sessions that go to its workers; 100 where it could not be tried beside the old plan."""
    since: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """Since when its workers are ready."""
    until: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When it is judged; then, where too little was seen, at the latest."""
    message: Text | None = None
    """Why it passed or failed."""


class ScheduleStatus(ApiModel):
    """Which of spec.planning.schedules holds."""

    name: ShortText | None = None
    """Its name; absent while none is in force."""
    until: Annotated[str | None, Field(json_schema_extra={"format": "date-time"})] = None
    """When another one holds, or none any more; absent where that never happens."""


class Status(ApiModel):
    """What the operator last saw and did."""

    observed_generation: int | None = None
    """Generation of the spec that this status is about."""
    conditions: Annotated[
        list[Condition], Field(max_length=16, json_schema_extra={"x-kubernetes-list-map-keys": ["type"]})
    ] = []
    """What holds of the service, each with a reason and a message: docs/reference/status.md lists all."""
    plan: PlanStatus | None = None
    """The plan in force."""
    schedule: ScheduleStatus | None = None
    """The schedule in force, of a service that has schedules."""
    proposed_plan: ProposedPlan | None = None
    """The plan that waits for a person, in modes Advisory and Manual."""
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
    router: RouterStatus | None = None
    """The router that runs in the pods."""
    canary: CanaryStatus | None = None
    """The plan on trial, where spec.rollout.canary asks for one and one is under way."""
    observed: ObservedStatus | None = None
    """What was last seen of the running service; written anew when a figure has moved by more than a tenth."""
    url: ShortText | None = None
    """Where requests go."""
