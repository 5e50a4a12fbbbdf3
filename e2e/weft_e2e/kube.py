"""Reach a Kubernetes cluster the same way whether it was started here or is the user's own."""

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from weft_e2e.waiting import until

# An API object as JSON: its shape is the API server's business.
Object = dict[str, Any]

READS = 4
"""A read that a busy API server cuts off is asked so often, with longer pauses each time."""
_PAUSE_S = 0.5
_CUT_OFF = re.compile(
    r"did not end within|TLS handshake timeout|i/o timeout|unexpected EOF|: EOF\b|context deadline exceeded|"
    r"connection refused|was refused - did you|connection reset|client connection lost|net/http: request canceled|"
    r"etcdserver: |apiserver not ready|unable to handle the request|Too Many Requests|timed out waiting",
)


class KubeError(RuntimeError):
    """Report a kubectl or helm command that failed, with its words."""


class Kube(Protocol):
    """What is needed of a cluster; ``weft_e2e.cluster.Cluster`` has it, and so has ``NamedContext``."""

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run gives it
        timeout: float = 60.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl on the cluster."""
        ...

    def helm(self, *args: str, timeout: float = 120.0, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run helm on the cluster."""
        ...

    def host_forward(
        self, service_namespace: str, service: str, port: int, local_port: int = 0
    ) -> AbstractContextManager[str]:
        """Return a context manager that yields a URL on loopback that leads to the Service's port."""
        ...


@dataclass(frozen=True, slots=True)
class NamedContext:
    """A cluster of the user's, by the name of its kubectl context; kubectl and helm are taken from PATH."""

    context: str

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run gives it
        timeout: float = 60.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl with the context; with ``check``, a failure is a KubeError."""
        return _run(["kubectl", "--context", self.context, *args], stdin=input, timeout=timeout, check=check)

    def helm(self, *args: str, timeout: float = 120.0, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run helm with the context."""
        return _run(["helm", "--kube-context", self.context, *args], stdin=None, timeout=timeout, check=check)

    @contextmanager
    def host_forward(self, service_namespace: str, service: str, port: int, local_port: int = 0) -> Iterator[str]:
        """Forward to one pod of the Service (kubectl port-forward) for as long as the block runs."""
        argv = ["kubectl", "--context", self.context, "-n", service_namespace, "port-forward", f"service/{service}"]
        argv += ["--address", "127.0.0.1", f"{local_port}:{port}" if local_port else f":{port}"]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            if found is None:
                raise KubeError(f"kubectl port-forward to {service_namespace}/{service} failed: {line.strip()}")
            chosen = int(found.group(1))
            until(lambda: _listens(chosen), what=f"the forwarded port {chosen}", timeout_s=10, every_s=0.1)
            yield f"http://127.0.0.1:{chosen}"
        finally:
            process.kill()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()


def _run(argv: Sequence[str], *, stdin: str | None, timeout: float, check: bool) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=os.environ,
        )
    except FileNotFoundError:
        raise KubeError(f"{argv[0]} is not on PATH: install it to use your own cluster") from None
    except subprocess.TimeoutExpired:
        raise KubeError(f"`{' '.join(argv)[:200]}` did not end within {timeout:.0f} s") from None
    if check and done.returncode != 0:
        raise KubeError(f"`{' '.join(argv)[:200]}` failed with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def read(kube: Kube, *args: str, timeout: float = 60.0) -> str:
    """Return what ``kubectl`` prints; only for what changes nothing, for where it is cut off it is asked again."""
    for attempt in range(1, READS + 1):
        try:
            return kube.kubectl(*args, timeout=timeout).stdout
        except RuntimeError as error:  # each kind of cluster has an error of its own
            if attempt == READS or _CUT_OFF.search(str(error)) is None:
                raise
        time.sleep(_PAUSE_S * attempt)
    raise AssertionError("the last attempt returns or raises")


def get(kube: Kube, kind: str, name: str, *, namespace: str) -> Object | None:
    """Return one object, None when there is none of that name."""
    found = read(kube, "get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
    return _object(found) if found.strip() else None


def items(kube: Kube, kinds: str, *, namespace: str, selector: str = "") -> list[Object]:
    """Return the objects of some kinds (``pods,services``) that match a label selector."""
    args = ["get", kinds, "-n", namespace, "-o", "json"]
    found: list[Object] = _object(read(kube, *args, *(["-l", selector] if selector else [])))["items"]
    return found


def _object(text: str) -> Object:
    value: Object = json.loads(text)
    return value


@dataclass(frozen=True, slots=True)
class Condition:
    """One status condition."""

    status: str
    reason: str
    message: str
    generation: int | None

    @property
    def true(self) -> bool:
        """Return whether the condition holds."""
        return self.status == "True"


def conditions(obj: Mapping[str, Any]) -> dict[str, Condition]:
    """Return an object's status conditions by type."""
    return {
        c["type"]: Condition(
            status=c["status"],
            reason=c.get("reason", ""),
            message=c.get("message", ""),
            generation=c.get("observedGeneration"),
        )
        for c in (obj.get("status") or {}).get("conditions") or ()
    }


def pod_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is Ready and not being deleted."""
    ready = conditions(pod).get("Ready")
    return ready is not None and ready.true and "deletionTimestamp" not in pod["metadata"]
