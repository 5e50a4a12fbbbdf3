"""Where the pods of workers go: workers of a role apart, the pods of one worker on nodes of their own, and near."""

from collections.abc import Mapping
from typing import Any

from weft_operator.api.capacity import Pool
from weft_operator.manifest import WORKER_LABEL, Manifest

HOSTNAME = "kubernetes.io/hostname"


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
