"""Free GPUs of real nodes: what they allocate less what others have, and only where a worker may go."""

from typing import Any

import pytest

from weft_operator.api.capacity import Pool
from weft_operator.api.objects import Manifest, ServiceKey
from weft_operator.planning.request import notes_on, request_hash, with_nodes_and_plan
from weft_operator.workers.node_capacity import NodeCapacity, capacity_of, pod_gpus
from weft_operator_tests.samples import record

GPU = "nvidia.com/gpu"
DEMO = ServiceKey("default", "demo")


def node(name: str, gpus: int, *, labels: dict[str, str] | None = None, **spec: Any) -> Manifest:
    status = {"allocatable": {GPU: str(gpus), "cpu": "64"}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec, "status": status}


def pod(on: str, gpus: int, *, service: str = "", namespace: str = "default", phase: str = "Running") -> Manifest:
    return {
        "metadata": {"namespace": namespace, "labels": {"weft.dev/service": service} if service else {}},
        "spec": {"nodeName": on, "containers": [{"resources": {"limits": {GPU: str(gpus)}}}]},
        "status": {"phase": phase},
    }


def pool(name: str = "a", **fields: Any) -> Pool:
    return Pool(name=name, gpu_type="nvidia-h20", **fields)


def free(nodes: list[Manifest], pods: list[Manifest], *pools: Pool) -> dict[str, tuple[int, ...]]:
    return dict(capacity_of(pools or (pool(),), nodes, pods, service=DEMO).free)


def test_what_other_pods_have_is_not_free() -> None:
    nodes = [node("x", 8), node("y", 8), node("z", 4)]
    pods = [pod("x", 2), pod("x", 1, namespace="other"), pod("z", 4)]
    assert free(nodes, pods) == {"a": (8, 5)}


def test_own_pods_finished_pods_and_pods_without_a_node_take_nothing() -> None:
    pods = [pod("x", 2, service="demo"), pod("x", 4, phase="Succeeded"), pod("", 8)]
    assert free([node("x", 8)], pods) == {"a": (8,)}
    assert free([node("x", 8)], [pod("x", 2, service="demo", namespace="other")]) == {"a": (6,)}


@pytest.mark.parametrize(
    "bad",
    [
        node("x", 8, unschedulable=True),
        node("x", 8, taints=[{"key": "gpu", "value": "train", "effect": "NoSchedule"}]),
        {**node("x", 8), "status": {"allocatable": {GPU: "8"}, "conditions": [{"type": "Ready", "status": "False"}]}},
        node("x", 8, labels={"pool": "b"}),
        node("x", 0),
    ],
)
def test_nodes_that_take_no_worker_have_nothing_free(bad: Manifest) -> None:
    assert free([bad, node("y", 4, labels={"pool": "a"})], [], pool(node_selector={"pool": "a"})) == {"a": (4,)}


@pytest.mark.parametrize(
    ("toleration", "taken"),
    [
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "value": "train"}, True),
        ({"key": "gpu", "value": "other"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_a_tolerated_taint_is_none(toleration: dict[str, str], taken: bool) -> None:
    tainted = node("x", 8, taints=[{"key": "gpu", "value": "train", "effect": "NoSchedule"}])
    assert free([tainted], [], pool(tolerations=[toleration])) == {"a": (8,) if taken else ()}


def test_pools_that_share_nodes_are_not_told_apart() -> None:
    found = capacity_of((pool("a"), pool("b")), [node("x", 8)], [], service=DEMO)
    assert found.total == 8
    assert found.free == {}
    assert "share nodes" in found.notes[0]
    apart = (pool("a", node_selector={"pool": "a"}), pool("b", node_selector={"pool": "b"}))
    both = capacity_of(
        apart, [node("x", 8, labels={"pool": "a"}), node("y", 4, labels={"pool": "b"})], [], service=DEMO
    )
    assert both == NodeCapacity(total=12, free={"a": (8,), "b": (4,)})


def test_a_pod_takes_its_containers_with_sidecars_or_its_largest_start_up() -> None:
    def container(gpus: int, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {GPU: gpus}}, **more}

    assert pod_gpus({"containers": [container(2), container(1)]}, GPU) == 3
    assert pod_gpus({"containers": [container(2)], "initContainers": [container(4)]}, GPU) == 4
    sidecar = container(1, restartPolicy="Always")
    assert pod_gpus({"containers": [container(2)], "initContainers": [sidecar, container(1)]}, GPU) == 3
    assert pod_gpus({"containers": [container(0)], "initContainers": [sidecar, container(4)]}, GPU) == 5
    assert pod_gpus({"containers": [{}]}, GPU) == 0


def test_racks_count_their_wholly_free_nodes_by_a_label() -> None:
    rack = "nvidia.com/gpu.clique"
    nodes = [node(f"{r}{i}", 4, labels={rack: r}) for r, size in (("x", 3), ("y", 2)) for i in range(size)]
    nodes += [node("none", 4), node("cordoned", 4, labels={rack: "x"}, unschedulable=True)]
    of_racks = pool(gpus_per_node=4, gpus_per_rack=72)
    found = capacity_of((of_racks,), nodes, [pod("x0", 1)], service=DEMO)
    assert found.racks == {"a": (2, 2)}
    assert found.free == {"a": (4, 4, 4, 4, 4, 3)}
    assert not found.notes
    named = pool(gpus_per_node=4, gpus_per_rack=72, topology={"required": "example.com/rack"})
    other = capacity_of((named,), nodes, [], service=DEMO)
    assert other.racks == {"a": ()}
    assert "no node of pool a has the label example.com/rack" in other.notes[0]
    asked = with_nodes_and_plan({"capacity": {"gpus": 16, "pools": [{"name": "a"}]}}, found, None)
    assert asked["capacity"]["pools"] == [{"name": "a", "nodes": [4, 4, 4, 4, 4, 3], "racks": [2, 2]}]


def test_free_gpus_and_what_runs_do_not_change_the_question() -> None:
    request = {"capacity": {"gpus": 16, "pools": [{"name": "a"}, {"name": "b"}]}}
    asked = with_nodes_and_plan(request, NodeCapacity(total=16, free={"a": (8, 4)}), record())
    assert asked["capacity"]["pools"] == [{"name": "a", "nodes": [8, 4]}, {"name": "b"}]
    assert {group["role"] for group in asked["current"]} == {"prefill", "decode"}
    assert request == {"capacity": {"gpus": 16, "pools": [{"name": "a"}, {"name": "b"}]}}
    assert request_hash(request) != request_hash(asked)  # so the question keeps the hash of the request before
    assert with_nodes_and_plan(request, None, None) == {**request, "current": []}
    assert "are not known" in notes_on(None)[0]


def test_nodes_beyond_what_the_budget_can_use_make_no_other_request() -> None:
    request = {"capacity": {"gpus": 3, "pools": [{"name": "a"}]}}
    few, many = (8, 8, 2), (16, 9, 2, *(1,) * 200)
    asked = [with_nodes_and_plan(request, NodeCapacity(total=300, free={"a": free}), None) for free in (few, many)]
    assert asked[0]["capacity"]["pools"] == [{"name": "a", "nodes": [3, 3, 2]}]
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    "resource", ["nvidia.com/mig-3g.40gb", "amd.com/gpu", "habana.ai/gaudi", "gpu.intel.com/i915", "google.com/tpu"]
)
def test_devices_of_any_plugin_are_counted_by_their_resource(resource: str) -> None:
    found = node("x", 8)
    found["status"]["allocatable"][resource] = "6"
    capacity = capacity_of([pool("some", resource=resource, degrees=[1])], [found], [], service=DEMO)
    assert (capacity.total, capacity.free) == (6, {"some": (6,)})
