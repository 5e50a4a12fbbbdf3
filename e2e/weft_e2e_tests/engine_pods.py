"""A service with real engines in pods, as its tests ask it and read what its engines have counted."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from weft_e2e.metrics import Growth, growth, parse
from weft_e2e.service import Service, component_of

_USAGE = "vllm:kv_cache_usage_perc"


@dataclass(frozen=True, slots=True)
class Pods:
    """The service, where its coordinator is, and its engine pods by role."""

    service: Service
    url: str
    names: dict[str, str]
    metrics: Mapping[str, str]
    """Where to read what engines, by role, and their sidecars have counted."""

    def pages(self, *names: str) -> dict[str, str]:
        """Return the counters of engines, by role, and of their sidecars; all where none is named.

        Past the API server, which would take seconds: rounds are judged between two proofs.
        """
        wanted = names or tuple(self.metrics)
        return {name: httpx.get(self.metrics[name], timeout=20.0).raise_for_status().text for name in wanted}

    def grown(self, before: dict[str, str]) -> Growth:
        """Return what was counted since."""
        return growth(before, self.pages())

    def kv_usage(self, *roles: str) -> dict[str, float]:
        """Return the share of engines' KV caches that is taken, pinned blocks included; of all where none is named."""
        return {
            role: sum(value for (name, _), value in parse(page).samples.items() if name == _USAGE)
            for role, page in self.pages(*(roles or self.names)).items()
        }

    def condition(self, kind: str) -> tuple[str, str]:
        """Return a condition's status and reason."""
        found = self.service.conditions().get(kind)
        return ("", "") if found is None else (found.status, found.reason)

    def patch(self, spec: dict[str, object]) -> None:
        """Change the service's spec."""
        words = ("patch", "dis", self.service.name, "--type=merge", "-p", json.dumps({"spec": spec}))
        self.service.kube.kubectl("-n", self.service.namespace, *words)

    def heeded(self) -> bool:
        """Tell whether the status is about the spec as it is."""
        found = self.service.object()
        return bool(found["status"]["observedGeneration"] == found["metadata"]["generation"])

    def of(self, *components: str) -> list[str]:
        """Return the names of the pods of these components that are there."""
        return _of(self.service, *components)

    def engines(self) -> list[str]:
        """Return the names of the workers' pods that are there."""
        return engines_of(self.service)


def engines_of(service: Service) -> list[str]:
    """Return the names of a service's workers' pods that are there."""
    return _of(service, "prefill", "decode")


def _of(service: Service, *components: str) -> list[str]:
    return [str(pod["metadata"]["name"]) for pod in service.pods() if component_of(pod) in components]
