"""The GPUs that the demo's service asks for, on the nodes of a user's cluster: found, or announced where asked to."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

from weft_e2e import kube as kubernetes
from weft_e2e.demo.steps import DemoFailed, Say
from weft_e2e.example_files import example_file
from weft_e2e.kube import Kube, Object
from weft_e2e.waiting import WaitedTooLong, until

SIMULATED = "weft.dev/demo-devices"
"""Annotation of a node: the resources that the demo lets it announce."""
SHOWN_S = 60.0
"""How long a kubelet may take to confirm what was announced on its node."""


@dataclass(frozen=True, slots=True)
class Devices:
    """What the example needs: so many of each resource in all, and what a node of its pool has."""

    resources: tuple[str, ...]
    total: int
    each: int

    def announcements(self, nodes: Sequence[Object]) -> dict[str, dict[str, str]]:
        """Return node -> resource -> count that those have to announce that have none, for all to be enough."""
        found: dict[str, dict[str, str]] = {}
        for resource in self.lacking(nodes):
            without = [node for node in nodes if _count(node, resource) == 0]
            for node in without:
                count = max(self.each, math.ceil(self.total / len(without)))
                found.setdefault(_name(node), {})[resource] = str(count)
        return found

    def lacking(self, nodes: Sequence[Object]) -> dict[str, int]:
        """Return the resources of which the nodes have too few, with how many they have."""
        there = {resource: sum(_count(node, resource) for node in nodes) for resource in self.resources}
        return {resource: count for resource, count in there.items() if count < self.total}


def needed() -> Devices:
    """Return the devices of the example's one pool."""
    capacity = yaml.safe_load(example_file().read_text())["spec"]["capacity"]
    (pool,) = capacity["pools"]
    return Devices((pool["resource"], pool["rdma"]["resource"]), capacity["gpus"], pool["gpusPerNode"])


def ensure(kube: Kube, context: str, *, simulate: bool, say: Say) -> None:
    """See that the nodes have what the example asks for; ``simulate`` lets those announce it that have none.

    Raises:
        DemoFailed: they have too few; the message has the commands that help.
    """
    devices, nodes = needed(), usable(_nodes(kube))
    lacking = devices.lacking(nodes)
    if not lacking:
        say(f"{len(nodes)} nodes have them")
        return
    announced = devices.announcements(nodes)
    have = " and ".join(f"{count} {resource}" for resource, count in lacking.items())
    words = f"the nodes of context {context!r} that take pods have {have}; the demo needs {devices.total} of each"
    if not announced:
        raise DemoFailed(f"{words}, and there is no other node to simulate them on")
    if not simulate:
        commands = [shlex.join(["kubectl", "--context", context, *_patch(*one)]) for one in announced.items()]
        raise DemoFailed(
            f"{words}. Let nodes announce some that do nothing by `make demo KUBE_CONTEXT={context} SIMULATE_GPUS=1`, "
            "or by\n  " + "\n  ".join(commands)
        )
    noted = _noted(nodes)
    for node, counts in announced.items():
        # Noted first: what is announced without a note would never be taken back.
        kube.kubectl(
            "annotate", "node", node, f"{SIMULATED}={','.join(sorted({*noted[node], *counts}))}", "--overwrite"
        )
        kube.kubectl(*_patch(node, counts))
    try:
        until(
            lambda: not devices.lacking(usable(_nodes(kube))),
            what=f"{devices.total} {' and '.join(devices.resources)} on the nodes",
            timeout_s=SHOWN_S,
            every_s=0.5,
        )
    except WaitedTooLong as late:
        raise DemoFailed(f"{late}, although they were announced there") from None
    say(f"simulated on {', '.join(announced)}")


def remove(kube: Kube) -> list[str]:
    """Take back what ``ensure`` has let nodes announce; return their names."""
    names = {name: resources for name, resources in _noted(_nodes(kube)).items() if resources}
    for name, resources in names.items():
        kube.kubectl(*_patch(name, dict.fromkeys(resources)))
        kube.kubectl("annotate", "node", name, f"{SIMULATED}-")
    return list(names)


def usable(nodes: Sequence[Object]) -> list[Object]:
    """Return the nodes that take pods without a toleration."""
    return [
        node
        for node in nodes
        if not node["spec"].get("unschedulable")
        and not any(taint["effect"] in ("NoSchedule", "NoExecute") for taint in node["spec"].get("taints", ()))
    ]


def _nodes(kube: Kube) -> list[Object]:
    found: list[Object] = json.loads(kubernetes.read(kube, "get", "nodes", "-o", "json"))["items"]
    return found


def _noted(nodes: Sequence[Object]) -> dict[str, list[str]]:
    """Return the resources that each node announces because the demo lets it."""
    notes = {_name(node): node["metadata"].get("annotations", {}).get(SIMULATED, "") for node in nodes}
    return {name: note.split(",") if note else [] for name, note in notes.items()}


def _patch(node: str, counts: Mapping[str, str | None]) -> tuple[str, ...]:
    status = {"status": {"capacity": counts, "allocatable": counts}}
    return ("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(status))


def _count(node: Object, resource: str) -> int:
    return int(node["status"].get("allocatable", {}).get(resource, "0"))


def _name(node: Object) -> str:
    return str(node["metadata"]["name"])
