"""kubectl for tests, and waiting with a deadline."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from weft_e2e.local.ports import free_ports
from weft_operator.api.objects import Manifest

T = TypeVar("T")


class Kube:
    """Runs kubectl against one kubeconfig."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self._program = _kubectl()

    def run(self, *args: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Return what kubectl prints; a failure is an AssertionError with its words."""
        done = self.attempt(*args, stdin=stdin, timeout=timeout)
        assert done.returncode == 0, f"kubectl {' '.join(args)}: {done.stderr}"
        return done.stdout

    def attempt(self, *args: str, stdin: str | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Return how kubectl ended."""
        env = {**os.environ, "KUBECONFIG": str(self.config)}
        return subprocess.run(
            [*self._program, *args],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def await_definitions(self, folder: Path) -> None:
        """Wait until the API server serves all CRDs of a folder; kubectl refuses to wait for one without a status."""
        asked = ("wait", "--for=condition=Established", "--timeout=30s", "-f", str(folder))
        wait_for("established CRDs", lambda: self.attempt(*asked).returncode == 0, timeout=180)

    def apply(self, body: Manifest, *args: str) -> str:
        """Apply one object."""
        return self.run("apply", "-f", "-", *args, stdin=yaml.safe_dump(body))

    def get(self, namespace: str, kind: str, name: str) -> Manifest | None:
        """Return one object, None when it is not there."""
        done = self.attempt("-n", namespace, "get", kind, name, "-o", "json", "--ignore-not-found")
        assert done.returncode == 0, done.stderr
        found: Manifest | None = json.loads(done.stdout) if done.stdout.strip() else None
        return found

    def list(self, namespace: str, kinds: str, selector: str = "") -> list[Manifest]:
        """Return the objects of some kinds."""
        args = ["-n", namespace, "get", kinds, "-o", "json"]
        items: list[Manifest] = json.loads(self.run(*args, *(["-l", selector] if selector else [])))["items"]
        return items

    def exists(self, kind: str, name: str) -> bool:
        """Return whether an object without a namespace exists."""
        return self.attempt("get", kind, name).returncode == 0


def free_port() -> int:
    """Return a port of this machine's loopback that nobody listens on."""
    return free_ports(1)[0]


def wait_for(what: str, probe: Callable[[], T], *, timeout: float = 90) -> T:
    """Return the probe's first true answer; an AssertionError with the last one after the deadline."""
    deadline = time.monotonic() + timeout
    while True:
        found = probe()
        if found:
            return found
        assert time.monotonic() < deadline, f"no {what} within {timeout} s; last: {found!r}"
        time.sleep(0.2)


def condition(body: Manifest | None, kind: str) -> dict[str, Any]:
    """Return a condition of a service, empty when it has none."""
    conditions = ((body or {}).get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item["type"] == kind), {})


def _kubectl() -> list[str]:
    found = os.environ.get("WEFT_KUBECTL") or shutil.which("kubectl")
    if found:
        return [found]
    from weft_e2e.cluster.kubectl import kubectl_argv  # the local cluster brings its own

    return kubectl_argv()
