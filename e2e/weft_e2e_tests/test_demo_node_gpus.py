"""GPUs of a user's cluster: counted, simulated only where asked to and only where there are none, and taken back."""

# ruff: noqa: A002, ARG002 - the signature is that of weft_e2e.kube.Kube

import json
import shlex
import subprocess
from dataclasses import dataclass, field

import pytest

from weft_e2e.demo import node_gpus
from weft_e2e.demo.node_gpus import SIMULATED, Devices
from weft_e2e.demo.steps import DemoFailed
from weft_e2e.kube import Object
from weft_e2e_tests.fake_kube import Done, FakeKube

CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}


def node(name: str, *, taints: tuple[dict[str, str], ...] = (), **devices: int) -> Object:
    resources = {key.replace("gpu", "nvidia.com/gpu").replace("rdma", "rdma/ib"): str(n) for key, n in devices.items()}
    return {
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {"taints": list(taints)} if taints else {},
        "status": {"allocatable": {"cpu": "8", **resources}, "capacity": {"cpu": "8", **resources}},
    }


@dataclass
class Nodes(FakeKube):
    """Keeps nodes as an API server does: a merge patch of their status, and annotations."""

    calls: list[tuple[str, ...]] = field(default_factory=list)

    def kubectl(self, *args: str, input: str | None = None, timeout: float = 60.0, check: bool = True) -> Done:
        if args[:2] == ("get", "nodes"):
            return subprocess.CompletedProcess(args, 0, json.dumps({"items": self.objects}), "")
        self.calls.append(args)
        assert args[1] == "node"
        (found,) = [one for one in self.objects if one["metadata"]["name"] == args[2]]
        if args[0] == "annotate":
            self._annotate(found, args[3])
        else:
            assert args[0] == "patch"
            assert args[3:6] == ("--subresource=status", "--type=merge", "-p")
            for part, values in json.loads(args[6])["status"].items():
                for key, value in values.items():
                    if value is None:
                        found["status"][part].pop(key, None)
                    else:
                        found["status"][part][key] = value
        return subprocess.CompletedProcess(args, 0, "", "")

    @staticmethod
    def _annotate(found: Object, word: str) -> None:
        annotations = found["metadata"].setdefault("annotations", {})
        key, equals, value = word.partition("=")
        if equals:
            annotations[key] = value
        else:
            del annotations[word.removesuffix("-")]

    def of(self, name: str) -> dict[str, str]:
        """Return what a node can allocate."""
        (found,) = [one for one in self.objects if one["metadata"]["name"] == name]
        allocatable: dict[str, str] = found["status"]["allocatable"]
        return allocatable


def ensure(kube: Nodes, *, simulate: bool = False) -> list[str]:
    said: list[str] = []
    node_gpus.ensure(kube, "kind-x", simulate=simulate, say=said.append)
    return said


def test_the_example_asks_for_this_much() -> None:
    assert node_gpus.needed() == Devices(("nvidia.com/gpu", "rdma/ib"), total=16, each=8)


def test_nodes_that_have_enough_are_left_alone() -> None:
    kube = Nodes([node("a", gpu=8, rdma=8), node("b", gpu=8, rdma=8)])

    assert ensure(kube, simulate=True) == ["2 nodes have them"]
    assert kube.calls == []


def test_too_few_are_refused_with_the_commands_that_help() -> None:
    kube = Nodes([node("x-control-plane", taints=(CONTROL_PLANE,)), node("x-worker"), node("x-worker2")])

    with pytest.raises(DemoFailed) as refused:
        ensure(kube)

    words, *commands = str(refused.value).splitlines()
    assert "0 nvidia.com/gpu and 0 rdma/ib; the demo needs 16 of each" in words
    assert "make demo KUBE_CONTEXT=kind-x SIMULATE_GPUS=1" in words
    assert kube.calls == [], "nothing was asked for"
    for command, name in zip(commands, ("x-worker", "x-worker2"), strict=True):
        kubectl, context, named, *args = shlex.split(command)
        assert (kubectl, context, named) == ("kubectl", "--context", "kind-x")
        assert args[2] == name
        kube.kubectl(*args)
    assert ensure(kube) == ["2 nodes have them"], "the commands do what they are for"


def test_one_node_announces_all_of_them() -> None:
    kube = Nodes([node("x-control-plane")])

    assert ensure(kube, simulate=True) == ["simulated on x-control-plane"]
    assert kube.of("x-control-plane") == {"cpu": "8", "nvidia.com/gpu": "16", "rdma/ib": "16"}


def test_what_is_simulated_is_taken_back_and_nothing_else() -> None:
    kube = Nodes([node("a", gpu=8), node("b", gpu=8), node("c", gpu=8, rdma=2)])

    ensure(kube, simulate=True)

    assert [kube.of(name) for name in "abc"] == [
        {"cpu": "8", "nvidia.com/gpu": "8", "rdma/ib": "8"},
        {"cpu": "8", "nvidia.com/gpu": "8", "rdma/ib": "8"},
        {"cpu": "8", "nvidia.com/gpu": "8", "rdma/ib": "2"},
    ]
    noted = [call[3] for call in kube.calls if call[0] == "annotate"]
    assert noted == [f"{SIMULATED}=rdma/ib"] * 2
    assert kube.calls[0][0] == "annotate", "noted before it is done"

    assert node_gpus.remove(kube) == ["a", "b"]
    assert [kube.of(name) for name in "abc"] == [
        {"cpu": "8", "nvidia.com/gpu": "8"},
        {"cpu": "8", "nvidia.com/gpu": "8"},
        {"cpu": "8", "nvidia.com/gpu": "8", "rdma/ib": "2"},
    ]
    assert node_gpus.remove(kube) == []


def test_what_was_simulated_before_is_not_forgotten() -> None:
    kube = Nodes([node("a", gpu=16)])
    ensure(kube, simulate=True)
    for part in ("allocatable", "capacity"):
        del kube.objects[0]["status"][part]["nvidia.com/gpu"]

    ensure(kube, simulate=True)

    assert kube.of("a") == {"cpu": "8", "nvidia.com/gpu": "16", "rdma/ib": "16"}
    node_gpus.remove(kube)
    assert kube.of("a") == {"cpu": "8"}


def test_real_devices_are_never_overwritten() -> None:
    kube = Nodes([node("a", gpu=4, rdma=4)])

    with pytest.raises(DemoFailed, match="there is no other node to simulate them on"):
        ensure(kube, simulate=True)
    assert kube.calls == []
