"""A gateway's watch on a real API server, under exactly the chart's rights: services come and go."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from weft_e2e.cluster.bare import Bare, User, bare_cluster
from weft_e2e.cluster.toolchain import tool_path
from weft_e2e.local.ports import free_ports
from weft_operator_tests.api import CRDS, small_service
from weft_operator_tests.chart_roles import CHART
from weft_operator_tests.cluster import Kube, wait_for
from weft_router.config.gateway import ApiAccess
from weft_router.gateway.service_watch import ServiceWatch
from weft_router_tests.gateway_kit import watching
from weft_router_tests.stack import is_so, until

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600, func_only=True)]

SYSTEM = "weft-system"
GATEWAY = User("token-gateway", "system:serviceaccount:weft-system:weft-gateway")
RULES = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


@dataclass
class Cluster:
    """An API server, an administrator's kubectl, and the gateway's own."""

    bare: Bare
    admin: Kube
    own: Kube
    token: Path

    @property
    def access(self) -> ApiAccess:
        """Return how the gateway reaches the server."""
        return ApiAccess(self.bare.url, self.token, self.bare.authority)

    def grant(self, *values: str) -> None:
        """Give the gateway the chart's rights in place of those that it had."""
        self.admin.attempt("delete", "clusterrole,clusterrolebinding", "-l", "app.kubernetes.io/component=gateway")
        words = ["template", "weft", str(CHART), "--namespace", SYSTEM, "--set", "image.registry=registry.example.com"]
        for value in ("gateway.enabled=true", *values):
            words += ["--set", value]
        done = subprocess.run([str(tool_path("helm")), *words], capture_output=True, text=True, timeout=120, check=True)
        found = [item for item in yaml.safe_load_all(done.stdout) if item and item["kind"] in RULES]
        self.admin.apply(
            {
                "apiVersion": "v1",
                "kind": "List",
                "items": [one for one in found if "gateway" in one["metadata"]["name"]],
            }
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Run an API server that knows services and the gateway's ServiceAccount."""
    token = tmp_path / "token"
    token.write_text(GATEWAY.token)
    with bare_cluster(tmp_path, users={"gateway": GATEWAY}) as bare:
        admin = Kube(bare.kubeconfig())
        admin.run("apply", "--server-side", "-f", str(CRDS))
        admin.await_definitions(CRDS)
        for name in (SYSTEM, "team-a", "team-b"):
            admin.run("create", "namespace", name)
        yield Cluster(bare, admin, Kube(bare.kubeconfig(GATEWAY.token)), token)


async def becomes(what: Callable[[], object], wanted: object) -> None:
    """Wait until something is so."""
    await until(lambda: is_so(what() == wanted), 60.0)


def names(watch: ServiceWatch) -> dict[str, tuple[str, ...]]:
    return {one.key: one.names for one in watch.services()}


async def test_services_are_followed_under_the_charts_rights(cluster: Cluster) -> None:
    cluster.grant()
    admin = cluster.admin
    model = {**small_service("team-a")["spec"]["model"], "servedName": "llama", "aliases": ["gpt-4"]}
    await asyncio.to_thread(admin.apply, small_service("team-a", "one", model=model))
    async with watching(cluster.access) as watch:
        await becomes(lambda: names(watch), {"team-a/one": ("llama", "gpt-4")})
        (one,) = watch.services()
        assert (one.url, one.created != "") == ("http://one.team-a.svc", True)
        await asyncio.to_thread(admin.apply, small_service("team-b", "two", model={**model, "servedName": "qwen"}))
        await becomes(lambda: sorted(names(watch)), ["team-a/one", "team-b/two"])
        await asyncio.to_thread(admin.run, "-n", "team-a", "delete", "disagginferenceservices", "one")
        await becomes(lambda: names(watch), {"team-b/two": ("qwen", "gpt-4")})
    for words in (("get", "secrets", "-A"), ("get", "pods", "-A"), ("-n", "team-b", "delete", "dis", "two")):
        assert cluster.own.attempt(*words).returncode != 0, "it reads services, and nothing else"


async def test_in_some_namespaces_it_has_no_rights_elsewhere(cluster: Cluster) -> None:
    cluster.grant("gateway.namespaces={team-a}")
    for namespace in ("team-a", "team-b"):
        await asyncio.to_thread(cluster.admin.apply, small_service(namespace))
    async with watching(cluster.access, namespaces=["team-a"]) as watch:
        await becomes(lambda: sorted(names(watch)), ["team-a/demo"])
        await asyncio.to_thread(
            cluster.admin.run, "-n", "team-a", "label", "disagginferenceservices", "demo", "team=search"
        )
    async with watching(cluster.access, namespaces=["team-a"], selector="team=search") as watch:
        await becomes(lambda: sorted(names(watch)), ["team-a/demo"])
    async with watching(cluster.access, namespaces=["team-a"], selector="team=other") as watch:
        await becomes(lambda: watch.listed, True)
        assert names(watch) == {}
    assert cluster.own.attempt("-n", "team-b", "get", "disagginferenceservices").returncode != 0
    assert cluster.own.attempt("get", "disagginferenceservices", "-A").returncode != 0


def test_a_gateway_in_a_pod_finds_the_api_server_by_itself(cluster: Cluster, tmp_path: Path) -> None:
    cluster.grant()
    cluster.admin.apply(small_service("team-a"))
    account = tmp_path / "account"
    account.mkdir()
    shutil.copy(cluster.token, account / "token")
    shutil.copy(cluster.bare.authority, account / "ca.crt")
    (tmp_path / "gateway.json").write_text("{}")
    (port,) = free_ports(1)
    env = {
        **os.environ, "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(cluster.bare.port),
        "WEFT_SERVICE_ACCOUNT_FOLDER": str(account),
    }  # fmt: skip
    command = [sys.executable, "-m", "weft_router", "--role", "gateway", "--config", str(tmp_path / "gateway.json")]
    process = subprocess.Popen([*command, "--listen", f"127.0.0.1:{port}", "--drain-seconds", "1"], env=env)

    def listed() -> list[str]:
        assert process.poll() is None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10) as answer:
                return [entry["id"] for entry in json.load(answer)["data"]]
        except urllib.error.URLError:
            return []

    try:
        name = small_service("team-a")["spec"]["model"]["name"]
        wait_for("the service's model", lambda: listed() == [name], timeout=120)
    finally:
        process.kill()
        process.wait()
