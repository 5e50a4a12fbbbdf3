"""The ComputeDomain of a worker on several nodes: its GPUs share memory over NVLink between nodes. Pure.

NVIDIA's DRA driver makes a ResourceClaimTemplate of the name that the ComputeDomain gives, and each pod of the worker
claims a channel by it (github.com/NVIDIA/k8s-dra-driver-gpu, api resource.nvidia.com/v1beta1).
"""

from weft_operator.api.objects import Manifest
from weft_operator.api.worker_group import WorkerGroupSpec

COMPUTE_DOMAIN = "ComputeDomain"
COMPUTE_DOMAIN_API = "resource.nvidia.com/v1beta1"
CLAIM = "compute-domain"
"""The name of the claim in a pod."""


def has_domain(spec: WorkerGroupSpec) -> bool:
    """Return whether each worker of a group has a ComputeDomain."""
    return bool(spec.compute_domain) and spec.nodes_per_worker > 1


def compute_domain(spec: WorkerGroupSpec, name: str, metadata: Manifest) -> tuple[Manifest, ...]:
    """Return the ComputeDomain of a worker, with this metadata but for its name.

    Its spec can never change, so that a worker on another number of nodes gets another one.
    """
    if not has_domain(spec):
        return ()
    own = {**metadata, "name": _domain(spec, name)}
    channel = {"resourceClaimTemplate": {"name": _claim_template(spec, name)}}
    body = {"numNodes": spec.nodes_per_worker, "channel": channel}
    return ({"apiVersion": COMPUTE_DOMAIN_API, "kind": COMPUTE_DOMAIN, "metadata": own, "spec": body},)


def add_claim(spec: WorkerGroupSpec, name: str, pod: Manifest) -> Manifest:
    """Return the pod of a worker with its claim of a channel, which the engine gets."""
    if not has_domain(spec):
        return pod
    claim = {"name": CLAIM, "resourceClaimTemplateName": _claim_template(spec, name)}
    return {
        **pod,
        "resourceClaims": [*(pod.get("resourceClaims") or ()), claim],
        "containers": [_with_claim(item) if item["name"] == "engine" else item for item in pod["containers"]],
    }


def _with_claim(container: Manifest) -> Manifest:
    resources = container.get("resources") or {}
    return {**container, "resources": {**resources, "claims": [*(resources.get("claims") or ()), {"name": CLAIM}]}}


def _domain(spec: WorkerGroupSpec, name: str) -> str:
    return f"{name}-{spec.nodes_per_worker}"


def _claim_template(spec: WorkerGroupSpec, name: str) -> str:
    return f"{_domain(spec, name)}-channel"
