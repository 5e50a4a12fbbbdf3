"""A Kubernetes without kubelets: etcd, API server, controllers and KWOK as plain processes on loopback.

For questions that only the API server and its controllers answer: what a program writes, what the garbage collector
leaves, who holds a Lease. It needs neither root nor namespaces, has ports of its own, and is there in seconds.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from weft_e2e.cluster import certs, kubectl
from weft_e2e.cluster.config import ClusterConfig
from weft_e2e.cluster.errors import SetupError
from weft_e2e.cluster.fake_nodes import ANNOTATION, KWOK, fake_node
from weft_e2e.cluster.toolchain import build_all, manifests_of, tool_path
from weft_e2e.local.ports import free_ports

READY_S = 60.0
AUDIT_LOG = "audit.log"
ADMIN = "weft-admin-token"
CONTROLLERS = (
    "deployment-controller,replicaset-controller,statefulset-controller,garbage-collector-controller,"
    "namespace-controller,disruption-controller,endpointslice-controller,serviceaccount-controller,"
    "horizontal-pod-autoscaler-controller"
)


@dataclass(frozen=True)
class User:
    """Somebody whom the API server knows by a token."""

    token: str
    name: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bare:
    """A running API server and whom it knows."""

    folder: Path
    port: int

    @property
    def url(self) -> str:
        """Return the API server's own address."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def authority(self) -> Path:
        """Return the certificate by which the API server is known."""
        return self.folder / "pki" / "ca.crt"

    @property
    def audit_log(self) -> Path:
        """Return the file with an audit event on each line, for a cluster that was asked to write one."""
        return self.folder / AUDIT_LOG

    def kubeconfig(self, token: str = ADMIN, *, server: str = "") -> Path:
        """Write and return a kubeconfig for a token, straight to the API server or to a proxy at ``server``."""
        cluster: dict[str, str] = {"server": server or self.url}
        if not server:
            cluster["certificate-authority"] = str(self.authority)
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bare", "cluster": cluster}],
            "users": [{"name": "bare", "user": {"token": token}}],
            "contexts": [{"name": "bare", "context": {"cluster": "bare", "user": "bare"}}],
            "current-context": "bare",
        }
        name = f"{token}-{(server or 'direct').rpartition(':')[2]}.kubeconfig"
        path = self.folder / name
        kubectl.write_kubeconfig(path, yaml.safe_dump(body))
        return path


@contextmanager
def bare_cluster(
    folder: Path,
    *,
    users: Mapping[str, User] | None = None,
    nodes: int = 0,
    gpus: int = 8,
    audit: bool = False,
    feature_gates: str = "",
) -> Iterator[Bare]:
    """Run it in a folder until the end of the block, with some fake nodes of so many GPUs and somebody's tokens.

    With ``audit`` every request of those users is written down, without its body. ``feature_gates`` are those of the
    API server, as its flag has them.

    Raises:
        SetupError: a program is not built, or the API server does not come up.
    """
    etcd, peer, port = free_ports(3)
    bare = Bare(folder, port)
    pki = folder / "pki"
    certs.write_all(pki, ())
    known = [User(ADMIN, "weft-admin", ("system:masters",)), *(users or {}).values()]
    tokens = "".join(f'{user.token},{user.name},{user.name},"{",".join(user.groups)}"\n' for user in known)
    (folder / "tokens.csv").write_text(tokens)
    audited = _audit(folder, [user.name for user in (users or {}).values()]) if audit else []
    gates = [f"--feature-gates={feature_gates}"] if feature_gates else []
    running: list[subprocess.Popen[bytes]] = []
    try:
        running.append(_start(folder, "etcd", _etcd(folder, etcd, peer)))
        running.append(_start(folder, "kube-apiserver", _api_server(folder, etcd, port) + audited + gates))
        _await_ready(bare, running)
        admin = bare.kubeconfig()
        kubernetes = str(tool_path("kubernetes"))
        running.append(_start(folder, "kube-controller-manager", _controllers(kubernetes, admin, pki)))
        if nodes:
            kubectl.apply(admin, [_node(number, gpus) for number in range(1, nodes + 1)])
            running.append(_start(folder, "kube-scheduler", _scheduler(kubernetes, admin)))
            build_all(lambda _line: None, only=frozenset({KWOK}))
            running.append(_start(folder, KWOK, _kwok(admin)))
        yield bare
    finally:
        for process in reversed(running):
            process.kill()
        for process in running:
            process.wait(10)


def _etcd(folder: Path, client: int, peer: int) -> list[str]:
    return [
        str(tool_path("kubernetes")),
        "etcd",
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{client}",
        f"--advertise-client-urls=http://127.0.0.1:{client}",
        f"--listen-peer-urls=http://127.0.0.1:{peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _api_server(folder: Path, etcd: int, port: int) -> list[str]:
    pki = folder / "pki"
    return [
        str(tool_path("kubernetes")),
        "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        # Without the controller of nodes, nobody would take the taint of a new node away again.
        "--disable-admission-plugins=TaintNodesByCondition",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=RBAC",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'service-account.pub'}",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        "--profiling=false",
    ]


def _audit(folder: Path, users: list[str]) -> list[str]:
    policy = folder / "audit.yaml"
    rules = [{"level": "Metadata", "users": users}, {"level": "None"}]
    body = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
    policy.write_text(yaml.safe_dump(body))
    # Blocking, the default: an event is in the file before its request is answered.
    return [f"--audit-policy-file={policy}", f"--audit-log-path={folder / AUDIT_LOG}"]


def _controllers(kubernetes: str, admin: Path, pki: Path) -> list[str]:
    return [
        kubernetes,
        "kube-controller-manager",
        f"--kubeconfig={admin}",
        f"--controllers={CONTROLLERS}",
        "--leader-elect=false",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--horizontal-pod-autoscaler-sync-period=1s",
        f"--service-account-private-key-file={pki / 'service-account.key'}",
        "--secure-port=0",
        "--profiling=false",
    ]


def _scheduler(kubernetes: str, admin: Path) -> list[str]:
    quota = ("--kube-api-qps=200", "--kube-api-burst=400")
    return [kubernetes, "kube-scheduler", f"--kubeconfig={admin}", "--leader-elect=false", *quota, "--secure-port=0"]


def _kwok(admin: Path) -> list[str]:
    key, value = next(iter(ANNOTATION.items()))
    return [
        str(tool_path(KWOK)),
        f"--kubeconfig={admin}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={key}={value}",
        "--node-lease-duration-seconds=40",
        *(f"--config={file}" for file in manifests_of(KWOK)),
    ]


def _node(number: int, gpus: int) -> dict[str, object]:
    # Here all nodes are fake, so nothing has to be kept away from them.
    return {**fake_node(f"fake-{number}", ClusterConfig(gpus=gpus)), "spec": {}}


def _start(folder: Path, name: str, argv: list[str]) -> "subprocess.Popen[bytes]":
    with (folder / f"{name}.log").open("ab") as log:
        # A test that is killed takes them along.
        return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *argv], stdout=log, stderr=log, cwd=folder)


def _await_ready(bare: Bare, running: "list[subprocess.Popen[bytes]]") -> None:
    gate = [sys.executable, "-I", "-S", str(Path(__file__).with_name("api_probe.py")), f"{bare.url}/readyz"]
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        for process in running:
            if process.poll() is not None:
                tail = (bare.folder / "kube-apiserver.log").read_text()[-2000:]
                raise SetupError(f"the bare control plane ended: {tail}")
        if subprocess.run([*gate, str(bare.folder / "pki"), "admin"], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.2)
    raise SetupError(f"the API server was not ready within {READY_S:.0f} s: see {bare.folder / 'kube-apiserver.log'}")
