"""DeepSeek-R1 on eight nodes of eight GPUs: planned from silicon tables, rendered, and scheduled; no container runs."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from weft_e2e.cluster.bare import bare_cluster
from weft_e2e.images.catalogue import repository_root
from weft_e2e.scale.program import OPERATOR, give_rights, running
from weft_e2e.waiting import until
from weft_operator.api.objects import WORKER_LABEL, Manifest
from weft_operator_tests.cluster import Kube, condition

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600, func_only=True)]

NODES, GPUS = 8, 8
EXAMPLE = repository_root() / "docs/examples/deepseek-r1-h200.yaml"


def engine_of(pod: Manifest) -> Manifest:
    """Return the container that has the GPUs."""
    (engine,) = [c for c in pod["spec"]["containers"] if "nvidia.com/gpu" in c.get("resources", {}).get("limits", {})]
    return dict(engine)


def flag(pod: Manifest, name: str) -> str:
    """Return the value of an engine's flag; "" where it is not there."""
    engine = engine_of(pod)
    words = " ".join([*engine.get("command", ()), *engine.get("args", ())]).replace("=", " ").split()
    return words[words.index(name) + 1] if name in words else ""


@pytest.mark.parametrize("given", ["as in the example", "ranks over two nodes"])
def test_a_mixture_of_experts_is_planned_and_placed(tmp_path: Path, given: str) -> None:
    body: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    if given == "ranks over two nodes":
        body["spec"]["capacity"]["pools"][0]["parallelism"] = [{"dp": 16, "ep": True}]
    body["metadata"]["namespace"] = "large"
    with bare_cluster(tmp_path, users={"operator": OPERATOR}, nodes=NODES, gpus=GPUS) as bare:
        give_rights(bare)
        kube = Kube(bare.kubeconfig())
        kube.run("create", "namespace", "large")
        with running(bare):
            kube.apply(body)

            def service() -> Manifest:
                return kube.get("large", "disagginferenceservice", "deepseek-r1") or {}

            def all_ready() -> bool:
                """Return whether all that the service's plan has is ready."""
                found = service()
                return [condition(found, kind).get("status") for kind in ("Ready", "Reconciling")] == ["True", "False"]

            until(all_ready, what="a deployed plan", timeout_s=400, last=lambda: json.dumps(service().get("status")))
            plan = service()["status"]["plan"]
            pods = json.loads(kube.run("-n", "large", "get", "pods", "-l", WORKER_LABEL, "-o", "json"))["items"]
    planned = sum(group["replicas"] for group in plan["groups"])
    nodes = 1 if given == "as in the example" else 2
    assert len({pod["spec"]["nodeName"] for pod in pods}) == len(pods) == nodes * planned, "each has a node's GPUs"
    workers: defaultdict[str, list[Manifest]] = defaultdict(list)
    for pod in pods:
        workers[pod["metadata"]["labels"][WORKER_LABEL]].append(pod)
    if given == "ranks over two nodes":
        assert [len(found) for found in workers.values()] == [2] * planned
        for found in workers.values():
            assert {flag(pod, "--data-parallel-size") for pod in found} == {"16"}
            assert {flag(pod, "--data-parallel-size-local") for pod in found} == {"8"}
            assert len({flag(pod, "--data-parallel-address") for pod in found} - {""}) == 1, "the leader's address"
    sizes = {flag(pod, "--data-parallel-size") for pod in pods}
    assert sizes - {""}, f"attention in data-parallel ranks: {plan['groups']}"
