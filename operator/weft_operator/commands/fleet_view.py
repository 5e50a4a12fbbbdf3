"""Read a service's workers from WorkerGroup statuses and pods, and the routers' metrics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft_core.parallelism import Degree, degree_from_json, degree_to_json
from weft_operator.api.objects import SERVICE_LABEL, WORKER_LABEL, Manifest, is_terminating, key_of, labels_of, name_of
from weft_operator.api.service import GROUP, VERSION
from weft_operator.commands import cluster
from weft_operator.errors import ApiError, TransientError

if TYPE_CHECKING:
    from weft_operator.kube.client import KubeClient

METRICS_PORT = 8080
WORKER_FIGURES = ("sessions", "liveRounds", "kvTokens", "idleSeconds")


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker; ``figures`` has those of WORKER_FIGURES that it reports."""

    name: str
    role: str
    degree: Degree
    pool: str
    node: str
    state: str
    figures: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the worker as JSON."""
        return {
            "name": self.name,
            "role": self.role,
            "degree": degree_to_json(self.degree),
            "pool": self.pool,
            "node": self.node,
            "state": self.state,
            **self.figures,
        }


def workers_of(groups: Iterable[Manifest], pods: Sequence[Manifest]) -> list[WorkerRow]:
    """Return the workers in the groups' statuses, prefill first, by name."""
    nodes = {labels_of(pod).get(WORKER_LABEL): str((pod.get("spec") or {}).get("nodeName") or "") for pod in pods}
    found = [
        WorkerRow(
            name=worker["name"],
            role=str(group["spec"].get("role") or worker.get("role") or "-"),
            degree=degree_from_json(group["spec"]["degree"]),
            pool=group["spec"].get("pool", ""),
            node=str(worker.get("node") or nodes.get(worker["name"]) or "-"),
            state=_state(worker),
            figures={key: int(worker[key]) for key in WORKER_FIGURES if worker.get(key) is not None},
        )
        for group in groups
        for worker in (group.get("status") or {}).get("workers") or ()
    ]
    return sorted(found, key=lambda item: (item.role != "prefill", item.name))


def groups_of(api: "KubeClient", name: str, namespace: str) -> list[Manifest]:
    """Return the WorkerGroups of a service."""
    return cluster.of_service(api, f"{GROUP}/{VERSION}", "WorkerGroup", name, namespace)


def worker_pods(pods: Iterable[Manifest], given: str) -> list[Manifest]:
    """Return all pods of a worker, given by its own name or the name of one of its pods; none if there is none."""
    every = list(pods)
    names = {given} | {labels_of(pod).get(WORKER_LABEL, "") for pod in every if name_of(pod) == given}
    return [pod for pod in every if labels_of(pod).get(WORKER_LABEL) in names - {""}]


def service_of(pod: Manifest) -> str:
    """Return the name of a pod's service."""
    return labels_of(pod).get(SERVICE_LABEL, "")


def pod_state(pod: Manifest) -> str:
    """Return the state of a pod: draining, ready or not ready."""
    if is_terminating(pod):
        return "draining"
    return "ready" if cluster.is_ready(pod) else "not ready"


def metrics_page(api: "KubeClient", pod: Manifest) -> tuple[str, str]:
    """Return the text of a router's metrics, or "" and why it could not be read."""
    try:
        return api.page(key_of(pod), METRICS_PORT, "metrics"), ""
    except TransientError as error:
        return (
            "",
            f"{error}: the API server cannot reach it, for example because a network policy admits only the service",
        )
    except ApiError as error:
        return "", str(error)


def _state(worker: Mapping[str, Any]) -> str:
    if worker.get("lost"):
        return "lost"
    if worker.get("draining"):
        return "draining"
    if worker.get("switching"):
        return "switching"
    if worker.get("unschedulable"):
        return "unschedulable"
    if worker.get("outdated"):
        return "outdated"
    return "ready" if worker.get("ready") else "not ready"
