"""End a worker of a loopback stack as a kubelet ends its pod: hooks first, then SIGTERM, the engine before its sidecar.

The hooks are those of the pod: the program ``weft_router.drain`` for the sidecar, ``GET /engine/prestop`` for the
engine. What is left at the end of the grace period is killed.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from typing import Literal

from weft_core.heartbeat import scale_down_order
from weft_e2e.forked import Forked
from weft_e2e.stack import HOST, Stack

Hook = Literal["session", "sleep"]
"""What a pod does before it ends: drain by session, or sleep and hope."""
Victims = Literal["value", "ordinal"]
STOP_MARGIN_S = 10.0
"""What the grace period has beyond the drain time, as in the pods."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A worker that ended: how long that took, what its router said at the end, and what its engine had computed."""

    worker: str
    seconds: float
    drain: dict[str, object]
    computed_tokens: int
    killed: bool


def victim(stack: Stack, role: str, victims: Victims, *, busy: frozenset[str] = frozenset()) -> str:
    """Return the worker of a role that goes next: the one of least value, or the one of the highest ordinal.

    Workers in ``busy`` (just being started) stay.
    """
    ready = [r for r in stack.records() if r.role == role and r.ready and not r.draining and r.worker not in busy]
    if not ready:
        raise LookupError(f"no {role} worker is ready")
    if victims == "ordinal":
        return max((r.worker for r in ready), key=lambda name: int(name.rpartition("-")[2]))
    return scale_down_order(ready)[0].worker


def end(stack: Stack, worker: str, hook: Hook, *, within_s: float | None = None) -> Gone:
    """End a worker; return when both of its processes are gone.

    ``within_s`` is how long a hook that sleeps takes, and when a drain is cut short, as by a shorter grace period;
    None: the drain's own time.
    """
    begun = time.monotonic()
    deadline = begun + stack.config.drain_s + STOP_MARGIN_S
    hook_s = stack.config.drain_s + STOP_MARGIN_S if within_s is None else within_s
    engine, router = (stack.processes[f"{worker}/{part}"].running for part in ("engine", "router"))
    if hook == "session":
        _drain(stack, worker, timeout_s=hook_s, cut=within_s is not None)
    else:
        time.sleep(hook_s)
    computed = int(str(stack.ledger(worker)["prefilled_tokens"]))
    engine.send_signal(signal.SIGTERM)
    if hook == "sleep":
        router.send_signal(signal.SIGTERM)
    killed = _gone(engine, deadline)
    if hook == "session":
        router.send_signal(signal.SIGTERM)
    killed = _gone(router, deadline) or killed
    return Gone(worker, time.monotonic() - begun, _said(stack, worker), computed, killed)


def _drain(stack: Stack, worker: str, *, timeout_s: float, cut: bool) -> None:
    """Run both hooks of a pod, which begin together, and wait for the engine's; one that is cut is left alone then."""
    url = f"http://{HOST}:{stack.router_ports[worker]}"
    env = {**os.environ, "WEFT_TOKEN_FILE": str(stack.folder / "token"), "WEFT_DRAIN_URL": f"{url}/drain"}
    told = subprocess.Popen([sys.executable, "-m", "weft_router.drain"], env=env)
    try:
        with urllib.request.urlopen(f"{url}/engine/prestop", timeout=timeout_s) as reply:  # noqa: S310 - loopback
            answer = reply.read().decode().strip()
    except TimeoutError:
        answer = "drained" if cut else "not in time"
    if told.wait(10) != 0 or answer != "drained":
        raise RuntimeError(f"the hooks of {worker} ended with {told.returncode} and {answer!r}")


def _gone(process: "subprocess.Popen[bytes] | Forked", deadline: float) -> bool:
    """Wait for a process; kill it at the deadline, and tell whether that was needed."""
    try:
        process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
        return True
    return False


def _said(stack: Stack, worker: str) -> dict[str, object]:
    """Return the last line about its drain in the log of a worker's router."""
    log = stack.processes[f"{worker}/router"].log.read_text(errors="replace")
    lines = [line for line in log.splitlines() if '"drain_ended"' in line]
    found: dict[str, object] = json.loads(lines[-1]) if lines else {}
    return found
