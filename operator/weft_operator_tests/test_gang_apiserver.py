"""Objects of other projects on a real API server: what is said while a right or the kind is missing, and their life."""

from collections.abc import Iterator

import pytest

from weft_operator.api.objects import Manifest
from weft_operator_tests.api import USERS, RealApi, small_service
from weft_operator_tests.chart_roles import chart_roles
from weft_operator_tests.cluster import condition, wait_for

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400, func_only=True)]

POD_GROUPS = "apis/scheduling.volcano.sh/v1beta1/podgroups"
DOMAINS = "apis/resource.nvidia.com/v1beta1/computedomains"


UNAPPROVED = {"api-approved.kubernetes.io": "unapproved, for tests"}
"""The API server takes no definitions of Kubernetes' own groups without a word on who approved them."""


def definition(kind: str, group: str, version: str) -> Manifest:
    """Return a definition that takes any spec: what is in it is held to golden files."""
    plural = f"{kind.lower()}s"
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": UNAPPROVED},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": free}}],
        },
    }


DEFINITIONS = (
    definition("PodGroup", "scheduling.volcano.sh", "v1beta1"),
    definition("ComputeDomain", "resource.nvidia.com", "v1beta1"),
)


@pytest.fixture(autouse=True)
def ended(api: RealApi) -> Iterator[None]:
    """End the operators of each test, and take their kinds and rights away again."""
    yield
    api.heal()
    for item in DEFINITIONS:
        api.kube.run("delete", "crd", item["metadata"]["name"], "--ignore-not-found")
    api.kube.apply(api.roles.everywhere(user.name for user in USERS.values()))


def test_pod_groups_and_compute_domains_are_made_once_they_can_be_and_go_when_they_are_not_wanted(api: RealApi) -> None:
    namespace = api.namespace()
    api.replica("a", namespace).start()
    body = small_service(namespace, scheduling={"gang": {"scheduler": "volcano"}})
    body["spec"]["capacity"]["pools"][0] |= {"gpusPerNode": 4, "degrees": [8], "computeDomain": True}
    api.kube.apply(body)
    path = f"apis/weft.dev/v1alpha1/namespaces/{namespace}/disagginferenceservices/demo"

    def told(reason: str) -> str:
        """Have the groups looked at, and return the words of this reason, "" where it is another."""
        api.kube.run("-n", namespace, "annotate", "wg,dis", "--all", f"looked={reason}", "--overwrite")
        found = condition(api.read(path), "Progressing")
        return str(found["message"]) if found.get("reason") == reason else ""

    assert "operator.gangSchedulers={volcano}" in wait_for("the missing right", lambda: told("RightMissing"))
    roles = chart_roles("operator.gangSchedulers={volcano}", "operator.computeDomains=true")
    api.kube.apply(roles.everywhere(user.name for user in USERS.values()))
    assert "install Volcano, or change spec.scheduling.gang" in wait_for(
        "the missing kind", lambda: told("KindMissing")
    )
    for item in DEFINITIONS:
        api.kube.apply(item)

    def made(kind: str) -> set[str]:
        return {item["metadata"]["name"] for item in api.items(kind, namespace)}

    workers = {"demo-w8-0", "demo-w8-1"}
    wait_for("a group of each", lambda: bool(told("RollingOut")) and made(POD_GROUPS) == workers)
    sizes = [item["spec"] for item in api.items(POD_GROUPS, namespace)]
    assert sizes == [{"minMember": 2}] * 2
    assert made(DOMAINS) == {f"{name}-2" for name in workers}
    body["spec"] |= {"scheduling": {}}
    api.kube.apply(body)
    wait_for("no PodGroup", lambda: not made(POD_GROUPS), timeout=90)
