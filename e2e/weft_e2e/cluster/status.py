"""What a cluster looks like now, for people and for programs."""

import json
import time
from dataclasses import asdict, dataclass
from datetime import datetime

from weft_e2e.cluster import kubectl, state
from weft_e2e.cluster.config import CONTROL_PLANE, context_name
from weft_e2e.cluster.errors import ClusterError
from weft_e2e.cluster.paths import ClusterPaths


@dataclass(frozen=True)
class NodeStatus:
    """One node as the API server knows it, and whether its power is on (fake nodes have none)."""

    name: str
    ready: bool
    power: str  # "on", "off" or "fake"
    age_s: float | None
    gpus: str
    rdma: str


@dataclass(frozen=True)
class ClusterStatus:
    """A cluster; `running` is false when its control plane is not alive."""

    name: str
    running: bool
    context: str
    kubeconfig: str
    api_url: str
    logs: str
    problem: str
    nodes: tuple[NodeStatus, ...]

    @property
    def healthy(self) -> bool:
        return self.running and not self.problem and all(node.ready for node in self.nodes)

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"healthy": self.healthy}, indent=2)


def read(paths: ClusterPaths, now: float | None = None) -> ClusterStatus:
    """Return the status of a cluster that has state; an API server that does not answer is a `problem`."""
    known = state.require(paths)
    running = state.member_pid(paths, CONTROL_PLANE) is not None
    items: list[dict[str, object]] = []
    problem = "" if running else "the control plane is not running"
    if running:
        try:
            argv = kubectl.kubectl_argv("get", "nodes", "-o", "json", "--request-timeout=10s")
            items = json.loads(kubectl.run(argv, paths.kubeconfig, timeout=20).stdout)["items"]
        except ClusterError as error:
            problem = str(error)
    power = {node: "off" if state.member_pid(paths, node) is None else "on" for node in known.config.node_names}
    return ClusterStatus(
        name=paths.name,
        running=running,
        context=context_name(paths.name),
        kubeconfig=str(paths.kubeconfig),
        api_url=f"https://127.0.0.1:{known.api_port}",
        logs=str(paths.root / "*" / "logs"),
        problem=problem,
        nodes=parse_nodes(items, power, time.time() if now is None else now),
    )


def parse_nodes(items: list[dict[str, object]], power: dict[str, str], now: float) -> tuple[NodeStatus, ...]:
    """Return the nodes in the API server's list, real ones first; one that never registered is shown too."""
    found = {node.name: node for node in (_node(item, power, now) for item in items)}
    unregistered = {
        name: NodeStatus(name=name, ready=False, power=state_, age_s=None, gpus="-", rdma="-")
        for name, state_ in power.items()
        if name not in found
    }
    return tuple(sorted((found | unregistered).values(), key=_order))


def table(status: ClusterStatus) -> str:
    """Return the status as lines for a terminal."""
    lines = [
        f"cluster     {status.name} ({'running' if status.running else 'not running'})",
        f"context     {status.context}",
        f"kubeconfig  {status.kubeconfig}",
        f"API         {status.api_url}",
        f"logs        {status.logs}",
    ]
    if status.problem:
        lines.append(f"problem     {status.problem}")
    lines += ["", f"{'NODE':<12}{'READY':<8}{'POWER':<8}{'AGE':<8}{'GPUS*':<8}{'RDMA*':<8}"]
    for node in status.nodes:
        age = "-" if node.age_s is None else _age(node.age_s)
        lines.append(f"{node.name:<12}{node.ready!s:<8}{node.power:<8}{age:<8}{node.gpus:<8}{node.rdma:<8}".rstrip())
    return "\n".join([*lines, "", "* simulated: counted and assigned by Kubernetes, no device behind them"])


def _node(item: dict[str, object], power: dict[str, str], now: float) -> NodeStatus:
    metadata, status = _mapping(item["metadata"]), _mapping(item["status"])
    conditions = status.get("conditions") or []
    if not isinstance(conditions, list):
        raise TypeError("conditions is not a list")
    allocatable = _mapping(status.get("allocatable") or {})
    name = str(metadata["name"])
    created = datetime.fromisoformat(str(metadata["creationTimestamp"]))
    return NodeStatus(
        name=name,
        ready=any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions),
        power=power.get(name, "fake"),
        age_s=max(0.0, now - created.timestamp()),
        gpus=str(allocatable.get("nvidia.com/gpu", "0")),
        rdma=str(allocatable.get("rdma/ib", "0")),
    )


def _mapping(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"expected a mapping, got {value!r}")
    return value


def _order(node: NodeStatus) -> tuple[bool, int, str]:
    number = node.name.rpartition("-")[2]
    return node.power == "fake", int(number) if number.isdigit() else 0, node.name


def _age(seconds: float) -> str:
    """Return an age as kubectl prints it."""
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "m"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // divisor)}{unit}"
    return f"{int(seconds // 86400)}d"
