"""Pods of the chart on clusters as they are: users that OpenShift assigns, tainted nodes, registries with a Secret."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from weft_chart_tests.rendering import CHART, NAMESPACE, REGISTRY, Helm, Manifest, Render, arguments, steady
from weft_chart_tests.test_chart_values import environment, operator_container
from weft_chart_tests.test_chart_variants import every_variant
from weft_e2e.checks.openshift import check_restricted_v2
from weft_operator.api.prometheus import QUERIED_LABELS
from weft_operator.kube.leader_election.namespace_claims import claim_name
from weft_operator.settings import settings_from_env

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
    words = ["template", "weft", str(CHART), "--namespace", NAMESPACE, *arguments([REGISTRY, "crds.install=false"])]
    asked = helm(*words, "--api-versions", "security.openshift.io/v1")
    assert asked.returncode == 0, asked.stderr
    assert "runAsUser" not in asked.stdout
    assert steady(asked.stdout) == render(OPENSHIFT, "crds.install=false").text
    denied = helm(*words, "--set", "platform.openshift=false", "--api-versions", "security.openshift.io/v1")
    assert steady(denied.stdout) == render("crds.install=false").text


@pytest.mark.parametrize("name", ["weft-operator", "weft-prometheus"])
def test_openshifts_dns_pods_are_reached_at_their_own_port(render: Render, name: str) -> None:
    def dns(*values: str) -> list[int]:
        rule = render(*values).get("NetworkPolicy", name)["spec"]["egress"][0]
        return sorted({port["port"] for port in rule["ports"]})

    assert dns() == [53]
    assert dns(OPENSHIFT) == [53, 5353]


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


THANOS = (
    "prometheus.embedded.enabled=false",
    "prometheus.url=https://thanos-querier.openshift-monitoring.svc:9091",
    "prometheus.serviceAccountToken.enabled=true",
    "prometheus.ca.configMap=service.ca",
    "prometheus.ca.key=service-ca.crt",
)
MIMIR = (
    "prometheus.embedded.enabled=false",
    "prometheus.url=https://mimir.example.com/prometheus",
    "prometheus.headers.X-Scope-OrgID=team-a",
    "prometheus.headersSecretRef.name=mimir-headers",
    "prometheus.matchers.cluster=production",
    "prometheus.tokenSecretRef.name=mimir",
)


def mounted(render: Render, *values: str) -> tuple[dict[str, str | None], dict[str, Manifest], dict[str, str]]:
    """Return the environment, volumes and mounts of the operator's container."""
    pod = render(*values).get("Deployment", "weft-operator")["spec"]["template"]["spec"]
    volumes = {item["name"]: item for item in pod["volumes"]}
    return (
        environment(pod["containers"][0]),
        volumes,
        {item["name"]: item["mountPath"] for item in pod["containers"][0]["volumeMounts"]},
    )


def test_the_operator_asks_openshifts_querier_with_its_own_token(render: Render) -> None:
    told, volumes, folders = mounted(render, *THANOS)
    assert told["WEFT_PROMETHEUS_TOKEN_FILE"] == f"{folders['prometheus']}/token"
    assert told["WEFT_PROMETHEUS_CA_FILE"] == f"{folders['prometheus']}/ca.crt"
    token, ca = volumes["prometheus"]["projected"]["sources"]
    assert token == {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    assert ca["configMap"] == {"name": "service.ca", "items": [{"key": "service-ca.crt", "path": "ca.crt"}]}
    egress = render(*THANOS).get("NetworkPolicy", "weft-operator")["spec"]["egress"]
    assert [{"port": 9091, "protocol": "TCP"}] in [rule["ports"] for rule in egress]
    audience = mounted(render, *THANOS, "prometheus.serviceAccountToken.audience=thanos")[1]
    assert audience["prometheus"]["projected"]["sources"][0]["serviceAccountToken"]["audience"] == "thanos"
    for name, pod in render(OPENSHIFT, *THANOS).pod_specs().items():
        check_restricted_v2(name, pod)


def test_the_operator_asks_mimir_as_its_tenant(render: Render) -> None:
    told, volumes, folders = mounted(render, *MIMIR)
    assert json.loads(told["WEFT_PROMETHEUS_HEADERS"] or "") == {"X-Scope-OrgID": "team-a"}
    assert json.loads(told["WEFT_PROMETHEUS_MATCHERS"] or "") == {"cluster": "production"}
    assert told["WEFT_PROMETHEUS_HEADERS_FOLDER"] == folders["prometheus-headers"]
    assert volumes["prometheus-headers"]["secret"]["secretName"] == "mimir-headers"
    (token,) = volumes["prometheus"]["projected"]["sources"]
    assert token["secret"] == {"name": "mimir", "items": [{"key": "token", "path": "token"}]}
    assert told["WEFT_PROMETHEUS_TOKEN_FILE"] == f"{folders['prometheus']}/token"
    assert "WEFT_PROMETHEUS_CA_FILE" not in told


def test_the_operator_understands_what_the_chart_tells_it(render: Render, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("wo@rd\n")
    for values in (THANOS, MIMIR, (OPENSHIFT,), ()):
        told = {name: value for name, value in mounted(render, *values)[0].items() if value is not None}
        assert told["WEFT_REDIS_PASSWORD_FILE"] == "/etc/weft-redis/password"
        found = settings_from_env({**told, "WEFT_REDIS_PASSWORD_FILE": str(tmp_path / "password")})
        assert found.redis_url == "redis://operator:wo%40rd@weft-redis.weft-system:6379/0"
        assert found.redis_users == "auto"
        (peer,) = found.redis_peers
        labels = render(*values).get("Deployment", "weft-redis")["spec"]["template"]["metadata"]["labels"]
        assert peer["podSelector"]["matchLabels"].items() <= labels.items()
        assert peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
        assert found.openshift is (OPENSHIFT in values)
        assert dict(found.prometheus_access.matchers) == ({"cluster": "production"} if values is MIMIR else {})


def test_without_any_of_it_nothing_is_mounted(render: Render) -> None:
    told, volumes, _ = mounted(render)
    assert set(volumes) == {"tmp", "redis"}
    assert not [name for name in told if name.startswith("WEFT_PROMETHEUS_") and name != "WEFT_PROMETHEUS_URL"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (("prometheus.headers.X-Scope-OrgID=a",), "are for a Prometheus of your own"),
        (("prometheus.serviceAccountToken.enabled=true",), "are for a Prometheus of your own"),
        ((*THANOS, "prometheus.tokenSecretRef.name=mimir"), "are both set: remove one"),
        ((*THANOS, "prometheus.url=http://thanos:9091"), "would be sent in plain text"),
        ((*MIMIR, "prometheus.matchers.eu-west=a"), "invalid propertyName 'eu-west'"),
        ((*MIMIR, "prometheus.matchers.phase=first"), "invalid propertyName 'phase'"),
        ((*MIMIR, "prometheus.headers.X_Scope=a"), "invalid propertyName 'X_Scope'"),
        ((*THANOS, "prometheus.serviceAccountToken.expirationSeconds=60"), "expirationSeconds'"),
    ],
)
def test_access_that_cannot_work_is_refused(refusal: Callable[..., str], values: tuple[str, ...], words: str) -> None:
    assert words in refusal(REGISTRY, *values)


def test_the_schema_knows_the_labels_that_queries_use() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    names = schema["properties"]["prometheus"]["properties"]["matchers"]["propertyNames"]
    assert names["not"]["enum"] == list(QUERIED_LABELS)


def test_an_instance_of_the_operator_has_its_own_services_and_claims(render: Render) -> None:
    def claims(*values: str) -> list[list[str]]:
        rules = render(*values).get("ClusterRole", "weft-system-weft-operator")["rules"]
        return [rule["resourceNames"] for rule in rules if rule["resources"] == ["leases"] and "resourceNames" in rule]

    assert "WEFT_OPERATOR_INSTANCE" not in environment(operator_container(render))
    assert claims() == [[claim_name("")]]
    canary = "operator.instance=canary"
    assert environment(operator_container(render, canary))["WEFT_OPERATOR_INSTANCE"] == "canary"
    number = 'operator.instance:="42"'
    assert environment(operator_container(render, number))["WEFT_OPERATOR_INSTANCE"] == "42", "text, as env needs"
    assert claims(canary) == [[claim_name("canary")]]
    assert environment(operator_container(render, 'operator.instance:="2"'))["WEFT_OPERATOR_INSTANCE"] == "2"
