"""Where pods go: to nodes of a kind, workers apart, and all of a service near each other where pools ask.

What keeps the pods of one worker apart, and near, is added with the worker's name (``worker_placement``).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from weft_operator.api.capacity import Pool, Toleration
from weft_operator.api.objects import COMPONENT_LABEL, SERVICE_LABEL, Manifest
from weft_operator.api.scheduling import WorkerTopology
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.worker_placement import HOSTNAME, PREFERRED, REQUIRED, weighted, with_term

NODE_LOSS_S = 15
"""Toleration seconds for a node that does not answer; Kubernetes' default is 300."""


class Placement(Protocol):
    """Nodes and priority of pods, as a pool and the coordinator have them."""

    @property
    def node_selector(self) -> Mapping[str, str]:
        """Labels of the nodes."""

    @property
    def tolerations(self) -> Sequence[Toleration]:
        """Taints of the nodes."""

    @property
    def priority_class_name(self) -> str | None:
        """PriorityClass of the pods."""


def pod_placement(asked: Placement) -> Manifest:
    """Return the fields of a pod's spec for its nodes and its priority; Jobs have those of their pool."""
    node_loss = [
        {
            "key": f"node.kubernetes.io/{taint}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": NODE_LOSS_S,
        }
        for taint in ("not-ready", "unreachable")
    ]
    own = [item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in asked.tolerations]
    return {
        "tolerations": [*node_loss, *own],
        **({"nodeSelector": dict(sorted(asked.node_selector.items()))} if asked.node_selector else {}),
        **({"priorityClassName": asked.priority_class_name} if asked.priority_class_name else {}),
    }


def pull_secrets(spec: DisaggInferenceServiceSpec, *, engine: bool) -> Manifest:
    """Return the field of a pod's spec with the Secrets for its images; ``engine``: it pulls the engine's, too."""
    names = dict.fromkeys([*spec.image_pull_secrets, *(spec.engine.image_pull_secrets if engine else ())])
    return {"imagePullSecrets": [{"name": name} for name in names]} if names else {}


def spread(selector: Mapping[str, str], pool: Pool) -> Manifest:
    """Return how the pods that a selector chooses, workers, are spread over the pool's topology if they can."""
    return {
        "maxSkew": 1,
        "topologyKey": pool.topology_key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(selector)},
    }


def affinity_of(service: str, pool: Pool, components: Sequence[str]) -> dict[str, Any]:
    """Return the pool's affinity, with the term that keeps all workers of the service in one part of the network.

    ``components`` are those of the service's workers.
    """
    own: dict[str, Any] = dict(pool.affinity or {})
    topology = pool.topology
    if topology is None or topology.scope != "service":
        return own
    if topology.required is not None:
        own = with_term(own, "podAffinity", REQUIRED, _near(service, topology.required, components))
    if topology.preferred is not None:
        own = with_term(own, "podAffinity", PREFERRED, weighted(_near(service, topology.preferred, components)))
    return own


def _near(service: str, key: str, components: Sequence[str]) -> Manifest:
    workers = {"key": COMPONENT_LABEL, "operator": "In", "values": list(components)}
    return {
        "topologyKey": key,
        "labelSelector": {"matchLabels": {SERVICE_LABEL: service}, "matchExpressions": [workers]},
    }


def worker_topology(pool: Pool) -> WorkerTopology | None:
    """Return the part of the network that the pods of one worker on several nodes share.

    Every layer of the model waits for the network between them. Without a word of it they prefer one part of what
    workers are spread over, unless that is nodes, or the pool has a podAffinity of its own. Where the pool has racks,
    they need one of these.
    """
    topology, rack = pool.topology, pool.rack_label
    if topology is not None and topology.scope == "worker":
        return WorkerTopology(required=topology.required or rack, preferred=topology.preferred)
    if topology is not None:
        return None if rack is None or topology.required is not None else WorkerTopology(required=rack)
    alone = pool.topology_key == HOSTNAME or "podAffinity" in (pool.affinity or {})
    if alone and rack is None:
        return None
    return WorkerTopology(required=rack, preferred=None if alone else pool.topology_key)
