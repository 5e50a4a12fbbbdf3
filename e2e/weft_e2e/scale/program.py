"""The operator as a process of this machine, with no more rights than the chart gives it."""

import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import yaml

from weft_e2e.cluster import kubectl
from weft_e2e.cluster.bare import Bare, User
from weft_e2e.cluster.errors import SetupError
from weft_e2e.images.catalogue import repository_root
from weft_e2e.local.ports import free_ports
from weft_e2e.waiting import until

OPERATOR = User("weft-scale-token", "weft-scale-operator")
TICKS = os.sysconf("SC_CLK_TCK")


def give_rights(bare: Bare) -> None:
    """Install the CRDs, and let the operator's user do what the chart's ClusterRole says and no more."""
    admin, root = bare.kubeconfig(), repository_root()
    for path in sorted((root / "crds").glob("*.yaml")):
        kubectl.apply(admin, list(yaml.safe_load_all(path.read_text())))
    registry = ["--set", "image.registry=registry.example.com/team"]
    shown = kubectl.run(kubectl.helm_argv("template", "weft", str(root / "charts/weft"), *registry), admin, timeout=60)
    roles = [item for item in yaml.safe_load_all(shown.stdout) if item and item["kind"] == "ClusterRole"]
    (role,) = (item for item in roles if item["metadata"]["name"].endswith("-operator"))
    api = "rbac.authorization.k8s.io"
    binding: dict[str, object] = {
        "apiVersion": f"{api}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "weft-scale"},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role["metadata"]["name"]},
        "subjects": [{"apiGroup": api, "kind": "User", "name": OPERATOR.name}],
    }
    kubectl.apply(admin, [role, binding])


@dataclass(frozen=True, slots=True)
class Operator:
    """A running operator."""

    process: "subprocess.Popen[bytes]"
    port: int

    def counts(self, metric: str) -> dict[str, float]:
        """Return a metric's series as its page writes them."""
        status, text = _page(self.port, "/metrics")
        if status != HTTPStatus.OK:
            raise SetupError(f"the operator's metrics: status {status}")
        rows = (line.rpartition(" ") for line in text.splitlines() if line.startswith(metric))
        return {name: float(value) for name, _, value in rows}

    def total(self, metric: str) -> float:
        """Return the sum over a metric's series."""
        return sum(self.counts(metric).values())

    def resident_mib(self) -> float:
        """Return its memory in MiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024

    def cpu_s(self) -> float:
        """Return the processor time it has used, planners that have ended included."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(fields[n]) for n in (11, 12, 13, 14)) / TICKS


@contextmanager
def running(bare: Bare, *, user: User = OPERATOR, prometheus: str = "") -> Iterator[Operator]:
    """Run the operator until the end of the block; its log is in the cluster's folder."""
    (port,) = free_ports(1)
    env = {
        **os.environ,
        "KUBECONFIG": str(bare.kubeconfig(user.token)),
        "WEFT_PROMETHEUS_URL": prometheus,
        "WEFT_ROUTER_IMAGE": "localhost/weft-router:none",
        "WEFT_MOCK_IMAGE": "localhost/weft-mock-engine:none",
        "WEFT_REDIS_URL": "redis://127.0.0.1:1/0",  # nobody: no pod runs that would write there
        "WEFT_OPERATOR_PORT": str(port),
    }
    # Who is killed in the middle takes it along.
    argv = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "weft_operator"]
    with (bare.folder / "operator.log").open("ab") as log:
        process = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
    try:
        until(lambda: _is_ready(process, port), what="a ready operator", timeout_s=120)
        yield Operator(process, port)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _is_ready(process: "subprocess.Popen[bytes]", port: int) -> bool:
    if process.poll() is not None:
        raise SetupError(f"the operator ended by itself with status {process.returncode}: see its log")
    try:
        return _page(port, "/readyz")[0] == HTTPStatus.OK
    except OSError:
        return False


def _page(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
