"""Readiness of workers and coordinators at the newest template, and why others are not ready."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft_operator.api.objects import (
    RELEASED_ANNOTATION,
    TEMPLATE_HASH_ANNOTATION,
    WORKER_LABEL,
    Manifest,
    annotations_of,
    condition_of,
    is_terminating,
    labels_of,
    name_of,
)
from weft_operator.workers.engine_failures import failure_hint
from weft_operator.workers.fleet import Worker

RESTARTED_AT_ANNOTATION = "kubectl.kubernetes.io/restartedAt"
"""What ``kubectl rollout restart`` writes into a pod template. The operator's own writes keep it."""

_QUIET_WAITS = frozenset({"", "ContainerCreating", "PodInitializing"})
_PULL_WAITS = frozenset({"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"})
_ROLLED_OUT = "NewReplicaSetAvailable"
"""The reason of a Deployment's condition Progressing once all pods of a template were available."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One planned worker: whether it is ready at the newest template, and its first problem."""

    worker: Worker
    name: str
    ready: bool
    trouble: str = ""
    unschedulable: bool = False
    waits: bool = False
    """Whether it serves with an older template; its update waits until the others are ready."""
    switching: bool = False
    """Whether it has not confirmed its role yet."""


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """The coordinator: whether a pod of the newest template serves, and whether all do."""

    available: bool
    rolled_out: bool
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class PickerState:
    """The endpoint pickers: whether one answers the gateway, and whether all do with the newest template."""

    available: bool
    """True, too, while they start without trouble."""
    rolled_out: bool
    trouble: str = ""


def worker_states(
    service: str,
    workers: Sequence[Worker],
    *,
    statefulsets: Sequence[Manifest],
    pods: Sequence[Manifest],
    changed: frozenset[str],
    waiting: frozenset[str] = frozenset(),
    switching: frozenset[str] = frozenset(),
) -> tuple[WorkerState, ...]:
    """Return the state of every planned worker.

    ``changed`` names StatefulSets whose spec was just changed, ``waiting`` those whose update is left to a later pass,
    and ``switching`` workers that have not confirmed their role.
    """
    sets = {name_of(item): item for item in statefulsets}
    states = []
    for worker in workers:
        name = worker.name(service)
        if name in waiting:
            states.append(WorkerState(worker, name, ready=False, waits=True, switching=name in switching))
            continue
        mine = [pod for pod in pods if labels_of(pod).get(WORKER_LABEL) == name]
        found = sets.get(name)
        nodes = int(((found or {}).get("spec") or {}).get("replicas", 1))
        ready = (
            found is not None
            and name not in changed
            and (is_current(found) or (_hash_in(found["spec"].get("template")) != "" and not is_terminating(found)))
            and sum(_serves(pod, found) for pod in mine) >= max(1, nodes)
        )
        trouble, unschedulable = ("", False) if ready else (_released(found) or _trouble(mine))
        states.append(WorkerState(worker, name, ready, trouble, unschedulable, switching=name in switching))
    return tuple(states)


def coordinator_state(deployment: Manifest | None, pods: Sequence[Manifest], *, changed: bool) -> CoordinatorState:
    """Return the state of the coordinator's Deployment; ``changed`` when its spec was just changed."""
    trouble = _trouble(pods)[0]
    if deployment is None or changed or not is_current(deployment):
        return CoordinatorState(available=False, rolled_out=False, trouble=trouble)
    status = deployment.get("status") or {}
    total, updated = int(status.get("replicas", 0)), int(status.get("updatedReplicas", 0))
    available = int(status.get("availableReplicas", 0))
    wanted = int(deployment["spec"].get("replicas", 1))
    # Assumes that all outdated pods are available, so that at least one of the newest template certainly is.
    return CoordinatorState(
        available=available - (total - updated) >= 1,
        rolled_out=updated == total == available == wanted,
        trouble=trouble,
    )


def picker_state(deployment: Manifest | None, pods: Sequence[Manifest], *, changed: bool) -> PickerState:
    """Return the state of the endpoint pickers' Deployment; ``changed`` when its spec was just changed.

    Any template's pod answers the gateway. Pods that start are no trouble until one cannot start, or the Deployment's
    deadline has passed; pods that were available and are no longer are.
    """
    trouble = _trouble(pods)[0]
    rolled_out = coordinator_state(deployment, pods, changed=changed).rolled_out
    if deployment is not None and int((deployment.get("status") or {}).get("availableReplicas", 0)) >= 1:
        return PickerState(available=True, rolled_out=rolled_out, trouble=trouble)
    starting = deployment is None or changed or not is_current(deployment) or _is_progressing(deployment)
    return PickerState(available=starting and not trouble, rolled_out=rolled_out, trouble=trouble)


def stuck_workers(statefulsets: Sequence[Manifest], pods: Sequence[Manifest]) -> frozenset[str]:
    """Return the workers whose pod has an old template and is not ready: their StatefulSet never replaces it.

    A rolling update counts a broken pod as unavailable and stops, so the template that would repair it is never
    applied (Kubernetes documentation, StatefulSet, "Forced rollback"). Workers on several nodes and those whose role
    can change are updated by this operator instead, all their pods at once.
    """
    revisions = {
        name_of(item): item["status"].get("updateRevision")
        for item in statefulsets
        if is_current(item) and int(item["spec"].get("replicas", 1)) == 1 and not _hash_in(item["spec"].get("template"))
    }
    found = set()
    for pod in pods:
        worker = labels_of(pod).get(WORKER_LABEL, "")
        revision = revisions.get(worker)
        outdated = revision is not None and labels_of(pod).get("controller-revision-hash") != revision
        ready = condition_of(pod, "Ready")
        if outdated and not is_terminating(pod) and (ready is None or ready.get("status") != "True"):
            found.add(worker)
    return frozenset(found)


def is_current(manifest: Mapping[str, Any]) -> bool:
    """Return whether the object's controller has observed its newest generation."""
    seen = (manifest.get("status") or {}).get("observedGeneration", 0)
    return int(seen) >= int(manifest["metadata"].get("generation", 0)) and not is_terminating(manifest)


def _is_progressing(deployment: Manifest) -> bool:
    """Return whether the newest template of a Deployment is still being rolled out, within the time for that."""
    found = condition_of(deployment, "Progressing")
    return found is None or (found.get("status") == "True" and found.get("reason") != _ROLLED_OUT)


def is_outdated(pod: Mapping[str, Any], statefulset: Mapping[str, Any]) -> bool:
    """Return whether a pod has an older template than its StatefulSet.

    Where roles can change the hash of the template tells it, and the time of a ``kubectl rollout restart``: its
    revision changes with the role, too.
    """
    template = statefulset["spec"].get("template")
    wanted, restarted_at = _hash_in(template), _annotation(template, RESTARTED_AT_ANNOTATION)
    if wanted:
        # A pod keeps the time of an earlier restart where its template no longer has one.
        restarts = restarted_at not in ("", _annotation(pod, RESTARTED_AT_ANNOTATION))
        return restarts or _hash_in(pod) != wanted
    newest = (statefulset.get("status") or {}).get("updateRevision")
    return labels_of(pod).get("controller-revision-hash") != newest


def _hash_in(template: Mapping[str, Any] | None) -> str:
    """Return the hash of its template in a pod or a pod template; "" without one."""
    return _annotation(template, TEMPLATE_HASH_ANNOTATION)


def _annotation(template: Mapping[str, Any] | None, name: str) -> str:
    annotations = ((template or {}).get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(name, ""))


def _serves(pod: Mapping[str, Any], statefulset: Mapping[str, Any]) -> bool:
    ready = condition_of(pod, "Ready")
    return (
        not is_terminating(pod)
        and ready is not None
        and ready.get("status") == "True"
        and not is_outdated(pod, statefulset)
    )


def _released(item: Manifest | None) -> tuple[str, bool] | None:
    """Return the problem of a worker that released its nodes until it is retried."""
    if item is None or (item.get("spec") or {}).get("replicas") != 0:
        return None
    time = annotations_of(item).get(RELEASED_ANNOTATION, "an unknown time")
    return f"only some of its pods found a node, which they released at {time}; it is retried later", True


def _trouble(pods: Sequence[Mapping[str, Any]]) -> tuple[str, bool]:
    """Return the first problem that keeps a pod from being ready, and whether it is scheduling."""
    for pod in pods:
        if is_terminating(pod):
            continue
        name = pod["metadata"]["name"]
        scheduled = condition_of(pod, "PodScheduled")
        if scheduled is not None and scheduled.get("status") == "False":
            return f"pod {name} cannot be scheduled: {scheduled.get('message', '')}", True
        status = pod.get("status") or {}
        for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            found = _container_trouble(container)
            if found:
                return f"container {container['name']} of pod {name} {found}", False
    return "", False


def _container_trouble(container: Mapping[str, Any]) -> str:
    """Return why a container does not run, the same for each attempt."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    if reason in _QUIET_WAITS:
        return ""
    if reason in _PULL_WAITS:
        return f"cannot pull image {container.get('image', '')}"
    if reason == "CrashLoopBackOff":
        last = (container.get("lastState") or {}).get("terminated") or {}
        why = failure_hint(str(last.get("message", ""))) or "see its log"
        return f"keeps ending: {last.get('reason', 'Error')}, exit code {last.get('exitCode', '?')}; {why}"
    return f"waits: {reason} {waiting.get('message', '')}".strip()
