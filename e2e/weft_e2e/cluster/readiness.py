"""Waits for parts of a cluster, each with a deadline and with the logs that explain a failure."""

import json
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from weft_e2e.cluster import api_probe, images, kubectl, state
from weft_e2e.cluster.config import CONTROL_PLANE, ClusterConfig
from weft_e2e.cluster.coredns import NAME as DNS_NAME
from weft_e2e.cluster.coredns import NAMESPACE as DNS_NAMESPACE
from weft_e2e.cluster.deadlines import scaled
from weft_e2e.cluster.errors import CommandError, StartError
from weft_e2e.cluster.paths import ClusterPaths

API_SECONDS = 60.0  # 2 s on idle cores
NODE_SECONDS = 60.0
DNS_SECONDS = 60.0
CONTAINERD_SECONDS = 30.0


def await_api(paths: ClusterPaths) -> None:
    """Wait until the API server is ready, asked as a user on this machine asks it."""

    def ready() -> str:
        return "no answer to /readyz with status 200" if _get(paths, "/readyz") is None else ""

    _await(paths, "the API server", API_SECONDS, ready, (CONTROL_PLANE,))


def await_nodes(config: ClusterConfig, paths: ClusterPaths, nodes: Sequence[str], *, since: float = 0.0) -> None:
    """Wait until the nodes' kubelets have said, after `since` (seconds since the epoch), that they are Ready.

    After a short power cut the API server still shows the old words of a kubelet that is not up yet.
    """

    def ready() -> str:
        body = _get(paths, "/api/v1/nodes")
        if body is None:
            return "the API server does not list the nodes"
        items = {item["metadata"]["name"]: item for item in json.loads(body)["items"]}
        waiting = [node for node in nodes if node not in items or not node_is_complete(items[node], config, since)]
        return f"waiting for {', '.join(waiting)}" if waiting else ""

    _await(paths, "the nodes", NODE_SECONDS, ready, nodes)


def node_is_complete(node: dict[str, object], config: ClusterConfig, since: float = 0.0) -> bool:
    """Return whether a Node object says, after `since`, that it is Ready and has the devices asked for."""
    status = node.get("status")
    if not isinstance(status, dict):
        return False
    ready = any(
        entry["type"] == "Ready" and entry["status"] == "True" and _heard(entry) >= int(since)
        for entry in status.get("conditions", [])
    )
    allocatable = status.get("allocatable", {})
    wanted = {"nvidia.com/gpu": config.gpus, "rdma/ib": config.rdma}
    return ready and all(allocatable.get(name, "0") == str(count) for name, count in wanted.items())


def _heard(condition: dict[str, object]) -> float:
    """Return when the kubelet last said this, in whole seconds since the epoch."""
    return datetime.fromisoformat(str(condition["lastHeartbeatTime"])).timestamp()


def await_dns(paths: ClusterPaths) -> None:
    """Wait until DNS has as many ready replicas as it should."""
    argv = kubectl.kubectl_argv(
        "rollout", "status", f"deployment/{DNS_NAME}", "-n", DNS_NAMESPACE, f"--timeout={scaled(DNS_SECONDS):.0f}s"
    )
    try:
        kubectl.run(argv, paths.kubeconfig, timeout=DNS_SECONDS + 10)
    except CommandError as error:
        raise StartError(f"DNS is not ready: {error}") from error


def await_containerd(paths: ClusterPaths, pids: dict[str, int]) -> None:
    """Wait until every node's containerd answers."""

    def ready() -> str:
        silent = [node for node, pid in pids.items() if not images.answers(pid)]
        return f"no answer on {', '.join(silent)}" if silent else ""

    _await(paths, "containerd", CONTAINERD_SECONDS, ready, tuple(pids))


def _get(paths: ClusterPaths, path: str) -> bytes | None:
    """Ask the API server as a user on this machine does; a kubectl each time would take a core from what is awaited."""
    url = f"https://127.0.0.1:{state.require(paths).api_port}{path}"
    return api_probe.fetch(url, api_probe.user_context(paths.pki, "admin"))


def _await(paths: ClusterPaths, what: str, limit_s: float, ready: Callable[[], str], members: Sequence[str]) -> None:
    """Call `ready` until it returns "" (its words say what is missing); a member that ended is noticed at once."""
    limit_s = scaled(limit_s)
    deadline = time.monotonic() + limit_s
    while reason := ready():
        for member in members:
            if state.member_pid(paths, member) is None:
                raise StartError(f"{member} ended while waiting for {what}; see {paths.log(member, 'init')}")
        if time.monotonic() > deadline:
            logs = ", ".join(str(paths.log(member, "*")) for member in members)
            raise StartError(f"{what} not ready after {limit_s:.0f} s: {reason}; see {logs}")
        time.sleep(scaled(0.1))
