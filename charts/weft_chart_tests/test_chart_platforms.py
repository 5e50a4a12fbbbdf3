"""Pods of the chart on clusters as they are: users that OpenShift assigns, tainted nodes, registries with a Secret."""

import pytest

from weft_chart_tests.rendering import CHART, NAMESPACE, REGISTRY, Helm, Manifest, Render, arguments
from weft_chart_tests.test_chart_values import environment, operator_container
from weft_chart_tests.test_chart_variants import every_variant
from weft_e2e.checks.openshift import check_restricted_v2

OPENSHIFT = "platform.openshift=true"
TAINT: Manifest = {"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}
SCHEDULING = (
    "scheduling.nodeSelector.zone=a",
    'scheduling.tolerations:=[{"key":"dedicated","operator":"Exists","effect":"NoSchedule"}]',
    "scheduling.priorityClassName=infra.high",
)
SERVERS = {"weft-operator": "operator", "weft-redis": "redis.embedded", "weft-prometheus": "prometheus.embedded"}


@every_variant
def test_openshift_admits_every_pod_with_a_user_of_its_own(render: Render, values: tuple[str, ...]) -> None:
    for name, pod in render(OPENSHIFT, *values).pod_specs().items():
        check_restricted_v2(name, pod)


def test_elsewhere_only_the_images_of_others_get_a_user(render: Render) -> None:
    users = {name: pod["securityContext"].get("runAsUser") for name, pod in render().pod_specs().items()}
    assert users == {"weft-operator": None, "weft-test": None, "weft-redis": 65532, "weft-prometheus": 65532}
    groups = {name: pod["securityContext"].get("fsGroup") for name, pod in render().pod_specs().items()}
    assert groups == users, "a volume belongs to whoever writes to it"


def test_auto_asks_the_cluster_for_its_security_api(helm: Helm, render: Render) -> None:
    words = ["template", "weft", str(CHART), "--namespace", NAMESPACE, *arguments([REGISTRY])]
    asked = helm(*words, "--api-versions", "security.openshift.io/v1")
    assert asked.returncode == 0, asked.stderr
    assert "runAsUser" not in asked.stdout
    assert asked.stdout == render(OPENSHIFT).text
    denied = helm(*words, "--set", "platform.openshift=false", "--api-versions", "security.openshift.io/v1")
    assert denied.stdout == render().text


def test_the_operator_is_told_the_platform_for_the_pods_of_services(render: Render) -> None:
    assert environment(operator_container(render))["WEFT_OPENSHIFT"] == "false"
    assert environment(operator_container(render, OPENSHIFT))["WEFT_OPENSHIFT"] == "true"


@pytest.mark.parametrize(("name", "component"), SERVERS.items())
@pytest.mark.parametrize("platform", [(), (OPENSHIFT,)], ids=["plain", "openshift"])
def test_a_user_that_the_values_name_is_set(
    render: Render, name: str, component: str, platform: tuple[str, ...]
) -> None:
    asked = (f"{component}.securityContext.runAsUser=1000650000", f"{component}.securityContext.runAsGroup=0")
    context = render(*platform, *asked).get("Deployment", name)["spec"]["template"]["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (1000650000, 0)
    assert context["runAsNonRoot"] is True


def test_all_pods_take_the_common_nodes_tolerations_and_priority(render: Render) -> None:
    pods = render(*SCHEDULING).pod_specs()
    assert set(pods) == {*SERVERS, "weft-test"}
    for pod in pods.values():
        assert pod["nodeSelector"] == {"zone": "a"}
        assert TAINT in pod["tolerations"]
        assert pod["priorityClassName"] == "infra.high"


@pytest.mark.parametrize(("name", "component"), SERVERS.items())
def test_what_a_component_says_takes_the_place_of_the_common_values(render: Render, name: str, component: str) -> None:
    own = (
        f"{component}.nodeSelector.zone=b",
        f'{component}.tolerations:=[{{"key":"mine","operator":"Exists"}}]',
        f"{component}.priorityClassName=mine",
        f'{component}.affinity:={{"nodeAffinity":{{}}}}',
    )
    pods = render(*SCHEDULING, *own).pod_specs()
    assert pods[name]["nodeSelector"] == {"zone": "b"}
    assert {"key": "mine", "operator": "Exists"} in pods[name]["tolerations"]
    assert TAINT not in pods[name]["tolerations"]
    assert pods[name]["priorityClassName"] == "mine"
    assert pods[name]["affinity"] == {"nodeAffinity": {}}
    for other in set(pods) - {name}:
        assert pods[other]["nodeSelector"] == {"zone": "a"}


def test_names_of_secrets_may_hold_dots(render: Render) -> None:
    for pod in render('image.pullSecrets:=["my.registry.secret"]').pod_specs().values():
        assert pod["imagePullSecrets"] == [{"name": "my.registry.secret"}]
