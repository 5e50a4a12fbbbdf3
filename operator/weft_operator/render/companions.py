"""Objects of a worker on several nodes other than its StatefulSet: NetworkPolicy, PodGroup, ComputeDomain. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from weft_operator.api.objects import SERVICE_LABEL, WORKER_LABEL, Manifest, ObjectKey, annotations_of, labels_of
from weft_operator.errors import ApiError, NotFoundError, StalledError, refusal_of
from weft_operator.render.compute_domain import CLAIM, COMPUTE_DOMAIN, COMPUTE_DOMAIN_API, compute_domain
from weft_operator.render.gang import COSCHEDULING_GROUP, KAI_GROUP, POD_GROUP, POD_GROUP_APIS, VOLCANO_GROUP, pod_group
from weft_operator.render.gateway import HTTP_ROUTE, INFERENCE_POOL
from weft_operator.render.mesh import PEER_AUTHENTICATION
from weft_operator.render.statefulsets import worker_metadata
from weft_operator.workers.fleet import Worker
from weft_operator.workers.groups import WorkerGroupView

CompanionKind = tuple[str, str]
"""API version and kind."""

NETWORK_POLICY: CompanionKind = ("networking.k8s.io/v1", "NetworkPolicy")
COMPANION_KINDS = frozenset({NETWORK_POLICY[1], POD_GROUP, COMPUTE_DOMAIN})


_INSTALL: Mapping[str, str] = {
    POD_GROUP_APIS["volcano"]: "install Volcano, or change spec.scheduling.gang",
    POD_GROUP_APIS["kai"]: "install the KAI scheduler (0.15 or newer), or change spec.scheduling.gang",
    POD_GROUP_APIS["coscheduling"]: "install scheduler-plugins with its PodGroup, or change spec.scheduling.gang",
    HTTP_ROUTE[
        0
    ]: "install the CRDs of the Gateway API (gateway.networking.k8s.io/v1) and a gateway, or remove spec.gateway",
    INFERENCE_POOL[
        0
    ]: "install the CRDs of the Gateway API Inference Extension (v1) and a gateway that supports them, or set "
    "spec.gateway.mode to coordinator",
    PEER_AUTHENTICATION[0]: "install Istio 1.25 or newer, or set spec.network.mesh.mtls to Permissive",
    COMPUTE_DOMAIN_API: "install NVIDIA's DRA driver with ComputeDomains, or remove spec.capacity.pools.computeDomain",
}
"""The remedy for a missing kind of another project, by its API version."""


def refusal(key: ObjectKey, error: StalledError | ApiError) -> tuple[str, str]:
    """Return the reason and message for a refused object of a worker or of a service."""
    if isinstance(error, NotFoundError) and key.api_version in _INSTALL:
        words = f"{key} cannot be made, because the cluster has no {key.kind} of {key.api_version}"
        return "KindMissing", f"{words}; {_INSTALL[key.api_version]}"
    return refusal_of(error)


def companion_objects(group: WorkerGroupView, worker: Worker) -> tuple[Manifest, ...]:
    """Return a worker's objects other than its StatefulSet; none for a worker on one node."""
    name = group.name_of(worker)
    metadata = worker_metadata(group, name)
    return (
        *_network_policy(group, name, metadata),
        *pod_group(group.spec, metadata),
        *compute_domain(group.spec, name, metadata),
    )


def companion_kinds(spec: Mapping[str, Any], statefulsets: Iterable[Manifest]) -> tuple[CompanionKind, ...]:
    """Return the kinds that a group's workers may have: as its spec wants it, and as their pods were made.

    A kind that is in neither is not asked for: most clusters have no PodGroups, and no ComputeDomains.
    """
    if int(spec.get("nodesPerWorker") or 1) == 1:
        return ()
    found = {NETWORK_POLICY}
    scheduler = str((spec.get("gang") or {}).get("scheduler"))
    if scheduler in POD_GROUP_APIS:
        found.add((POD_GROUP_APIS[scheduler], POD_GROUP))
    if spec.get("computeDomain"):
        found.add((COMPUTE_DOMAIN_API, COMPUTE_DOMAIN))
    for item in statefulsets:
        found |= _kinds_in(item["spec"]["template"])
    return tuple(sorted(found))


def _kinds_in(template: Mapping[str, Manifest]) -> set[CompanionKind]:
    """Return the kinds that a pod template refers to."""
    marks = {
        "volcano": VOLCANO_GROUP in annotations_of(template),
        "kai": KAI_GROUP in annotations_of(template),
        "coscheduling": COSCHEDULING_GROUP in labels_of(template),
    }
    found = {(POD_GROUP_APIS[scheduler], POD_GROUP) for scheduler, there in marks.items() if there}
    if any(claim["name"] == CLAIM for claim in template["spec"].get("resourceClaims") or ()):
        found.add((COMPUTE_DOMAIN_API, COMPUTE_DOMAIN))
    return found


def _network_policy(group: WorkerGroupView, name: str, metadata: Manifest) -> tuple[Manifest, ...]:
    """Return the NetworkPolicy that lets the pods of a worker on several nodes reach each other at every port.

    Ranks connect to each other at ports of the kernel's choice. None where nothing keeps pods apart: a policy that
    chooses a pod also closes it to whom it does not name.
    """
    if group.spec.nodes_per_worker == 1 or not group.spec.isolated:
        return ()
    pods = {"podSelector": {"matchLabels": {SERVICE_LABEL: group.spec.service, WORKER_LABEL: name}}}
    api_version, kind = NETWORK_POLICY
    spec = {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]}
    return ({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec},)
