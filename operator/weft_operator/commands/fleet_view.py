"""What the cluster tells of a service's workers: WorkerGroups' statuses, pods, and the routers' own metrics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft_operator.api.objects import SERVICE_LABEL, WORKER_LABEL, Manifest, is_terminating, key_of, labels_of, name_of
from weft_operator.api.service import GROUP, VERSION
from weft_operator.commands import cluster
from weft_operator.errors import ApiError, TransientError

if TYPE_CHECKING:
    from weft_operator.kube.client import KubeClient

METRICS_PORT = 8080
FIGURES = ("sessions", "liveRounds", "kvTokens", "idleSeconds")


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker; ``figures`` holds what it tells of FIGURES, nothing where it does not tell."""

    name: str
    role: str
    degree: int
    pool: str
    node: str
    state: str
    figures: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the worker for programs."""
        return {
            "name": self.name,
            "role": self.role,
            "degree": self.degree,
            "pool": self.pool,
            "node": self.node,
            "state": self.state,
            **self.figures,
        }


def workers_of(groups: Iterable[Manifest], pods: Sequence[Manifest]) -> list[WorkerRow]:
    """Return the workers that the groups' statuses list, in their order."""
    nodes = {labels_of(pod).get(WORKER_LABEL): str((pod.get("spec") or {}).get("nodeName") or "") for pod in pods}
    found = [
        WorkerRow(
            name=worker["name"],
            role=group["spec"]["role"],
            degree=int(group["spec"]["degree"]),
            pool=group["spec"].get("pool", ""),
            node=str(worker.get("node") or nodes.get(worker["name"]) or "-"),
            state=_state(worker),
            figures={key: int(worker[key]) for key in FIGURES if worker.get(key) is not None},
        )
        for group in groups
        for worker in (group.get("status") or {}).get("workers") or ()
    ]
    return sorted(found, key=lambda item: (item.role != "prefill", item.name))


def groups_of(api: "KubeClient", name: str, namespace: str) -> list[Manifest]:
    """Return the WorkerGroups of a service."""
    return cluster.of_service(api, f"{GROUP}/{VERSION}", "WorkerGroup", name, namespace)


def worker_pods(pods: Iterable[Manifest], given: str) -> list[Manifest]:
    """Return the pods of the worker that is called so, or that the pod called so belongs to; none if there is none."""
    every = list(pods)
    names = {given} | {labels_of(pod).get(WORKER_LABEL, "") for pod in every if name_of(pod) == given}
    return [pod for pod in every if labels_of(pod).get(WORKER_LABEL) in names - {""}]


def service_of(pod: Manifest) -> str:
    """Return the name of the service that a pod is of."""
    return labels_of(pod).get(SERVICE_LABEL, "")


def ready_of(pod: Manifest) -> str:
    """Return how a pod is, in one word."""
    if is_terminating(pod):
        return "draining"
    return "ready" if cluster.is_ready(pod) else "not ready"


def metrics_page(api: "KubeClient", pod: Manifest) -> tuple[str, str]:
    """Return the text of a router's metrics, and why there is none."""
    try:
        return api.page(key_of(pod), METRICS_PORT, "metrics"), ""
    except TransientError as error:
        return "", f"{error}: the API server cannot reach it, as where a network policy lets only the service in"
    except ApiError as error:
        return "", str(error)


def _state(worker: Mapping[str, Any]) -> str:
    if worker.get("lost"):
        return "lost"
    if worker.get("draining"):
        return "draining"
    if worker.get("unschedulable"):
        return "unschedulable"
    if worker.get("outdated"):
        return "outdated"
    return "ready" if worker.get("ready") else "not ready"
