"""The status of a DisaggInferenceService in the CRD's schema; ``weft_operator.status.conditions`` fills it in."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from weft_operator.api.base import ApiModel
from weft_operator.api.fields import AnyDegree, ShortText, Text, WorkerRole
from weft_operator.api.observed import ObservedStatus


class Condition(ApiModel):
    """One aspect of the service's state."""

    type: Annotated[str, StringConstraints(max_length=64)]
    """Name of the condition, such as Ready; docs/reference/status.md lists all."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    reason: Annotated[str, StringConstraints(max_length=64)]
    """Stable word for the cause; docs/reference/status.md lists them."""
    message: Text = ""
    """Explanation for people, with numbers and the remedy."""
    observed_generation: int
    """Generation of the spec that the condition is about."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When status last changed."""


class PlannedGroup(ApiModel):
    """Workers of one role, degree and pool."""

    role: WorkerRole
    """prefill, decode or both; in a colocated layout all are decode."""
    degree: AnyDegree
    """GPUs of one worker that share layers by tensors; or how it splits the model otherwise, such as dp16ep."""
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

    role: WorkerRole
    """prefill, decode or both."""
    degree: AnyDegree
    """Degree of its workers."""
    pool: ShortText
    """GPU pool."""
    utilisation: float
    """Share of the time that its workers are busy."""
    kv_peak: float
    """Largest share of the KV cache in use on one worker."""


class Limit(ApiModel):
    """A resource or latency that limits the plan."""

    kind: Literal["compute", "kv", "link", "ttft", "itl"]
    """compute, kv, link, ttft or itl."""
    share: float
    """How much of it is used; 1 is all."""
    role: WorkerRole | None = None
    """Role of the workers, for compute and kv."""


class Predicted(ApiModel):
    """Predictions for the plan at the workload; absent where the load exceeds the capacity."""

    ttft_p95: Annotated[float | None, Field(alias="ttftP95")] = None
    """TTFT at the SLO's percentile, seconds."""
    itl_p95: Annotated[float | None, Field(alias="itlP95")] = None
    """ITL at the SLO's percentile, seconds."""
    ttft_mean: float | None = None
    """Mean TTFT, seconds."""
    itl_mean: float | None = None
    """Mean ITL, seconds."""
    slo_met: bool
    """Whether the SLO should be met."""
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
    """Share that meets the SLO; reading says what is counted."""
    reading: ShortText | None = None
    """What attainment counts: the unit and the ITL statistic of spec.slo."""
    readings: Annotated[dict[str, float] | None, Field(max_length=8)] = None
    """Attainment under every reading."""
    goodput: Estimate | None = None
    """Sessions per second up to which the SLO should be met."""
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
    """What limits the plan, most used first."""


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
    """Whether local prefills run in chunks beside decode steps."""
    chunk_share: float | None = None
    """Share of the ITL SLO that a step with such a chunk may take; absent for the default."""


class SloThresholds(ApiModel):
    """Latency thresholds in seconds."""

    ttft: float | None = None
    """Time to first token."""
    itl: float | None = None
    """Inter-token latency."""


class Remedy(ApiModel):
    """A change to the service after which its SLO would be met."""

    path: ShortText
    """The field, such as spec.slo.ttft."""
    value: Text | None = None
    """Its new value; absent if the field is to be removed."""


class Shortfall(ApiModel):
    """Why the SLO is missed and what would be enough."""

    binding: ShortText
    """The constraint that binds."""
    message: Text
    """Explanation of the constraint."""
    nearest_slo: SloThresholds | None = None
    """The nearest SLO that these GPUs can meet."""
    least_gpus: int | None = None
    """GPUs that would meet the SLO."""
    remedies: Annotated[list[Remedy] | None, Field(max_length=16)] = None
    """Alternative changes to the service; any one is enough."""


class Validity(ApiModel):
    """The traffic that the plan is valid for: means over all sessions."""

    arrival_rate: float
    """Sessions per second it was made for."""
    rate_low: float
    """Sessions per second below which a smaller plan might be enough; 0 where all GPUs are used at any load."""
    rate_high: float
    """Sessions per second up to which the SLO should be met."""
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
    """A plan that waits for approval."""

    hash: ShortText
    """Value of the annotation weft.dev/approve that approves the plan in mode Manual."""
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
    """Predictions at the traffic that it was made for."""
    diff: Annotated[list[Text], Field(max_length=32)] = []
    """Changes, one per line; predictions of both plans are for the proposal's traffic."""


class PlanStatus(ApiModel):
    """The active plan."""

    revision: ShortText
    """Name of the plan: a hash of its groups, cost profile and engine configuration."""
    number: int | None = None
    """Number of its ControllerRevision, as `weft rollout history` lists it."""
    inputs_hash: ShortText
    """Hash of all inputs of the plan."""
    objective: ShortText
    """latency or cost."""
    layout: ShortText | None = None
    """disaggregated; colocated: no prefill workers, every decode worker prefills for its own sessions; symmetric: every
    worker has both roles; hybrid: some workers do, beside those with one."""
    policy: Policy | None = None
    """The rules that the predictions were made with; absent for phases alone."""
    groups: Annotated[list[PlannedGroup], Field(max_length=64)]
    """Workers to run."""
    gpus: int
    """GPUs that all groups take."""
    predicted: Predicted
    """Predictions for the plan."""
    reason: Text = ""
    """Why this plan."""
    slo_reading: Text = ""
    """How the SLO was interpreted."""
    search: ShortText | None = None
    """How layouts were found: optimal, incumbent, enumeration or heuristic."""
    shortfall: Shortfall | None = None
    """Why the SLO is missed and what would be enough; absent where it should be met."""
    made_from: ShortText | None = None
    """spec.workload, or observed."""
    validity: Validity | None = None
    """The traffic that the plan is valid for."""
    nodes_seen: bool | None = None
    """Whether the planner knew the free GPUs of the nodes."""
    notes: Annotated[list[Text] | None, Field(max_length=16)] = None
    """Further notes on the plan."""


class GroupStatus(ApiModel):
    """Rollout state of the workers of one group."""

    role: WorkerRole
    """prefill, decode or both."""
    degree: AnyDegree
    """Degree of its workers."""
    pool: ShortText
    """GPU pool."""
    desired: int
    """Workers the plan asks for."""
    ready: int
    """Workers that are ready with the newest template."""
    name: ShortText | None = None
    """Name of the WorkerGroup; absent before it is created."""
    draining: int = 0
    """Workers that drain and whose pods still exist."""
    sessions: int | None = None
    """Sessions bound to the workers; absent without heartbeats."""


class RouterStatus(ApiModel):
    """The router image of the service's pods."""

    image: Text
    """Image that the pods run or are being changed to."""
    offered: Text | None = None
    """Image that new services get, where it differs; `weft rollout upgrade` changes to it."""


class CanaryStatus(ApiModel):
    """The canary of a new plan."""

    plan: ShortText
    """The plan in short."""
    hash: ShortText
    """Hash of the plan, as `weft rollout promote` and `abort` use it."""
    state: Literal["Running", "Passed", "Failed", "RolledBack"]
    """Running: not decided yet. Passed: the rollout goes on. Failed: rolling back. RolledBack: the rollback is done."""
    percent: int
    """Percentage of new sessions for its workers; 100 where both plans do not fit side by side."""
    since: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When its workers became ready."""
    until: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When it is analyzed, or after that, with too few samples, when it fails."""
    message: Text | None = None
    """Why it passed or failed."""


class ScheduleStatus(ApiModel):
    """The one of spec.planning.schedules that is active."""

    name: ShortText | None = None
    """Name of the schedule; absent while none is active."""
    until: Annotated[str | None, Field(json_schema_extra={"format": "date-time"})] = None
    """When the active schedule changes; absent where it never does."""


class Status(ApiModel):
    """The observed state of the service."""

    observed_generation: int | None = None
    """Generation of the spec that the status is about."""
    conditions: Annotated[
        list[Condition], Field(max_length=16, json_schema_extra={"x-kubernetes-list-map-keys": ["type"]})
    ] = []
    """Conditions of the service, with reason and message; docs/reference/status.md lists all."""
    plan: PlanStatus | None = None
    """The active plan."""
    schedule: ScheduleStatus | None = None
    """The active schedule, of a service that has schedules."""
    proposed_plan: ProposedPlan | None = None
    """The plan that waits for approval, in modes Advisory and Manual."""
    plan_summary: ShortText | None = None
    """The plan in short: P4x2 D8x1 is two prefill workers of 4 GPUs and one decode worker of 8; C means co-located,
    B workers of both roles."""
    workers_summary: ShortText | None = None
    """Ready workers of all that the plan has, by role: P2/2 D3/3."""
    slo_summary: ShortText | None = None
    """Whether the plan should meet the SLO: met or missed."""
    ttft_summary: ShortText | None = None
    """Predicted TTFT."""
    itl_summary: ShortText | None = None
    """Predicted ITL."""
    groups: Annotated[list[GroupStatus], Field(max_length=64)] = []
    """Rollout state of each group of workers."""
    router: RouterStatus | None = None
    """The router image of the pods."""
    canary: CanaryStatus | None = None
    """The canary of a new plan, where spec.rollout.canary is set and one runs or ended."""
    observed: ObservedStatus | None = None
    """Metrics of the running service; updated when a figure changes by more than a tenth."""
    url: ShortText | None = None
    """Where requests go."""
