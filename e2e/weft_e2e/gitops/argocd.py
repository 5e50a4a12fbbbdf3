"""Argo CD as processes of this machine beside a bare API server: Redis, its repo server and its controller.

Its Applications take their content from a git repository on this machine's disk.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import yaml

from weft_e2e.cluster import kubectl
from weft_e2e.cluster.bare import Bare
from weft_e2e.cluster.toolchain import manifests_of, tool_path
from weft_e2e.images.catalogue import repository_root
from weft_e2e.kube import Object
from weft_e2e.local.ports import free_ports

NAMESPACE = "argocd"
HOST = "127.0.0.1"
RESYNC_S = 10
"""How often Argo CD compares without being woken."""
HEALTH = "charts/weft/files/gitops/argocd-cm.yaml"


@contextmanager
def argocd(bare: Bare, folder: Path) -> Iterator[None]:
    """Run Argo CD until the end of the block, with the chart's health checks; its logs are in ``folder``."""
    admin = bare.kubeconfig()
    _install(admin)
    home = folder / "argocd"
    for name in ("bin", "tls", "ssh", "gpg", "plugins", "tmp"):
        (home / name).mkdir(parents=True)
    (home / "bin" / "helm").symlink_to(tool_path("helm"))
    (home / "ssh" / "ssh_known_hosts").touch()
    redis, repo, repo_metrics, metrics = (str(port) for port in free_ports(4))
    env = {
        **os.environ,
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "KUBECONFIG": str(admin),
        "ARGOCD_FAKE_IN_CLUSTER": "true",
        "ARGOCD_GPG_ENABLED": "false",
        "ARGOCD_TLS_DATA_PATH": str(home / "tls"),
        "ARGOCD_SSH_DATA_PATH": str(home / "ssh"),
        "ARGOCD_GPG_DATA_PATH": str(home / "gpg"),
        "ARGOCD_PLUGINSOCKFILEPATH": str(home / "plugins"),
    }
    shared = ("--redis", f"{HOST}:{redis}", "--metrics-port")
    controller = (
        *("--kubeconfig", str(admin), "--namespace", NAMESPACE),
        *("--repo-server", f"{HOST}:{repo}", "--repo-server-plaintext"),
        *("--app-resync", str(RESYNC_S), "--app-resync-jitter", "0", "--self-heal-timeout-seconds", "2"),
    )
    served = ("--address", HOST, "--metrics-address", HOST, "--port", repo, "--disable-tls")
    with ExitStack() as ends:
        for name, argv in (
            ("redis-server", ("--port", redis, "--bind", HOST, "--save", "", "--dir", str(home))),
            ("argocd-repo-server", (*shared, repo_metrics, *served)),
            ("argocd-application-controller", (*shared, metrics, *controller)),
        ):
            program = "redis-server" if name == "redis-server" else str(tool_path("argocd"))
            ends.enter_context(_running([program, *argv], {**env, "ARGOCD_BINARY_NAME": name}, home / f"{name}.log"))
        yield


def application(
    name: str, *, repository: Path, path: str, namespace: str, helm: Mapping[str, str] | None = None
) -> Object:
    """Return an Application that is synced, pruned and healed by Argo CD itself."""
    source: Object = {"repoURL": f"file://{repository}", "targetRevision": "HEAD", "path": path}
    if helm is not None:
        source["helm"] = {
            "releaseName": name,
            "parameters": [{"name": key, "value": value} for key, value in helm.items()],
        }
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "project": "default",
            "source": source,
            "destination": {"server": "https://kubernetes.default.svc", "namespace": namespace},
            "syncPolicy": {
                "automated": {"prune": True, "selfHeal": True},
                "syncOptions": ["CreateNamespace=true", "ServerSideApply=true"],
            },
        },
    }


def state_of(item: Object) -> tuple[str, str]:
    """Return what an Application says of its sync and health."""
    status = item.get("status") or {}
    return status.get("sync", {}).get("status", ""), status.get("health", {}).get("status", "")


def synced_by(item: Object) -> int:
    """Return how many syncs an Application has been through."""
    return len((item.get("status") or {}).get("history") or ())


def _install(admin: Path) -> None:
    for path in manifests_of("argocd"):
        kubectl.apply(admin, list(yaml.safe_load_all(path.read_text())))
    known = ("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
    kubectl.run(kubectl.kubectl_argv(*known), admin, timeout=90)
    health = yaml.safe_load((repository_root() / HEALTH).read_text())["data"]
    part_of = {"app.kubernetes.io/part-of": "argocd"}
    maps: dict[str, dict[str, str]] = {
        "argocd-cm": {**health, "timeout.reconciliation": f"{RESYNC_S}s"},
        **{f"argocd-{name}-cm": {} for name in ("rbac", "gpg-keys", "ssh-known-hosts", "tls-certs")},
    }
    made: list[Object] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}]
    for name, data in maps.items():
        meta = {"name": name, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": name, **part_of}}
        made.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    meta = {"name": "argocd-secret", "namespace": NAMESPACE, "labels": part_of}
    made.append({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"server.secretkey": "unused"}})
    everything = {
        "clusterResourceWhitelist": [{"group": "*", "kind": "*"}],
        "destinations": [{"namespace": "*", "server": "*"}],
        "sourceRepos": ["*"],
    }
    project = {"name": "default", "namespace": NAMESPACE}
    made.append({"apiVersion": "argoproj.io/v1alpha1", "kind": "AppProject", "metadata": project, "spec": everything})
    kubectl.apply(admin, made)


@contextmanager
def _running(argv: list[str], env: Mapping[str, str], log: Path) -> Iterator[None]:
    with log.open("ab") as out:
        # Who is killed in the middle takes it along.
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *argv], env=env, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait(10)
