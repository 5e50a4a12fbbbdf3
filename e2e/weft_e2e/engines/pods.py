"""Real engines in pods of two nodes: the example of docs/examples on a cluster of this machine."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import yaml

from weft_e2e.cluster.forward import forward_from
from weft_e2e.engines.environment import EngineEnv
from weft_e2e.engines.process import keep_on_core
from weft_e2e.images.catalogue import repository_root
from weft_e2e.waiting import until

GONE_S = 30.0
"""So long may a killed engine with gigabytes of memory take to be gone."""
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
    for pid, variables in _processes(pods):
        core = variables.get("VLLM_CPU_OMP_THREADS_BIND", "")
        if core.isdigit() and int(core) < (os.cpu_count() or 1):
            keep_on_core([pid], int(core))
            found[variables["POD_NAME"]] = int(core)
    return found


@contextmanager
def keeping_on_cores(pods: Sequence[str], *, every_s: float = 1.0) -> Iterator[None]:
    """Put the engines of pods on their cores again and again while this runs: they start, and NIXL moves them."""
    over = threading.Event()

    def keep() -> None:
        while not over.wait(every_s):
            keep_pods_on_their_cores(pods)

    keeper = threading.Thread(target=keep, daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join(timeout=30)


@contextmanager
def cut(pod: str, *match: str) -> Iterator[None]:
    """Let the kernel drop what comes into a pod and matches, as a firewall between nodes does, while this runs.

    ``match`` is iptables' own words. The rule is in the pod's network namespace alone, and gone with the pod.

    Raises:
        LookupError: no process of that pod runs on this machine.
    """
    table = (*_inside(pod), "iptables", "-w", "10")
    subprocess.run([*table, "-I", "INPUT", *match, "-j", "DROP"], check=True, timeout=30)
    try:
        yield
    finally:
        subprocess.run([*table, "-D", "INPUT", *match, "-j", "DROP"], check=False, timeout=30)


def ask_again_soon(pod: str) -> None:
    """Let the kernel send what nobody confirms again every second rather than after twice the time, and for minutes.

    A way that was cut is found open at once then. For connections of the pod that begin from now on, on kernels that
    know the setting (Linux 6.15); on others nothing changes.

    Raises:
        LookupError: no process of that pod runs on this machine yet.
    """
    inside = _inside(pod)
    for setting in ("tcp_rto_max_ms=1000", "tcp_retries2=255"):
        words = (*inside, "sysctl", "-q", "-w", f"net.ipv4.{setting}")
        if subprocess.run(words, check=False, timeout=30, capture_output=True).returncode:
            return


def reach(pod: str, port: int) -> AbstractContextManager[str]:
    """Yield a URL of this machine's loopback that leads to a port of a pod's own, past the API server and its load.

    Raises:
        LookupError: no process of that pod runs here.
    """
    return forward_from(_pid(pod), "127.0.0.1", port)


def _inside(pod: str) -> tuple[str, ...]:
    """Return how a command of this machine runs in a pod's network namespace.

    Raises:
        LookupError: no process of that pod runs here.
    """
    return ("nsenter", f"--target={_pid(pod)}", "--net")


def _pid(pod: str) -> int:
    pid = next((pid for pid, _ in _processes([pod])), None)
    if pid is None:
        raise LookupError(f"no process of pod {pod} runs here")
    return pid


def kill_engine(pod: str) -> None:
    """End every process of a pod's engine at once, as a machine's fault would; its kubelet starts it again.

    They are gone when this returns: what is sent meanwhile would be taken for the cause.

    Raises:
        LookupError: none runs on this machine.
        TimeoutError: one is still there after ``GONE_S``.
    """
    killed = []
    for pid, variables in _processes([pod]):
        if "VLLM_CPU_OMP_THREADS_BIND" in variables:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    if not killed:
        raise LookupError(f"no engine of pod {pod} runs here")
    until(lambda: not any(map(_lives, killed)), what=f"an end of the engine of pod {pod}", timeout_s=GONE_S)


def _lives(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/environ").read_bytes())  # that of a zombie is empty
    except OSError:
        return False


def _processes(pods: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the processes of pods that run on this machine, with their environment."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            raw = (folder / "environ").read_bytes()
        except OSError:
            continue  # ended meanwhile
        variables = dict(part.split("=", 1) for part in raw.decode(errors="replace").split("\0") if "=" in part)
        if variables.get("POD_NAME") in pods:
            yield int(folder.name), variables
