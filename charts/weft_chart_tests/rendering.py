"""What a rendering of the chart holds."""

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHART = Path(__file__).resolve().parents[1] / "weft"
NAMESPACE = "weft-system"
REGISTRY = "image.registry=registry.example.com/team"
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Rendered:
    """The objects of one rendering, by kind and name (and namespace, where it is not the release's)."""

    text: str
    objects: tuple[Manifest, ...]

    def of_kind(self, kind: str) -> list[Manifest]:
        return [item for item in self.objects if item["kind"] == kind]

    def every(self, kind: str) -> list[Manifest]:
        """Return the objects of a kind, of which there are some."""
        found = self.of_kind(kind)
        assert found, f"no {kind}"
        return found

    def get(self, kind: str, name: str, *, namespace: str | None = None) -> Manifest:
        found = [
            item
            for item in self.of_kind(kind)
            if item["metadata"]["name"] == name and namespace in (None, item["metadata"].get("namespace"))
        ]
        assert len(found) == 1, f"{len(found)} objects {kind}/{name}"
        return found[0]

    def pod_specs(self) -> dict[str, Manifest]:
        specs = {item["metadata"]["name"]: item["spec"]["template"]["spec"] for item in self.every("Deployment")}
        return specs | {item["metadata"]["name"]: item["spec"] for item in self.of_kind("Pod")}


Render = Callable[..., Rendered]
Helm = Callable[..., "subprocess.CompletedProcess[str]"]


def steady(text: str) -> str:
    """Return a rendering with one word in the place of the password, which is another one each time."""
    return re.sub(r"(?m)^  password: [A-Za-z0-9+/]{54}==$", "  password: cmFuZG9t", text)


def arguments(values: Sequence[str]) -> list[str]:
    """Return Helm's arguments for name=value and name:=json texts."""
    words: list[str] = []
    for value in values:
        name, is_json, content = value.partition(":=")
        words += ["--set-json", f"{name}={content}"] if is_json else ["--set", value]
    return words
