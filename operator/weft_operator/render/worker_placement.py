"""Placement of the pods of one worker on several nodes: one per node, in one part of the network. Pure.

The worker is chosen by its own name, not by matchLabelKeys, which clusters before Kubernetes 1.31 drop from an affinity
without a word. These terms are added after the service's own changes of the pod, so that none of them is lost.
"""

from typing import Any

from weft_operator.api.objects import SERVICE_LABEL, WORKER_LABEL, Manifest
from weft_operator.api.worker_group import WorkerGroupSpec

HOSTNAME = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def add_placement(spec: WorkerGroupSpec, name: str, pod: Manifest) -> Manifest:
    """Return the pod of a worker with affinity terms: not on the nodes of the others, and near them.

    A spread over nodes would not do: where fewer nodes fit than the worker spans, the scheduler counts the emptiest of
    these as its minimum and puts two pods on one.
    """
    if spec.nodes_per_worker == 1:
        return pod
    affinity = with_term(pod.get("affinity") or {}, "podAntiAffinity", REQUIRED, _term(spec, name, HOSTNAME))
    topology = spec.topology
    if topology is not None and topology.required is not None:
        affinity = with_term(affinity, "podAffinity", REQUIRED, _term(spec, name, topology.required))
    if topology is not None and topology.preferred is not None:
        affinity = with_term(affinity, "podAffinity", PREFERRED, weighted(_term(spec, name, topology.preferred)))
    return {**pod, "affinity": affinity}


def _term(spec: WorkerGroupSpec, name: str, key: str) -> dict[str, Any]:
    return {
        "topologyKey": key,
        "labelSelector": {"matchLabels": {SERVICE_LABEL: spec.service, WORKER_LABEL: name}},
    }


def weighted(term: Manifest) -> Manifest:
    """Return a term as a preference with the largest weight."""
    return {"weight": 100, "podAffinityTerm": term}


def with_term(affinity: Manifest, kind: str, when: str, term: Manifest) -> Manifest:
    """Return an affinity with another term of podAffinity or podAntiAffinity, required or preferred."""
    own = affinity.get(kind) or {}
    return {**affinity, kind: {**own, when: [*(own.get(when) or ()), term]}}
