"""A DisaggInferenceService on a cluster, as a user sees it: its conditions, plan, pods and metrics."""

import http.client
import json
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from weft_core.plan import WORKER_ROLES, Plan, PlanError, plan_from_json
from weft_e2e import kube
from weft_e2e.kube import Condition, Kube, Object
from weft_e2e.replay.client import Target
from weft_e2e.waiting import until

KIND = "disagginferenceservices.weft.dev"
HTTP_PORT = 80
ROUTER_PORT = 8080
SETTLED = {"Planned": "True", "Ready": "True", "Progressing": "False"}
"""The conditions of a service whose newest spec is carried out."""


@dataclass(frozen=True, slots=True)
class Service:
    """One service by namespace and name; every method asks the API server anew."""

    kube: Kube
    namespace: str
    name: str

    @property
    def selector(self) -> str:
        """Return the label selector of everything the service owns."""
        return f"weft.dev/service={self.name}"

    def object(self) -> Object:
        """Return the service's object.

        Raises:
            LookupError: there is none of that name.
        """
        found = kube.get(self.kube, KIND, self.name, namespace=self.namespace)
        if found is None:
            raise LookupError(f"there is no service {self.namespace}/{self.name}")
        return found

    def conditions(self) -> dict[str, Condition]:
        """Return the conditions that speak of the newest spec; older ones are left out."""
        return current_conditions(self.object())

    def plan(self) -> Plan:
        """Return the plan in the status."""
        return plan_from_json(self.object()["status"]["plan"])

    def weighed_plan(self) -> Plan | None:
        """Return the active plan with its alternatives, which the status leaves out; None where it cannot be read."""
        kept = kube.get(self.kube, "configmap", f"{self.name}-plan", namespace=self.namespace)
        try:
            return None if kept is None else plan_from_json(json.loads(kept["data"]["plan.json"]))
        except (KeyError, ValueError, PlanError):
            return None

    def pods(self, component: str = "") -> list[Object]:
        """Return the service's pods, of one component (coordinator, prefill, decode, both) or of all."""
        pods = kube.items(self.kube, "pods", namespace=self.namespace, selector=self.selector)
        return [pod for pod in pods if component in ("", component_of(pod))]

    def worker_uids(self) -> dict[str, str]:
        """Return pod name to UID of the prefill and decode pods."""
        return {p["metadata"]["name"]: p["metadata"]["uid"] for p in self.pods() if component_of(p) in WORKER_ROLES}

    def metrics_pages(self) -> dict[str, str]:
        """Return the metrics pages of every running router, and of every engine through its sidecar."""
        paths = {}
        for pod in self.pods():
            if pod["status"].get("phase") != "Running" or "deletionTimestamp" in pod["metadata"]:
                continue
            name = pod["metadata"]["name"]
            at = f"/api/v1/namespaces/{self.namespace}/pods/{name}:{ROUTER_PORT}/proxy"
            paths[name] = f"{at}/metrics"
            if component_of(pod) in WORKER_ROLES:
                paths[f"{name}/engine"] = f"{at}/engine/metrics"
        with ThreadPoolExecutor(max_workers=2) as pool:
            texts = pool.map(lambda path: kube.read(self.kube, "get", "--raw", path, timeout=20), paths.values())
            return dict(zip(paths, texts, strict=True))

    @contextmanager
    def reachable(self, *, run: str = "") -> Iterator[Target]:
        """Yield where to send requests for as long as the block runs; ``run`` keeps session names apart.

        The address answers when it is yielded: a Service leads to its pods a moment after they are Ready.
        """
        model = self.object()["spec"]["model"]["name"]
        with self.kube.host_forward(self.namespace, self.name, HTTP_PORT) as url:
            until(lambda: _answers(f"{url}/readyz"), what=f"an answer from {url}", timeout_s=30, every_s=0.2)
            yield Target(url=url, model=model, run=run)


def current_conditions(obj: Mapping[str, Any]) -> dict[str, Condition]:
    """Return the conditions that speak of the newest spec."""
    generation = obj["metadata"].get("generation")
    observed = (obj.get("status") or {}).get("observedGeneration")
    if observed != generation:
        return {}
    return {n: c for n, c in kube.conditions(obj).items() if c.generation in (None, generation)}


def settled(now: Mapping[str, Condition]) -> bool:
    """Return whether the newest spec is planned, rolled out and served (Ready alone may be the last plan's)."""
    return all(kind in now and now[kind].status == status for kind, status in SETTLED.items())


def component_of(pod: Mapping[str, Any]) -> str:
    """Return what a pod is: coordinator, or the role that a worker has now (prefill, decode or both)."""
    labels = pod["metadata"]["labels"]
    return str(labels.get("weft.dev/role") or labels.get("app.kubernetes.io/component", ""))


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - loopback
            return True
    except (OSError, http.client.HTTPException):
        return False


def condition_words(obj: Mapping[str, Any]) -> str:
    """Say an object's conditions on one line."""
    found = kube.conditions(obj)
    words = [f"{n}={c.status} ({c.reason}: {c.message})" for n, c in sorted(found.items())]
    return "; ".join(words) or "no conditions yet"
