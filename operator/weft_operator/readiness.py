"""Judge from the live objects who is ready at the newest template, and what ails the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft_operator.fleet import Worker
from weft_operator.manifest import WORKER_LABEL, Manifest, condition_of, is_terminating, labels_of, name_of

_QUIET_WAITS = frozenset({"", "ContainerCreating", "PodInitializing"})


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One planned worker: ready at the newest template or not, and the first trouble to be seen."""

    worker: Worker
    name: str
    ready: bool
    trouble: str = ""
    unschedulable: bool = False


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """The coordinator: whether a pod of the newest template serves, and whether all do."""

    available: bool
    rolled_out: bool
    trouble: str = ""


def worker_states(
    service: str,
    workers: Sequence[Worker],
    *,
    statefulsets: Sequence[Manifest],
    pods: Sequence[Manifest],
    changed: frozenset[str],
) -> tuple[WorkerState, ...]:
    """Return the state of every planned worker; ``changed`` names StatefulSets that were just applied."""
    sets = {name_of(item): item for item in statefulsets}
    states = []
    for worker in workers:
        name = worker.name(service)
        mine = [pod for pod in pods if labels_of(pod).get(WORKER_LABEL) == name]
        found = sets.get(name)
        current = found is not None and name not in changed and is_current(found)
        revision = (found or {}).get("status", {}).get("updateRevision")
        ready = current and any(_serves(pod, revision) for pod in mine)
        trouble, unschedulable = ("", False) if ready else _trouble(mine)
        states.append(WorkerState(worker, name, ready, trouble, unschedulable))
    return tuple(states)


def coordinator_state(deployment: Manifest | None, pods: Sequence[Manifest], *, changed: bool) -> CoordinatorState:
    """Return the state of the coordinator's Deployment; ``changed`` when it was just applied."""
    trouble = _trouble(pods)[0]
    if deployment is None or changed or not is_current(deployment):
        return CoordinatorState(available=False, rolled_out=False, trouble=trouble)
    status = deployment.get("status") or {}
    total, updated = int(status.get("replicas", 0)), int(status.get("updatedReplicas", 0))
    available = int(status.get("availableReplicas", 0))
    wanted = int(deployment["spec"].get("replicas", 1))
    # Counted as if all outdated pods were available, so that at least one of the newest template is.
    return CoordinatorState(
        available=available - (total - updated) >= 1,
        rolled_out=updated == total == available == wanted,
        trouble=trouble,
    )


def is_current(manifest: Mapping[str, Any]) -> bool:
    """Tell whether the object's controller has seen its newest generation."""
    seen = (manifest.get("status") or {}).get("observedGeneration", 0)
    return int(seen) >= int(manifest["metadata"].get("generation", 0)) and not is_terminating(manifest)


def _serves(pod: Mapping[str, Any], revision: object) -> bool:
    ready = condition_of(pod, "Ready")
    return (
        not is_terminating(pod)
        and ready is not None
        and ready.get("status") == "True"
        and labels_of(pod).get("controller-revision-hash") == revision
    )


def _trouble(pods: Sequence[Mapping[str, Any]]) -> tuple[str, bool]:
    """Return (the first thing that keeps a pod from being ready, whether it is the scheduler)."""
    for pod in pods:
        if is_terminating(pod):
            continue
        name = pod["metadata"]["name"]
        scheduled = condition_of(pod, "PodScheduled")
        if scheduled is not None and scheduled.get("status") == "False":
            return f"pod {name} cannot be scheduled: {scheduled.get('message', '')}", True
        status = pod.get("status") or {}
        for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason", "") not in _QUIET_WAITS:
                text = f"{waiting['reason']} {waiting.get('message', '')}".strip()
                return f"container {container['name']} of pod {name}: {text}", False
    return "", False
