"""Kubernetes objects as plain dicts, and the few things every part reads from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Manifest = dict[str, Any]
"""One Kubernetes object in its JSON form."""

SERVICE_LABEL = "weft.dev/service"
WORKER_LABEL = "weft.dev/worker"
ROLE_LABEL = "weft.dev/role"
"""On a worker's pods and StatefulSet: its assigned role, prefill, decode or both."""
DEGREE_LABEL = "weft.dev/degree"
POOL_LABEL = "weft.dev/pool"
REVISION_LABEL = "weft.dev/revision"
PLAN_REVISION_LABEL = "weft.dev/plan-revision"
OPERATOR_LABEL = "weft.dev/operator"
"""On a service: the one operator, of several in a cluster, that looks after it; absent for the usual one."""

CANARY_ANNOTATION = "weft.dev/canary"
"""On a service: promote or abort and the hash in status.canary, as ``weft rollout promote`` and ``abort`` write it."""
PROMOTE, ABORT = "promote", "abort"

APPROVE_ANNOTATION = "weft.dev/approve"
"""On a service with spec.planning.mode Manual: the hash of the proposal that may be carried out."""

ROLLBACK_ANNOTATION = "weft.dev/rollback-to"
"""On a service: the number of the plan revision that is to be active again, as ``weft rollout undo`` writes it."""

UPGRADE_ANNOTATION = "weft.dev/upgrade-router-to"
"""On a service: the router image that its pods are to change to, as ``weft rollout upgrade`` writes it."""

MEASURE_ANNOTATION = "weft.dev/measure-profile"
"""On a service with spec.profile.measure: any new value has its cost profile measured again."""

DRAIN_ANNOTATION = "weft.dev/drain"
"""On a worker's pod: this worker is the next to go, as ``weft drain`` writes it."""

COMPONENT_LABEL = "app.kubernetes.io/component"
WORKER_COMPONENT = "worker"
"""The component of workers whose role can change; of others it is their role."""
WORKER_COMPONENTS = ("prefill", "decode", WORKER_COMPONENT)
PICKER_COMPONENT = "picker"
"""The component of endpoint pickers."""
PROFILE_COMPONENT = "profile"
"""The component of what measures cost profiles."""
WEIGHTS_COMPONENT = "weights"
"""The component of what fills a cache of weights."""
WEIGHTS_ANNOTATION = "weft.dev/weights"
"""On Jobs and on templates of workers: the key of the weights that they are for."""
DRAIN_REQUESTED = "requested"
"""The value of the annotation weft.dev/drain."""
HASH_ANNOTATION = "weft.dev/applied-hash"
RELEASED_ANNOTATION = "weft.dev/released-at"
"""On a StatefulSet of a worker on several nodes: when it gave back the nodes that only some of its pods had found."""
TEMPLATE_HASH_ANNOTATION = "weft.dev/template-hash"
TOKEN_HASH_ANNOTATION = "weft.dev/token-hash"  # noqa: S105 - the name of an annotation


@dataclass(frozen=True, slots=True, order=True)
class ServiceKey:
    """Names one DisaggInferenceService."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """Names one WorkerGroup."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


PassKey = ServiceKey | GroupKey
"""What a pass is over."""


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Names one object of any kind in the service's namespace."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def key_of(manifest: Mapping[str, Any]) -> ObjectKey:
    """Return the key of an object."""
    metadata = manifest["metadata"]
    return ObjectKey(manifest["apiVersion"], manifest["kind"], metadata.get("namespace", ""), metadata["name"])


def name_of(manifest: Mapping[str, Any]) -> str:
    """Return an object's name."""
    return str(manifest["metadata"]["name"])


def labels_of(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    """Return an object's labels; none are an empty mapping."""
    labels: Mapping[str, str] = manifest["metadata"].get("labels") or {}
    return labels


def pod_role(pod: Mapping[str, Any]) -> str:
    """Return what a pod is: the role that a worker has now, or the component of any other pod."""
    labels = labels_of(pod)
    return labels.get(ROLE_LABEL) or labels.get(COMPONENT_LABEL, "")


def annotations_of(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    """Return an object's annotations; none are an empty mapping."""
    annotations: Mapping[str, str] = manifest["metadata"].get("annotations") or {}
    return annotations


def is_terminating(manifest: Mapping[str, Any]) -> bool:
    """Return whether an object's deletionTimestamp is set."""
    return bool(manifest["metadata"].get("deletionTimestamp"))


def controller_of(manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the owner reference of the controller that made an object."""
    for owner in manifest["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            reference: Mapping[str, Any] = owner
            return reference
    return None


def condition_of(manifest: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """Return one condition of an object's status."""
    for condition in (manifest.get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind:
            found: Mapping[str, Any] = condition
            return found
    return None


def timestamp(moment: datetime) -> str:
    """Return a time as statuses hold it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
