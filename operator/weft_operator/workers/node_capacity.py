"""Free GPUs of the nodes: allocatable GPUs less the requests of other pods."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft_core.quantities import bytes_of
from weft_operator.api.capacity import Pool, Toleration
from weft_operator.api.objects import SERVICE_LABEL, Manifest, ServiceKey, condition_of, labels_of, name_of

_FINISHED = ("Succeeded", "Failed")
_REPELLING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """The GPUs of the nodes of a service's pools.

    ``total``: allocatable GPUs, each node counted once. ``free``: free GPUs of each node, by pool; pools that share
    nodes are left out, because it is not known which of them gets a GPU. ``racks``: wholly free nodes of each rack, by
    pool; only of pools with racks. ``notes`` say what is not known; ``empty`` names pools without nodes.
    """

    total: int
    free: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    racks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def capacity_of(
    pools: Sequence[Pool], nodes: Sequence[Manifest], pods: Sequence[Manifest] | None, *, service: ServiceKey
) -> NodeCapacity:
    """Return the capacity of pools; ``pods`` are those of all namespaces, None when they may not be listed.

    The GPUs of the service's own pods count as free, because a new plan replaces them. Nodes that are cordoned, not
    ready, or tainted against the pool's workers have none free.
    """
    matching = {pool.name: [node for node in nodes if _belongs(node, pool)] for pool in pools}
    members: dict[str, list[str]] = {}
    total: dict[tuple[str, str], int] = {}
    for pool in pools:
        for node in matching[pool.name]:
            members.setdefault(name_of(node), []).append(pool.name)
            total[name_of(node), pool.resource] = _allocatable(node, pool.resource) * pool.gpus_of_device
    notes = []
    if pods is None:
        notes.append("pods of other namespaces may not be listed, so their GPUs count as free")
    shared = sorted({pool for names in members.values() if len(names) > 1 for pool in names})
    if shared:
        notes.append(
            f"pools {' and '.join(shared)} share nodes, so their free GPUs are not known; "
            "give the pools different node selectors"
        )
    free, racks = {}, {}
    for pool in pools:
        if pool.name in shared:
            continue
        taken = _taken(pods or (), pool.resource, service)
        usable = [node for node in matching[pool.name] if _accepts(node, pool.tolerations)]
        rest = [
            (node, (_allocatable(node, pool.resource) - taken.get(name_of(node), 0)) * pool.gpus_of_device)
            for node in usable
        ]
        free[pool.name] = tuple(sorted((gpus for _, gpus in rest if gpus > 0), reverse=True))
        if pool.rack_label is not None:
            racks[pool.name] = _racks(rest, pool)
            if matching[pool.name] and not any(pool.rack_label in labels_of(node) for node in matching[pool.name]):
                notes.append(
                    f"no node of pool {pool.name} has the label {pool.rack_label}, so no rack is known; set "
                    "spec.capacity.pools.topology.required to the label that names racks"
                )
    empty = tuple(pool.name for pool in pools if not matching[pool.name])
    notes += [f"no node has the labels of spec.capacity.pools[{name}].nodeSelector" for name in empty]
    return NodeCapacity(total=sum(total.values()), free=free, notes=tuple(notes), empty=empty, racks=racks)


def _racks(free: Sequence[tuple[Manifest, int]], pool: Pool) -> tuple[int, ...]:
    """Return how many nodes of each rack have all the GPUs of a node free; a node without the label is in none."""
    whole = (labels_of(node).get(pool.rack_label or "") for node, gpus in free if gpus >= pool.gpus_per_node)
    return tuple(sorted(Counter(rack for rack in whole if rack).values(), reverse=True))


def largest_memory(pools: Sequence[Pool], nodes: Sequence[Manifest]) -> dict[str, int]:
    """Return the allocatable memory of the largest node of each pool, in bytes; pools without nodes are left out."""
    found = {}
    for pool in pools:
        sizes = [_memory(node) for node in nodes if _belongs(node, pool)]
        if sizes:
            found[pool.name] = max(sizes)
    return found


def pod_memory(spec: Mapping[str, Any]) -> int:
    """Return the bytes of memory that the scheduler reserves for a pod."""
    return _reserved(spec, lambda container: bytes_of(_amount(container, "memory")))


def gpu_part(pod: Manifest) -> Manifest:
    """Return the parts of a pod that ``capacity_of`` reads, to save memory for thousands of pods."""
    spec, metadata = pod.get("spec") or {}, pod["metadata"]
    parts = ("resources", "restartPolicy")
    return {
        "metadata": {name: metadata[name] for name in ("name", "namespace", "labels") if name in metadata},
        "spec": {
            "nodeName": spec.get("nodeName"),
            **{
                field: [{part: one[part] for part in parts if part in one} for one in spec.get(field) or ()]
                for field in ("containers", "initContainers")
            },
        },
        "status": {"phase": (pod.get("status") or {}).get("phase")},
    }


def _belongs(node: Manifest, pool: Pool) -> bool:
    labels = labels_of(node)
    return all(labels.get(name) == value for name, value in pool.node_selector.items())


def _accepts(node: Manifest, tolerations: Sequence[Toleration]) -> bool:
    spec = node.get("spec") or {}
    ready = condition_of(node, "Ready")
    if spec.get("unschedulable") or (ready is not None and ready.get("status") != "True"):
        return False
    return all(
        any(_tolerates(toleration, taint) for toleration in tolerations)
        for taint in spec.get("taints") or ()
        if taint.get("effect") in _REPELLING
    )


def _tolerates(toleration: Toleration, taint: Mapping[str, Any]) -> bool:
    if toleration.effect not in ("", taint.get("effect")):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.get("key"))
    return toleration.key == taint.get("key") and (toleration.value or "") == (taint.get("value") or "")


def _taken(pods: Sequence[Manifest], resource: str, service: ServiceKey) -> dict[str, int]:
    """Return the GPUs of pods of others than the service, by node."""
    taken: dict[str, int] = {}
    for pod in pods:
        spec = pod.get("spec") or {}
        node = spec.get("nodeName")
        own = (
            labels_of(pod).get(SERVICE_LABEL) == service.name
            and pod["metadata"].get("namespace", "default") == service.namespace
        )
        if node and not own and (pod.get("status") or {}).get("phase") not in _FINISHED:
            taken[node] = taken.get(node, 0) + pod_gpus(spec, resource)
    return taken


def pod_gpus(spec: Mapping[str, Any], resource: str) -> int:
    """Return the GPUs that the scheduler reserves for a pod."""
    return _reserved(spec, lambda container: _count(_amount(container, resource)))


def _reserved(spec: Mapping[str, Any], requested: Callable[[Mapping[str, Any]], int]) -> int:
    """Return what the scheduler reserves for a pod: its containers and sidecars, or its largest init container if more.

    An init container runs beside the sidecars (restartPolicy Always) that were started before it.
    """
    running = sum(map(requested, spec.get("containers") or ()))
    sidecars = largest = 0
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars += requested(container)
            largest = max(largest, sidecars)
        else:
            largest = max(largest, sidecars + requested(container))
    return max(running + sidecars, largest)


def _amount(container: Mapping[str, Any], resource: str) -> object:
    """Return a container's request of a resource; a limit without a request is one."""
    resources = container.get("resources") or {}
    return (resources.get("requests") or {}).get(resource, (resources.get("limits") or {}).get(resource, 0))


def _memory(node: Manifest) -> int:
    return bytes_of(((node.get("status") or {}).get("allocatable") or {}).get("memory", 0))


def _allocatable(node: Manifest, resource: str) -> int:
    return _count(((node.get("status") or {}).get("allocatable") or {}).get(resource, 0))


def _count(amount: object) -> int:
    """Return an amount of an extended resource, which is a whole number."""
    text = str(amount)
    return int(text) if text.isdigit() else 0
