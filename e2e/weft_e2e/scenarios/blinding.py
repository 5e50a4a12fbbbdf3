"""Three ways in which a real Prometheus ceases to tell of a service, and back again."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal

from weft_e2e import kube
from weft_e2e.demo.settings import RELEASE, SYSTEM_NAMESPACE
from weft_e2e.kube import Kube, Object
from weft_e2e.service import ROUTER_PORT, Service, component_of
from weft_e2e.waiting import until

Fault = Literal["down", "stale", "nan"]

NAMES: dict[Fault, frozenset[str]] = {
    "down": frozenset({"PrometheusUnreachable"}),
    "stale": frozenset({"Stale", "NoSeries"}),
    "nan": frozenset({"NotANumber"}),
}
"""Reasons of the condition MetricsAvailable by which each is told; samples that are older than the window are none."""

_DEPLOYMENT = f"{RELEASE}-prometheus"
_PROGRAM = "/bin/prometheus"
_STRANGER = "stranger"


@contextmanager
def down(service: Service) -> Iterator[None]:
    """Let Prometheus not run; what it held is lost with its pod."""
    scale = ("scale", "deployment", _DEPLOYMENT, "-n", SYSTEM_NAMESPACE)
    service.kube.kubectl(*scale, "--replicas=0")
    try:
        until(lambda: not _prometheus_pods(service.kube), what="the end of Prometheus", timeout_s=60)
        yield
    finally:
        service.kube.kubectl(*scale, "--replicas=1")
        until(
            lambda: any(map(kube.pod_ready, _prometheus_pods(service.kube))), what="a ready Prometheus", timeout_s=120
        )


@contextmanager
def stale(service: Service) -> Iterator[None]:
    """Let Prometheus answer and reach no router any more: its packets to them are dropped in its own network.

    Only where the nodes run on this machine.
    """
    (pod,) = _prometheus_pods(service.kube)
    inside = ["nsenter", "-t", str(_process_of(pod)), "-n"]
    rule = ["OUTPUT", "-p", "tcp", "--dport", str(ROUTER_PORT), "-j", "DROP"]
    subprocess.run([*inside, "iptables", "-A", *rule], check=True, capture_output=True, timeout=20)
    try:
        yield
    finally:
        subprocess.run([*inside, "iptables", "-D", *rule], check=False, capture_output=True, timeout=20)


@contextmanager
def not_a_number(service: Service) -> Iterator[None]:
    """Let a stranger's pod with the service's labels tell Prometheus of rounds that are no numbers."""
    stranger = _stranger(service)
    service.kube.kubectl("apply", "-f", "-", input=json.dumps(stranger))
    try:
        yield
    finally:
        service.kube.kubectl("delete", "pod", _STRANGER, "-n", service.namespace, "--grace-period=0", "--force")


FAULTS: dict[Fault, Callable[[Service], AbstractContextManager[None]]] = {
    "down": down,
    "stale": stale,
    "nan": not_a_number,
}


def _prometheus_pods(client: Kube) -> list[Object]:
    return kube.items(client, "pods", namespace=SYSTEM_NAMESPACE, selector="app.kubernetes.io/component=prometheus")


def _process_of(pod: Object) -> int:
    """Return the process id, on this machine, of Prometheus in a pod.

    Raises:
        LookupError: there is none: the pod's node is not on this machine.
    """
    uid = pod["metadata"]["uid"]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            program = (folder / "cmdline").read_bytes().split(b"\0")[0].decode()
            if program == _PROGRAM and uid in (folder / "cgroup").read_text():
                return int(folder.name)
        except OSError:
            continue  # ended meanwhile
    raise LookupError(f"no process {_PROGRAM} of pod {pod['metadata']['name']} runs on this machine")


def _stranger(service: Service) -> Object:
    worker = next(pod for pod in service.pods() if component_of(pod) == "decode")
    engine = next(c for c in worker["spec"]["containers"] if c["name"] == "engine")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": _STRANGER,
            "namespace": service.namespace,
            "labels": {"app.kubernetes.io/name": "weft", "weft.dev/service": service.name},
        },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "page",
                    "image": engine["image"],
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python", "-c", _PAGE],
                    "ports": [{"containerPort": ROUTER_PORT}],
                }
            ],
        },
    }


_PAGE = f"""
from http.server import BaseHTTPRequestHandler, HTTPServer
class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(b'# TYPE weft_router_rounds counter\\nweft_router_rounds_total{{phase="first"}} NaN\\n')
HTTPServer(("", {ROUTER_PORT}), Page).serve_forever()
"""
