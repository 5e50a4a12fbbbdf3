"""A second cluster is started, hurt and removed; nothing of it may stay on the machine."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from weft_e2e.cluster import Cluster, ClusterConfig, Refused, archives, cgroups, down, lifecycle, readiness, state, up
from weft_e2e.cluster.config import CONTROL_PLANE
from weft_e2e.cluster.paths import ClusterPaths
from weft_e2e.cluster.toolchain import tool_path
from weft_e2e_tests.footprint import Occupied, leftovers, machine, occupied, survivors

# A guard against a test that hangs: every wait has a deadline of its own, and they add up to less.
pytestmark = [pytest.mark.cluster, pytest.mark.own_cluster, pytest.mark.timeout(600, func_only=True)]

NAME = "test-lifecycle"
CONFIG = ClusterConfig(name=NAME, gpus=4, rdma=2)
CONDITIONS = '{range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")]}{"\\n"}{end}'
READY_SECONDS = 40.0  # two Ready nodes of a warm start take ten on two idle cores: four times that is a fault


def eventually(what: str, condition: Callable[[], bool], *, limit_s: float) -> float:
    """Poll until the condition holds; return the seconds it took."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < limit_s, f"{what}: not within {limit_s} s"
        time.sleep(0.25)
    return time.monotonic() - begin


def await_ready(cluster: Cluster, *names: str) -> None:
    """Wait until exactly these nodes are Ready.

    A machine that stands still for longer than the grace period makes all nodes late with their leases for a while.
    """
    try:
        eventually(
            f"Ready are {', '.join(names)} and no others",
            lambda: {node.name for node in cluster.nodes() if node.ready} == set(names),
            limit_s=90,
        )
    except AssertionError as error:
        shown = cluster.kubectl("get", "nodes", "-o", f"jsonpath={CONDITIONS}", check=False).stdout
        raise AssertionError(f"{error}\n{shown}") from None


@pytest.fixture(scope="module", autouse=True)
def removed_at_the_end() -> Iterator[None]:
    down(NAME)
    yield
    down(NAME)


def pod(name: str, image: str, gpus: int, **spec: object) -> str:
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "resources": {"limits": {"nvidia.com/gpu": gpus}},
    }
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0} | spec,
        }
    )


def test_up_is_quick_complete_and_idempotent_and_down_leaves_nothing() -> None:
    down(NAME)  # nothing of an earlier try
    untouched = machine()
    lines: list[str] = []
    cluster = up(CONFIG, lines.append)
    nodes_ready = next(line for line in lines if "nodes Ready" in line)
    seconds = float(nodes_ready.removeprefix("2 nodes Ready after ").removesuffix(" s"))
    assert seconds <= READY_SECONDS

    await_ready(cluster, *CONFIG.node_names)
    assert [(node.name, node.power, node.gpus, node.rdma) for node in cluster.nodes()] == [
        ("node-1", "on", "4", "2"),
        ("node-2", "on", "4", "2"),
    ]
    labels = json.loads(cluster.kubectl("get", "node", "node-1", "-o", "json").stdout)["metadata"]["labels"]
    assert labels["weft.dev/gpu-type"] == "nvidia-h20"
    assert labels["weft.dev/simulated-gpus"] == "true"

    inits = {member: state.member_pid(cluster.paths, member) for member in CONFIG.members}
    assert up(CONFIG) == cluster
    assert inits == {member: state.member_pid(cluster.paths, member) for member in CONFIG.members}
    with pytest.raises(Refused, match=r"gpus \(4, asked 8\)"):
        up(ClusterConfig(name=NAME, gpus=8, rdma=2))

    pause = archives.single_program(cluster.paths.root, "pause", tool_path("pause"), user=65532)
    for name, gpus in (("holds-gpus", 3), ("too-many", 5)):
        cluster.kubectl("apply", "-f", "-", input=pod(name, pause.name, gpus))
    wait = ("wait", "--timeout=90s")
    cluster.kubectl(*wait, "--for=condition=Ready", "pod/holds-gpus", timeout=120)
    cluster.kubectl(*wait, "--for=condition=PodScheduled=False", "pod/too-many", timeout=120)
    pending = json.loads(cluster.kubectl("get", "pod", "too-many", "-o", "json").stdout)
    assert pending["status"]["phase"] == "Pending"

    used = occupied(NAME)
    assert len(used.namespaces) >= 3 * 6
    assert len(used.processes) >= 15
    assert machine() == untouched, "a running cluster changes nothing of the machine's own"
    assert down(NAME)
    assert leftovers(NAME, used) == []
    assert machine() == untouched
    assert not down(NAME), "a second down finds nothing and does not fail"


@pytest.fixture
def cluster() -> Cluster:
    return up(CONFIG)  # where the test before has left it hurt, this mends it


def test_kill_9_ends_everything_and_both_ways_on_are_clean() -> None:
    """kill -9 of the first processes: nothing runs on; `up` starts anew, `down` leaves nothing."""
    paths = ClusterPaths.of(NAME)
    up(CONFIG)
    for start_again in (True, False):
        used = occupied(NAME)
        for member in CONFIG.members:
            os.kill(state.require_member_pid(paths, member), signal.SIGKILL)
        eventually("all processes end", partial(_all_gone, used), limit_s=40)
        assert state.member_pid(paths, CONTROL_PLANE) is None
        if start_again:
            await_ready(up(CONFIG), *CONFIG.node_names)
    down(NAME)
    # They were not `down`'s to wait for: the machine's first process collects them in its own time.
    eventually("nothing is left", lambda: leftovers(NAME, used) == [], limit_s=40)


def _all_gone(used: Occupied) -> bool:
    return not survivors(used)


def test_a_start_that_is_killed_leaves_nothing_that_down_does_not_find() -> None:
    paths = ClusterPaths.of(NAME)
    starter = subprocess.Popen(
        [sys.executable, "-m", "weft_e2e.cluster", "up", "--name", NAME],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        eventually("the first node starts", lambda: paths.record("node-1").exists(), limit_s=60)
    finally:
        starter.kill()
        starter.wait(10)
    used = occupied(NAME)
    assert used.processes
    down(NAME)
    assert leftovers(NAME, used) == []


def test_power_off_is_noticed_and_power_on_brings_the_node_back(cluster: Cluster) -> None:
    used = occupied(NAME).processes
    cluster.power_off("node-2")
    assert len(occupied(NAME).processes & used) < len(used)
    await_ready(cluster, "node-1")
    assert {node.name: node.power for node in cluster.nodes()} == {"node-1": "on", "node-2": "off"}
    cluster.power_on("node-2")
    await_ready(cluster, "node-1", "node-2")
    cluster.power_off("node-1")
    lines: list[str] = []
    up(CONFIG, lines.append)
    assert "switching node-1 on" in lines
    assert all(node.power == "on" for node in cluster.nodes())


def test_a_program_that_dies_is_started_again(cluster: Cluster) -> None:
    """Neither the node's devices nor its pods suffer from a kubelet's or an API server's death."""
    pods = ("get", "pods", "-n", "kube-system", "-o", "json")
    switched_on = {node: ClusterPaths.of(NAME).record(node).stat().st_mtime for node in CONFIG.node_names}
    # The API server shows the pods of a node that was off as they were before until its kubelet has looked at them.
    eventually(
        "the pods run since their nodes were switched on",
        lambda: _run_since(cluster.kubectl(*pods).stdout, switched_on),
        limit_s=60,
    )
    before = _restarts(cluster.kubectl(*pods).stdout)
    killed = [_program(member, word) for member, word in (("node-1", "kubelet"), (CONTROL_PLANE, "kube-apiserver"))]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    died = time.time()
    eventually("the API server answers", lambda: cluster.kubectl("version", check=False).returncode == 0, limit_s=60)
    readiness.await_nodes(CONFIG, cluster.paths, ("node-1",), since=died)
    assert _program("node-1", "kubelet") not in killed
    assert _restarts(cluster.kubectl(*pods).stdout) == before


def _program(member: str, word: str) -> int:
    """Return the process of a member whose command's second word is `word`."""
    for pid in cgroups.processes(cgroups.find(ClusterPaths.of(NAME).cgroup, member)):
        with suppress(FileNotFoundError):  # gates come and go
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [word.encode()]:
                return pid
    raise AssertionError(f"no {word} on {member}")


def _run_since(listing: str, switched_on: dict[str, float]) -> bool:
    """Return whether every pod's container was started, in whole seconds, after its node."""
    for item in json.loads(listing)["items"]:
        containers = item["status"].get("containerStatuses") or [{}]
        running = (containers[0].get("state") or {}).get("running")
        if running is None or "deletionTimestamp" in item["metadata"]:
            return False
        if datetime.fromisoformat(running["startedAt"]).timestamp() < int(switched_on[item["spec"]["nodeName"]]):
            return False
    return True


def _restarts(listing: str) -> dict[str, int]:
    items = json.loads(listing)["items"]
    return {item["metadata"]["name"]: item["status"]["containerStatuses"][0]["restartCount"] for item in items}


def test_fake_nodes_run_what_tolerates_them_and_nothing_else(cluster: Cluster) -> None:
    cluster.fake_nodes(20)
    nodes = cluster.nodes()
    assert [node.power for node in nodes] == ["on", "on"] + ["fake"] * 20
    await_ready(cluster, *(node.name for node in nodes))
    tolerating = pod(
        "on-a-fake-node",
        "example.invalid/never-pulled:1",
        4,
        nodeSelector={"type": "kwok"},
        tolerations=[{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
    )
    cluster.kubectl("apply", "-f", "-", input=tolerating)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/on-a-fake-node", "--timeout=90s", timeout=120)
    system = json.loads(cluster.kubectl("get", "pods", "-n", "kube-system", "-o", "json").stdout)["items"]
    assert {item["spec"]["nodeName"] for item in system} == {"node-1", "node-2"}
    cluster.fake_nodes(0)
    assert [node.name for node in cluster.nodes()] == ["node-1", "node-2"]


def test_two_clusters_live_side_by_side(cluster: Cluster) -> None:
    other = "test-beside"
    second = up(ClusterConfig(name=other, nodes=1, gpus=0, rdma=0))
    try:
        assert second.api_url != cluster.api_url
        assert [node.name for node in second.nodes()] == ["node-1"]
        second.kubectl("create", "namespace", "only-here")
        assert cluster.kubectl("get", "namespace", "only-here", check=False).returncode != 0
        used = occupied(other)
    finally:
        down(other)
    assert leftovers(other, used) == []
    await_ready(cluster, *CONFIG.node_names)


def test_a_service_is_reached_from_the_machine_while_pods_come_and_go(cluster: Cluster) -> None:
    with cluster.host_forward("kube-system", "kube-dns", 53) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        eventually("the pods answer", lambda: _asks_dns(address), limit_s=40)
        cluster.kubectl("delete", "pods", "-n", "kube-system", "-l", "k8s-app=kube-dns", "--wait=true", timeout=120)
        cluster.kubectl("rollout", "status", "deployment/coredns", "-n", "kube-system", "--timeout=90s", timeout=120)
        eventually("the new pods answer", lambda: _asks_dns(address), limit_s=40)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address, 2)


def _asks_dns(address: tuple[str, int]) -> bool:
    """Ask for kubernetes.default.svc.cluster.local over TCP; return whether its address came back."""
    name = b"".join(bytes([len(word)]) + word for word in b"kubernetes.default.svc.cluster.local".split(b"."))
    question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + name + b"\x00\x00\x01\x00\x01"
    try:
        with socket.create_connection(address, 2) as connection:
            connection.sendall(len(question).to_bytes(2, "big") + question)
            answer = connection.recv(512)
    except OSError:
        return False
    return socket.inet_aton("10.96.0.1") in answer


def test_a_port_that_is_taken_is_refused_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(Refused, match=f"port {port} .* is taken"):
            lifecycle.up(ClusterConfig(name="test-port", api_port=port))
    assert leftovers("test-port", occupied("test-port")) == []
