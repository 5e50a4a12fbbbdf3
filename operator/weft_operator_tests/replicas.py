"""Operator processes against an API server, or against the proxy in front of it."""

import multiprocessing
import os
import signal
import time
import urllib.request
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from weft_operator_tests import operator_with_plans
from weft_operator_tests.cluster import free_port, wait_for

RESYNC_S = 2
# Forked from a process that has imported the operator: kills and restarts then cost no second of imports each.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([operator_with_plans.__name__, "weft_operator.controllers.program"])


@dataclass
class Replica:
    """One operator process of a name; it may be killed, stopped, frozen and started again."""

    name: str
    kubeconfig: Path
    namespace: str
    folder: Path
    lease: str = ""
    env: dict[str, str] = field(default_factory=dict)
    port: int = 0
    process: ForkServerProcess | None = None

    @property
    def log(self) -> Path:
        """Return the file of its log."""
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """Return its process id."""
        assert self.process is not None
        assert self.process.pid is not None
        return self.process.pid

    @property
    def ended(self) -> bool:
        """Return whether it was started and has ended."""
        return self.process is not None and not self.process.is_alive()

    def start(self, *, ready: bool = True) -> "Replica":
        """Start it and, if asked, wait until it is ready."""
        self.port = free_port()
        env = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "POD_NAME": self.name,
            "WEFT_ROUTER_IMAGE": "localhost/weft-router:absent",
            "WEFT_MOCK_IMAGE": "localhost/weft-mock-engine:absent",
            "WEFT_WATCH_NAMESPACES": self.namespace,
            "WEFT_RESYNC_SECONDS": str(RESYNC_S),
            "WEFT_OPERATOR_PORT": str(self.port),
            "WEFT_OPERATOR_LEASE": self.lease,
            **self.env,
        }
        self.process = _FORKS.Process(target=operator_with_plans.main, args=(env, self.log))
        self.process.start()
        if ready:
            wait_for(f"readiness of {self.name}", self.ready, timeout=180)
        return self

    def ready(self) -> str:
        """Return what its readiness says, empty while it is not ready; an AssertionError when it ended."""
        assert not self.ended, f"{self.name} ended: {self.log.read_text()[-2000:]}"
        return self.get("/readyz")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it without a chance to tidy up; also when it was frozen, or has ended."""
        if self.process is not None:
            self.process.kill()
            self.process.join(20)

    def stop(self) -> int | None:
        """Ask it to end; return its exit status, None when it did not end within a minute."""
        assert self.process is not None
        self.process.terminate()
        self.process.join(60)
        return self.process.exitcode

    def get(self, path: str) -> str:
        """Return an answer of its own port, empty when there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def metric(self, name: str) -> float:
        """Return the sum over a metric's series."""
        lines = wait_for("metrics page", lambda: self.get("/metrics")).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    @property
    def leads(self) -> bool:
        """Return whether it says that it leads."""
        return self.get("/readyz").startswith("leads")


def seconds_until(what: str, holds: object, *, timeout: float) -> float:
    """Return how long it takes until something holds."""
    begin = time.monotonic()
    assert callable(holds)
    wait_for(what, holds, timeout=timeout)
    return time.monotonic() - begin
