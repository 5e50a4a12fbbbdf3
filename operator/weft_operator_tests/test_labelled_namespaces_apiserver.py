"""Labelled namespaces on a real API server: the operator has the chart's rights there, and in no other namespace."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from weft_e2e.cluster.bare import User, bare_cluster
from weft_e2e.cluster.toolchain import tool_path
from weft_operator.api.objects import Manifest
from weft_operator.kube.managed_namespaces import role_binding
from weft_operator_tests.api import CRDS, small_service
from weft_operator_tests.chart_roles import CHART
from weft_operator_tests.cluster import Kube, condition, wait_for
from weft_operator_tests.replicas import Replica

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600, func_only=True)]

SYSTEM, ROLE, ACCOUNT = "weft-system", "weft-system-weft-operator-namespace", "weft-system/weft-operator"
OPERATOR = User("token-operator", "system:serviceaccount:weft-system:weft-operator")
RULES = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


@dataclass
class Cluster:
    """An administrator's kubectl, the operator's own, and the operator."""

    admin: Kube
    own: Kube
    replica: Replica

    def refused(self, *words: str, stdin: Manifest | None = None) -> str:
        """Return why the operator may not do something."""
        done = self.own.attempt(*words, stdin=None if stdin is None else yaml.safe_dump(stdin))
        assert done.returncode != 0, done.stdout
        return done.stderr

    def ready(self, namespace: str) -> bool:
        found = self.admin.get(namespace, "disagginferenceservices", "demo")
        return condition(found, "Ready").get("status") == "True"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Run an API server with what the chart makes of rights in this form, and an operator that has these alone."""
    words = ["template", "weft", str(CHART), "--namespace", SYSTEM, "--set", "operator.labelledNamespaces=true"]
    words += ["--set", "image.registry=registry.example.com"]
    done = subprocess.run([str(tool_path("helm")), *words], capture_output=True, text=True, timeout=120, check=True)
    chart = [item for item in yaml.safe_load_all(done.stdout) if item and item["kind"] in (*RULES, *POLICIES)]
    with bare_cluster(tmp_path, users={"operator": OPERATOR}, nodes=2) as bare:
        admin = Kube(bare.kubeconfig())
        admin.run("apply", "--server-side", "-f", str(CRDS))
        admin.await_definitions(CRDS)
        for name in (SYSTEM, "team-a", "team-b"):
            admin.run("create", "namespace", name)
        admin.apply({"apiVersion": "v1", "kind": "List", "items": chart})
        config = bare.kubeconfig(OPERATOR.token)
        env = {"WEFT_NAMESPACE_ROLE": ROLE, "WEFT_SERVICE_ACCOUNT": ACCOUNT, "WEFT_OPERATOR_LEASE_SECONDS": "5"}
        replica = Replica("a", config, "", tmp_path, lease=f"{SYSTEM}/weft-operator", env=env)
        try:
            yield Cluster(admin, Kube(config), replica)
        finally:
            replica.kill()


def test_the_operator_works_where_the_label_is_and_can_do_nothing_elsewhere(cluster: Cluster) -> None:
    cluster.replica.start()
    assert "waits for a namespace" in cluster.replica.ready()
    for namespace in ("team-a", "team-b"):
        cluster.admin.apply(small_service(namespace))
    cluster.admin.run("label", "namespace", "team-a", "weft.dev/managed=true")
    wait_for("the service of team-a", lambda: cluster.ready("team-a"), timeout=240)
    found = cluster.admin.get("team-b", "disagginferenceservices", "demo")
    assert found is not None
    assert "status" not in found

    # What the operator's own rights come to, in the hands of somebody who took its token.
    for words in (["get", "secrets"], ["get", "pods"], ["create", "configmap", "x"], ["get", "rolebindings"]):
        assert "is forbidden" in cluster.refused("-n", "team-b", *words)
    assert "label weft.dev/managed=true only" in cluster.refused(
        "create", "-f", "-", stdin=role_binding(ROLE, ACCOUNT, "team-b")
    )
    assert "is forbidden" in cluster.refused("label", "namespace", "team-b", "weft.dev/managed=true")
    stolen = role_binding(ROLE, "team-b/default", "team-a")
    stolen["metadata"]["name"] = "stolen"
    assert "to itself only" in cluster.refused("create", "-f", "-", stdin=stolen)
    admin = role_binding(ROLE, ACCOUNT, "team-a")
    admin["metadata"]["name"], admin["roleRef"]["name"] = "more", "cluster-admin"
    assert "more" not in cluster.admin.run("-n", "team-a", "get", "rolebindings", "-o", "name")
    assert cluster.refused("create", "-f", "-", stdin=admin)

    cluster.admin.run("label", "namespace", "team-b", "weft.dev/managed=true")
    wait_for("the service of team-b", lambda: cluster.ready("team-b"), timeout=240)

    # A binding that somebody widened is made anew; one whose namespace lost the label goes.
    cluster.admin.run("label", "namespace", "team-a", "weft.dev/managed-")
    wait_for(
        "the end of the rights in team-a",
        lambda: cluster.admin.get("team-a", "rolebinding", ROLE) is None,
        timeout=90,
    )
    assert "is forbidden" in cluster.refused("-n", "team-a", "get", "secret", "demo-token")
    assert cluster.admin.get("team-a", "deployment", "demo") is not None, "the service runs on"
    assert cluster.replica.stop() == 0
