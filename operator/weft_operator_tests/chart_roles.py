"""The rights that the chart gives the operator, for operators of tests: exactly these."""

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from weft_e2e.cluster.toolchain import tool_path
from weft_operator.api.objects import Manifest

CHART = Path(__file__).parents[2] / "charts" / "weft"
NAMESPACE = "weft-system"
RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class ChartRoles:
    """The operator's roles, and what binds them to its service account."""

    roles: tuple[Manifest, ...]
    bindings: tuple[Manifest, ...]

    def everywhere(self, users: Iterable[str]) -> Manifest:
        """Return the objects that give users the rights that hold in all namespaces, in one list."""
        return _listed(self._for(users, "ClusterRole"))

    def beside(self, users: Iterable[str], namespace: str) -> Manifest:
        """Return the same for the rights that hold beside the operator alone, if it were in this namespace."""
        found = self._for(users, "Role")
        return _listed([{**item, "metadata": {**item["metadata"], "namespace": namespace}} for item in found])

    def _for(self, users: Iterable[str], kind: str) -> list[Manifest]:
        subjects = [{"kind": "User", "name": name, "apiGroup": RBAC} for name in users]
        return [
            *(role for role in self.roles if role["kind"] == kind),
            *({**one, "subjects": subjects} for one in self.bindings if one["roleRef"]["kind"] == kind),
        ]


def chart_roles(*values: str) -> ChartRoles:
    """Render the chart, with some values, and return what it lets the operator do.

    Raises:
        SetupError: Helm is not built.
    """
    words = ["template", "weft", str(CHART), "--namespace", NAMESPACE, "--set", "image.registry=registry.example.com"]
    words += [word for value in values for word in ("--set", value)]
    done = subprocess.run([str(tool_path("helm")), *words], capture_output=True, text=True, timeout=120, check=True)
    chart = [item for item in yaml.safe_load_all(done.stdout) if item]
    bindings = [item for item in chart if item["kind"].endswith("RoleBinding") and _is_the_operators(item)]
    named = {(item["roleRef"]["kind"], item["roleRef"]["name"]) for item in bindings}
    roles = [item for item in chart if (item["kind"], item["metadata"]["name"]) in named]
    assert {role["kind"] for role in roles} == {"ClusterRole", "Role"}
    return ChartRoles(tuple(roles), tuple(bindings))


def _listed(items: list[Manifest]) -> Manifest:
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _is_the_operators(binding: Manifest) -> bool:
    return any(subject["name"].endswith("-operator") for subject in binding["subjects"])
