"""A service with real engines in pods, as its tests ask it and read what its engines have counted."""

import json
from dataclasses import dataclass

from weft_e2e.engines.counters import Counters
from weft_e2e.engines.deployed import ROLES, pods_of
from weft_e2e.metrics import Growth, parse
from weft_e2e.service import Service

_USAGE = "vllm:kv_cache_usage_perc"
_REASONS = tuple(
    f"weft_router_{name}_total" for name in ("decisions", "prefill_failures", "kv_handles", "kv_proofs", "ejections")
)
"""Why rounds went where they did, and what became of their handles, of KV paths and of workers."""


@dataclass(frozen=True, slots=True)
class Pods:
    """The service, where its coordinator is, and its engine pods by role."""

    service: Service
    url: str
    names: dict[str, str]
    metrics: Counters
    """What engines, by role, and their sidecars have counted."""

    def pages(self, *names: str) -> dict[str, str]:
        """Return the counters of engines, by role, and of their sidecars; all where none is named."""
        return self.metrics.pages(names)

    def grown(self, before: dict[str, str]) -> Growth:
        """Return what was counted since."""
        return self.metrics.grown(before)

    def why(self, before: dict[str, str]) -> str:
        """Return what routers have counted since of where rounds went and why, in words."""
        found = [
            f"{name.removeprefix('weft_router_')}{dict(sorted(labels))}: {value:g}"
            for page in self.grown(before).pages.values()
            for (name, labels), value in sorted(page.samples.items(), key=str)
            if name in _REASONS and value
        ]
        return "; ".join(found) or "routers counted nothing"

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
        """Return whether the status is about the spec as it is."""
        found = self.service.object()
        return bool(found["status"]["observedGeneration"] == found["metadata"]["generation"])

    def of(self, *components: str) -> list[str]:
        """Return the names of the pods of these components that are there."""
        return pods_of(self.service, *components)

    def engines(self) -> list[str]:
        """Return the names of the workers' pods that are there."""
        return pods_of(self.service, *ROLES)
