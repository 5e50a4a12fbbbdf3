"""WorkerGroup: the workers of one role, degree, pool and revision, made by the operator as by a Deployment."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from weft_operator.api.base import ApiModel
from weft_operator.api.capacity import Degree
from weft_operator.api.fields import DnsLabel, Duration, Role, ShortText, Text
from weft_operator.api.scheduling import Gang, WorkerTopology
from weft_operator.api.status import Condition

GROUP_KIND = "WorkerGroup"
GROUP_PLURAL = "workergroups"

MAX_WORKERS = 1024
"""Workers of one group; the status lists each of them."""

Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]+$", max_length=64)]
Count = Annotated[int, Field(ge=0)]


class WorkerGroupSpec(ApiModel):
    """What is wanted. The operator writes it; people and autoscalers change replicas alone, with planning.mode Off."""

    service: DnsLabel
    """The DisaggInferenceService that the workers are of."""
    role: Role
    """prefill or decode; in a colocated layout all are decode."""
    degree: Degree
    """Tensor-parallel degree: GPUs of one worker, over all its nodes."""
    pool: Annotated[str, StringConstraints(max_length=63)] = ""
    """GPU pool."""
    nodes_per_worker: Annotated[int, Field(ge=1, le=64)] = 1
    """Nodes that one worker spans, one pod on each."""
    isolated: bool | None = None
    """Network policies keep its pods apart; those of one worker on several nodes are then opened to each other."""
    gang: Gang | None = None
    """Who starts all pods of a worker or none."""
    topology: WorkerTopology | None = None
    """Part of the network that the pods of one worker on several nodes share."""
    compute_domain: bool | None = None
    """Each worker on several nodes gets a ComputeDomain, by which its GPUs share memory across nodes."""
    unschedulable_timeout: Duration | None = None
    """How long a worker of which only some pods have a node holds these; absent, until it is given up."""
    replicas: Annotated[int, Field(ge=0, le=MAX_WORKERS)] | None = None
    """Workers; while it is absent those that are there stay and none is made."""
    revision: Hash
    """What workers must agree on to hand KV to each other."""
    template_hash: Hash
    """Hash of the template."""
    drain_timeout: Duration = "60s"
    """How long a worker that leaves may finish its rounds and move its sessions."""
    template: Annotated[
        dict[str, Any], Field(max_length=16, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    ]
    """The pod template of the workers; each adds its own name to it, as a label and as the variable WEFT_WORKER."""


class WorkerStatus(ApiModel):
    """One worker."""

    name: ShortText
    """Name of the worker and of its StatefulSet."""
    ready: bool = False
    """Whether it serves with the newest template."""
    outdated: bool = False
    """It serves with the template before, until it is its turn."""
    draining: bool = False
    """It takes no new sessions, and goes when its rounds have ended and its sessions have moved."""
    lost: Text | None = None
    """Why it was given up; another worker takes its place."""
    trouble: Text | None = None
    """What keeps it from being ready."""
    unschedulable: bool = False
    """No node has room for it."""
    node: ShortText | None = None
    """Node of its first pod."""
    since: Annotated[str | None, Field(json_schema_extra={"format": "date-time"})] = None
    """Since when a worker that does not serve is as it is: without a node, or with one."""
    sessions: Count | None = None
    """Sessions that are bound to it; absent, as the figures below, where it does not tell."""
    live_rounds: Count | None = None
    """Rounds that it is answering."""
    kv_tokens: Count | None = None
    """Tokens whose KV it holds."""
    idle_seconds: Count | None = None
    """Seconds since its last round."""


class WorkerGroupStatus(ApiModel):
    """What the operator last saw and did."""

    observed_generation: int | None = None
    """Generation of the spec that this status is about."""
    replicas: Count = 0
    """Workers that are meant to stay."""
    ready_replicas: Count = 0
    """Workers that serve, with the newest template or the one before."""
    updated_replicas: Count = 0
    """Workers that serve with the newest template."""
    draining_replicas: Count = 0
    """Workers on their way out whose pods are still there: their GPUs are still taken."""
    selector: Text = ""
    """Label selector of the workers' pods, for autoscalers."""
    workers: Annotated[list[WorkerStatus], Field(max_length=2 * MAX_WORKERS)] = []
    """Each worker, those on their way out included; figures are written anew at most every ten seconds."""
    conditions: Annotated[
        list[Condition], Field(max_length=8, json_schema_extra={"x-kubernetes-list-map-keys": ["type"]})
    ] = []
    """Ready: as many workers as asked for serve with the newest template. Progressing: some are made or removed."""


class WorkerGroup(ApiModel):
    """The workers of one role, degree, pool and revision of a service. Made by the operator."""

    spec: WorkerGroupSpec
    status: WorkerGroupStatus | None = None
