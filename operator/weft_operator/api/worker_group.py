"""WorkerGroup: the workers of one degree, pool and revision, which the operator creates."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from weft_core.spans import MAX_NODES
from weft_operator.api.base import ApiModel
from weft_operator.api.fields import AnyDegree, DnsLabel, Duration, Role, ShortText, Text, WorkerRole
from weft_operator.api.scheduling import Gang, WorkerTopology
from weft_operator.api.status import Condition

GROUP_KIND = "WorkerGroup"
GROUP_PLURAL = "workergroups"

MAX_WORKERS = 1024
"""Workers of one group; the status lists each of them."""

Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]+$", max_length=64)]
Count = Annotated[int, Field(ge=0)]


class RoleCounts(ApiModel):
    """Numbers of workers by role."""

    prefill: Count = 0
    """Workers that prefill for the sessions of others."""
    decode: Count = 0
    """Workers that decode; in a colocated layout they prefill for themselves."""
    both: Count = 0
    """Workers that do both."""


class WorkerGroupSpec(ApiModel):
    """The desired workers. The operator writes it; with planning.mode Off others may change replicas and roles."""

    service: DnsLabel
    """The DisaggInferenceService of the workers."""
    role: Role | None = None
    """prefill or decode, where the engine's role is fixed when it starts; absent where roles can change."""
    degree: AnyDegree
    """GPUs of one worker, over all its nodes, that share layers by tensors; or how it splits the model otherwise."""
    pool: Annotated[str, StringConstraints(max_length=63)] = ""
    """GPU pool."""
    nodes_per_worker: Annotated[int, Field(ge=1, le=MAX_NODES)] = 1
    """Nodes that one worker spans, one pod on each."""
    isolated: bool | None = None
    """Whether network policies isolate the pods; those of one worker on several nodes may then reach each other."""
    gang: Gang | None = None
    """The gang scheduler that starts all pods of a worker or none."""
    topology: WorkerTopology | None = None
    """Part of the network that the pods of one worker on several nodes share."""
    compute_domain: bool | None = None
    """Each worker on several nodes gets a ComputeDomain, by which its GPUs share memory across nodes."""
    unschedulable_timeout: Duration | None = None
    """How long a partly scheduled worker holds its nodes; absent, until the rollout is aborted."""
    replicas: Annotated[int, Field(ge=0, le=MAX_WORKERS)] | None = None
    """Number of workers, of all roles; while it is absent, existing ones stay and none is created."""
    roles: RoleCounts | None = None
    """Workers of each role, where roles can change; scaled in proportion where replicas is not their sum."""
    revision: Hash
    """Hash of the configuration that workers must share to exchange KV."""
    template_hash: Hash
    """Hash of the template."""
    drain_timeout: Duration = "60s"
    """How long a worker that is removed may take to finish its rounds and migrate its sessions."""
    template: Annotated[
        dict[str, Any], Field(max_length=16, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    ]
    """The pod template of the workers; each adds its own name to it, as a label and as the variable WEFT_WORKER."""


class WorkerStatus(ApiModel):
    """One worker."""

    name: ShortText
    """Name of the worker and of its StatefulSet."""
    role: WorkerRole | None = None
    """The role that is assigned to the worker: prefill, decode or both."""
    switching: bool = False
    """Whether the worker has not confirmed its role yet; it counts for none meanwhile."""
    ready: bool = False
    """Whether the worker serves with the newest template."""
    outdated: bool = False
    """Whether the worker still serves with an older template."""
    draining: bool = False
    """Whether the worker drains: it takes no new sessions, and ends after its rounds and migrations."""
    lost: Text | None = None
    """Why the worker is lost; another one replaces it."""
    trouble: Text | None = None
    """Why the worker is not ready."""
    unschedulable: bool = False
    """Whether the scheduler finds no node for the worker."""
    node: ShortText | None = None
    """Node of the worker's first pod."""
    since: Annotated[str | None, Field(json_schema_extra={"format": "date-time"})] = None
    """When a worker that does not serve in its role entered its state: unscheduled, scheduled, or changing its role."""
    sessions: Count | None = None
    """Sessions bound to the worker; absent, as the figures below, without heartbeats."""
    live_rounds: Count | None = None
    """Rounds in progress."""
    kv_tokens: Count | None = None
    """Tokens of KV cache in use by sessions."""
    idle_seconds: Count | None = None
    """Seconds since the last round."""


class WorkerGroupStatus(ApiModel):
    """The observed state of the group."""

    observed_generation: int | None = None
    """Generation of the spec that the status is about."""
    replicas: Count = 0
    """Workers that stay."""
    ready_replicas: Count = 0
    """Workers that serve, with the newest template or an older one."""
    updated_replicas: Count = 0
    """Workers that serve with the newest template."""
    draining_replicas: Count = 0
    """Workers that drain and whose pods still exist, with their GPUs."""
    roles: RoleCounts | None = None
    """Workers that serve, by the role that they have confirmed."""
    selector: Text = ""
    """Label selector of the workers' pods, for autoscalers."""
    workers: Annotated[list[WorkerStatus], Field(max_length=2 * MAX_WORKERS)] = []
    """All workers, including those that drain; figures are updated at most every ten seconds."""
    conditions: Annotated[
        list[Condition], Field(max_length=8, json_schema_extra={"x-kubernetes-list-map-keys": ["type"]})
    ] = []
    """Ready: all requested workers serve with the newest template. Progressing: some are created or removed."""


class WorkerGroup(ApiModel):
    """The workers of one degree, pool and revision of a service. Created by the operator."""

    spec: WorkerGroupSpec
    status: WorkerGroupStatus | None = None
