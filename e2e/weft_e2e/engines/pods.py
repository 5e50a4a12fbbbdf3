"""Real engines in pods of two nodes: the example of docs/examples on a cluster of this machine."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from weft_e2e.engines.environment import EngineEnv
from weft_e2e.engines.process import keep_on_core
from weft_e2e.images.catalogue import repository_root

EXAMPLE = repository_root() / "docs/examples/tiny-vllm-cpu.yaml"


def example(env: EngineEnv, *, image: str, nodes: Sequence[str], volume: str) -> list[dict[str, Any]]:
    """Return the example's objects with what a user sets: path, nodes and name of the volume, and the image."""
    objects: list[dict[str, Any]] = list(yaml.safe_load_all(EXAMPLE.read_text()))
    disk, claim, service = objects
    disk["metadata"]["name"] = claim["spec"]["volumeName"] = volume
    disk["spec"]["local"]["path"] = str(env.root)
    (term,) = disk["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    term["matchExpressions"][0]["values"] = list(nodes)
    service["spec"]["engine"]["image"] = image
    return objects


def keep_pods_on_their_cores(pods: Sequence[str]) -> dict[str, int]:
    """Put the engines of pods on the cores that they were given; return pod name to core.

    The nodes of a local cluster share this machine, and so do their pods' processes.
    """
    found: dict[str, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            raw = (folder / "environ").read_bytes()
        except OSError:
            continue  # ended meanwhile
        variables = dict(part.split("=", 1) for part in raw.decode(errors="replace").split("\0") if "=" in part)
        core = variables.get("VLLM_CPU_OMP_THREADS_BIND", "")
        if variables.get("POD_NAME") in pods and core.isdigit() and int(core) < (os.cpu_count() or 1):
            keep_on_core([int(folder.name)], int(core))
            found[variables["POD_NAME"]] = int(core)
    return found
