"""Reaches a Service of the cluster from the machine's loopback."""

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from weft_e2e.cluster import kubectl, state
from weft_e2e.cluster.config import CONTROL_PLANE
from weft_e2e.cluster.errors import NotRunning
from weft_e2e.cluster.paths import ClusterPaths
from weft_e2e.cluster.preflight import listen
from weft_e2e.cluster.toolchain import tool_path


@contextmanager
def host_forward(paths: ClusterPaths, namespace: str, service: str, port: int, local_port: int = 0) -> Iterator[str]:
    """Yield "http://127.0.0.1:PORT", which leads to `port` of the Service for as long as the block runs.

    It goes to the Service's own address, so pods may come and go; with no pod behind it, connections are
    refused as they are inside the cluster. One small process passes the bytes on; it ends with the block, or
    with this process.
    """
    address = cluster_ip(paths.kubeconfig, namespace, service)
    with forward_to(paths, address, port, local_port) as url:
        yield url


def forward_to(paths: ClusterPaths, address: str, port: int, local_port: int = 0) -> AbstractContextManager[str]:
    """Do as ``forward_from`` for the control plane, which reaches every Service and every pod."""
    return forward_from(state.require_member_pid(paths, CONTROL_PLANE), address, port, local_port)


def in_network(paths: ClusterPaths, *argv: str) -> list[str]:
    """Return the command that runs a program of this machine in the network of the control plane."""
    return ["nsenter", "-t", str(state.require_member_pid(paths, CONTROL_PLANE)), "-n", *argv]


@contextmanager
def forward_from(pid: int, address: str, port: int, local_port: int = 0) -> Iterator[str]:
    """Yield "http://127.0.0.1:PORT", which leads to a port of an address as a process of the cluster sees it."""
    with listen(local_port) as listener:
        chosen = int(listener.getsockname()[1])
        process = _start(pid, listener, address, port)
    try:
        yield f"http://127.0.0.1:{chosen}"
    finally:
        process.kill()
        process.wait(10)
        if process.stdin is not None:
            process.stdin.close()


def cluster_ip(kubeconfig: Path, namespace: str, service: str) -> str:
    """Return the Service's address; raise NotRunning for a headless one, which has none."""
    done = kubectl.run(kubectl.kubectl_argv("get", "service", service, "-n", namespace, "-o", "json"), kubeconfig)
    address = json.loads(done.stdout)["spec"].get("clusterIP", "None")
    if address == "None":
        raise NotRunning(f"Service {namespace}/{service} is headless: only its pods have addresses")
    return str(address)


def _start(pid: int, listener: socket.socket, address: str, port: int) -> "subprocess.Popen[bytes]":
    number = listener.fileno()
    # The program's own standard input ends with this process, whatever ends it, and the program with it.
    return subprocess.Popen(
        ["nsenter", "-t", str(pid), "-n", str(tool_path("forward")), str(number), address, str(port), "-"],
        stdin=subprocess.PIPE,
        pass_fds=(number,),
    )
