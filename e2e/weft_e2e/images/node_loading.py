"""Brings images to the nodes of a kind, k3d or minikube cluster: built by Docker or Podman, without any registry."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from weft_e2e.cluster.children import ended_when_interrupted
from weft_e2e.images.base import images_cache
from weft_e2e.images.catalogue import chosen, published_names, repository_root
from weft_e2e.images.commands import run_logged
from weft_e2e.images.container_engine import ContainerEngine, find_engine
from weft_e2e.images.errors import CannotBuildError
from weft_e2e.images.shelf import PYTHON_IMAGE_VARIABLE, Report, build_context, one_at_a_time, recipe_of

Tool = Literal["kind", "k3d", "minikube"]

PREFIXES: dict[str, Tool] = {"kind-": "kind", "k3d-": "k3d"}
"""How these tools name the contexts of their clusters; minikube names them as their profile, any word."""
_PYTHON_IMAGE = re.compile(r"^ARG PYTHON_IMAGE=(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class NodeLoader:
    """A cluster on this machine, by the tool that made it and the name that the tool knows it by."""

    tool: Tool
    cluster: str

    @property
    def words(self) -> str:
        """Return the cluster in words."""
        return f"{self.tool}'s cluster '{self.cluster}'"

    def by_name(self, ref: str) -> list[str]:
        """Return the command that loads an image out of Docker's store."""
        return self._command("docker-image", ref)

    def by_archive(self, archive: Path) -> list[str]:
        """Return the command that loads the archive of an image."""
        return self._command("image-archive", str(archive))

    def _command(self, kind_of: str, image: str) -> list[str]:
        if self.tool == "kind":
            return ["kind", "load", kind_of, image, "--name", self.cluster]
        if self.tool == "k3d":
            return ["k3d", "image", "import", image, "--cluster", self.cluster]
        return ["minikube", "image", "load", image, "--profile", self.cluster]


def loader_of(context: str) -> NodeLoader | None:
    """Return how images come to the nodes of a kubectl context; None where its name tells of none of these tools."""
    for prefix, tool in PREFIXES.items():
        if context.startswith(prefix) and context != prefix:
            return NodeLoader(tool, context.removeprefix(prefix))
    if context == "minikube" or context in _minikube_profiles():
        return NodeLoader("minikube", context)
    return None


def check_tools(loader: NodeLoader) -> ContainerEngine:
    """Return the engine to build with; raise CannotBuildError where it or the loader's own command is missing."""
    if shutil.which(loader.tool) is None:
        raise CannotBuildError(f"{loader.tool} is not on PATH, which brings images to {loader.words}")
    return find_engine()


@ended_when_interrupted()
def build_and_load(loader: NodeLoader, engine: ContainerEngine, report: Report) -> dict[str, str]:
    """Build the images whose content changed and bring all to the nodes; return image name -> reference."""
    built = build(engine, report)
    for name, ref in built.items():
        report(f"loading {ref} into {loader.words}")
        log = images_cache() / f"logs/load-{name}.log"
        if engine.name == "docker":
            run_logged(loader.by_name(ref), log=log, what=f"loading {ref}")
            continue
        with tempfile.TemporaryDirectory(dir=images_cache(), prefix="archive-") as folder:
            archive = Path(folder) / f"{name}.tar"
            engine.save(ref, archive, log=log)
            run_logged(loader.by_archive(archive), log=log, what=f"loading {ref}")
    return built


def build(engine: ContainerEngine, report: Report) -> dict[str, str]:
    """Build the published images whose content changed, on their Dockerfiles' Python image or $WEFT_PYTHON_IMAGE."""
    built: dict[str, str] = {}
    with one_at_a_time():
        for image in chosen(published_names()):
            python = os.environ.get(PYTHON_IMAGE_VARIABLE) or _default_python(repository_root() / image.dockerfile)
            recipe = recipe_of(image, python_image=python)
            if engine.exists(recipe.ref):
                report(f"{recipe.ref} is up to date")
            else:
                report(f"building {recipe.ref} with {engine.name}")
                with build_context(recipe) as context:
                    engine.build(
                        recipe.ref, context=context, dockerfile=image.dockerfile, args=recipe.args, log=recipe.log
                    )
            built[image.name] = recipe.ref
    return built


def _default_python(dockerfile: Path) -> str:
    found = _PYTHON_IMAGE.search(dockerfile.read_text())
    if found is None:
        raise CannotBuildError(f"{dockerfile} names no default for PYTHON_IMAGE: set {PYTHON_IMAGE_VARIABLE}")
    return found[1]


def _minikube_profiles() -> list[str]:
    if shutil.which("minikube") is None:
        return []
    argv = ["minikube", "profile", "list", "--output", "json"]
    try:
        listed = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        return [profile["Name"] for profile in json.loads(listed.stdout)["valid"]]
    except (ValueError, KeyError, TypeError, subprocess.TimeoutExpired):  # no profile yet
        return []
