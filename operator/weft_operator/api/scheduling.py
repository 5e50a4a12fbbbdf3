"""How the pods of workers are scheduled: together, by a gang scheduler, and near each other."""

from typing import Annotated, ClassVar, Literal

from pydantic import StringConstraints

from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import DnsLabel, LabelKey

QueueName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", min_length=1, max_length=63)]


class Gang(ApiModel):
    """A scheduler, or a queue, that starts all pods of a worker on several nodes or none of them.

    All workers of the service go through it, those on one node too: two schedulers would give the same GPUs away.
    """

    scheduler: Literal["kueue", "volcano", "kai", "coscheduling"]
    """kueue admits workers by quota; volcano, kai (0.15 or newer) and coscheduling (scheduler-plugins) place their
    pods by a PodGroup for each worker on several nodes."""
    queue: QueueName | None = None
    """LocalQueue of Kueue, or Queue of Volcano or KAI; needed for kueue and kai."""
    scheduler_name: DnsLabel | None = None
    """schedulerName of the pods; volcano, kai-scheduler or scheduler-plugins-scheduler if absent."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(self.scheduler in ['kueue', 'kai']) || has(self.queue)",
            "spec.scheduling.gang.queue: is needed for kueue and kai; name a LocalQueue of Kueue or a Queue of KAI",
            lambda g: g.scheduler not in ("kueue", "kai") or g.queue is not None,
        ),
        Rule(
            "self.scheduler != 'coscheduling' || !has(self.queue)",
            "spec.scheduling.gang.queue: coscheduling has no queues; remove it",
            lambda g: g.scheduler != "coscheduling" or g.queue is None,
        ),
        Rule(
            "self.scheduler != 'kueue' || !has(self.schedulerName)",
            "spec.scheduling.gang.schedulerName: kueue leaves placing to the cluster's scheduler; remove it",
            lambda g: g.scheduler != "kueue" or g.scheduler_name is None,
        ),
    )


class Scheduling(ApiModel):
    """How the pods of workers are scheduled."""

    gang: Gang | None = None
    """Who starts workers on several nodes all or not at all; if absent, a worker of which only some pods find a node
    gives these back after rollout.unschedulableTimeout and tries again later."""


class Topology(ApiModel):
    """Part of the network that pods share, named by a node label such as nvidia.com/gpu.clique or a rack's."""

    required: LabelKey | None = None
    """Node label of which all must have the same value: an NVLink domain."""
    preferred: LabelKey | None = None
    """Node label of which all should have the same value, where there is room: a rack."""
    scope: Literal["worker", "service"] = "worker"
    """Whose pods: those of one worker on several nodes, or of all workers of the service, for KV transfers."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.required) || has(self.preferred)",
            "spec.capacity.pools.topology: names no node label; add required or preferred",
            lambda t: t.required is not None or t.preferred is not None,
        ),
    )


class WorkerTopology(ApiModel):
    """Part of the network that the pods of one worker share, by node labels."""

    required: LabelKey | None = None
    """All pods of the worker are on nodes with the same value of it."""
    preferred: LabelKey | None = None
    """The same, where there is room."""
