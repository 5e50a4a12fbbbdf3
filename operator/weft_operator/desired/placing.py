"""Where pods go: to nodes of a kind, workers of a role apart, the pods of one worker on nodes near each other."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from weft_operator.api.capacity import Pool, Toleration
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.manifest import WORKER_LABEL, Manifest

HOSTNAME = "kubernetes.io/hostname"

NODE_LOSS_S = 15
"""How long a pod stays bound to a node that does not answer; Kubernetes' default is 300."""


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


def spread(selector: Mapping[str, str], pool: Pool, *, nodes: int) -> Manifest:
    """Return how the pods that a selector chooses, those of a role, are spread.

    Workers are spread over the pool's topology as well as can be. The pods of one worker never share a node: each takes
    a node's GPUs, and on one that has twice as many they would leave another half empty.
    """
    alone = nodes == 1
    found: Manifest = {
        "maxSkew": 1,
        "topologyKey": pool.topology_key if alone else HOSTNAME,
        "whenUnsatisfiable": "ScheduleAnyway" if alone else "DoNotSchedule",
        "labelSelector": {"matchLabels": dict(selector)},
    }
    return found if alone else {**found, "matchLabelKeys": [WORKER_LABEL]}


def affinity_of(selector: Mapping[str, str], pool: Pool, *, nodes: int) -> dict[str, Any]:
    """Return the pool's affinity; where its topology is not nodes, those of one worker are drawn to one part of it.

    Every layer of the model waits for the network between them. A pool's own podAffinity has the last word.
    """
    own: dict[str, Any] = dict(pool.affinity or {})
    if nodes == 1 or pool.topology_key == HOSTNAME or "podAffinity" in own:
        return own
    term = {
        "topologyKey": pool.topology_key,
        "labelSelector": {"matchLabels": dict(selector)},
        "matchLabelKeys": [WORKER_LABEL],
    }
    return {
        **own,
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]},
    }
