"""Gang scheduling of a worker: labels, annotations, the scheduler's name, and a PodGroup. Pure.

Sources: Kueue's "Run StatefulSet" (its webhook does the rest), Volcano's scheduling.volcano.sh/v1beta1, the
coscheduling plug-in's scheduling.x-k8s.io/v1alpha1, and KAI's "External PodGroups" (since 0.15), for its own grouping
of a StatefulSet's pods places them one by one.
"""

from collections.abc import Mapping

from weft_operator.api.objects import Manifest
from weft_operator.api.scheduling import Gang
from weft_operator.api.worker_group import WorkerGroupSpec

POD_GROUP = "PodGroup"
POD_GROUP_APIS: Mapping[str, str] = {
    "volcano": "scheduling.volcano.sh/v1beta1",
    "kai": "scheduling.run.ai/v2alpha2",
    "coscheduling": "scheduling.x-k8s.io/v1alpha1",
}
"""Where the PodGroup of each scheduler is; Kueue has none."""

SCHEDULER_NAMES: Mapping[str, str] = {
    "volcano": "volcano",
    "kai": "kai-scheduler",
    "coscheduling": "scheduler-plugins-scheduler",
}
"""Scheduler names of the projects' own charts."""

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
KAI_QUEUE = "kai.scheduler/queue"
KAI_GROUP = "pod-group-name"
KAI_SKIP = "kai.scheduler/skip-podgrouper"
COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"


def workload_labels(gang: Gang | None) -> dict[str, str]:
    """Return the labels of a StatefulSet or Job by which a queue admits it."""
    return {KUEUE_QUEUE: gang.queue} if gang is not None and gang.scheduler == "kueue" and gang.queue else {}


def add_gang(gang: Gang | None, template: Manifest, *, pod_group: str = "") -> Manifest:
    """Return a pod template with what names its scheduler, its queue and, if it has one, its PodGroup."""
    if gang is None or gang.scheduler == "kueue":
        return template
    labels, annotations = _marks(gang, pod_group)
    metadata = template["metadata"]
    metadata = {**metadata, "labels": {**metadata["labels"], **labels}}
    if annotations:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    scheduler = gang.scheduler_name or SCHEDULER_NAMES[gang.scheduler]
    return {**template, "metadata": metadata, "spec": {**template["spec"], "schedulerName": scheduler}}


def _marks(gang: Gang, pod_group: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return labels and annotations of pods."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    match gang.scheduler:
        case "volcano":
            if gang.queue:
                annotations[VOLCANO_QUEUE] = gang.queue
            if pod_group:
                annotations[VOLCANO_GROUP] = pod_group
        case "kai":
            if gang.queue:
                labels[KAI_QUEUE] = gang.queue
            if pod_group:
                annotations |= {KAI_SKIP: "true", KAI_GROUP: pod_group}
        case "coscheduling":
            if pod_group:
                labels[COSCHEDULING_GROUP] = pod_group
    return labels, annotations


def pod_group(spec: WorkerGroupSpec, metadata: Manifest) -> tuple[Manifest, ...]:
    """Return the PodGroup of a worker on several nodes, with this metadata; none where its scheduler needs none."""
    gang = spec.gang
    if gang is None or spec.nodes_per_worker == 1 or gang.scheduler not in POD_GROUP_APIS:
        return ()
    body: Manifest = {"minMember": spec.nodes_per_worker}
    if gang.queue:
        body["queue"] = gang.queue
    priority = spec.template["spec"].get("priorityClassName")
    if priority and gang.scheduler != "coscheduling":
        body["priorityClassName"] = priority
    return ({"apiVersion": POD_GROUP_APIS[gang.scheduler], "kind": POD_GROUP, "metadata": metadata, "spec": body},)
