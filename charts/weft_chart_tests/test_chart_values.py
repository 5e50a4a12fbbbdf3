"""What values do, and which are refused with a message that names the value and the fix."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from weft_chart_tests.rendering import CHART, REGISTRY, Manifest, Render
from weft_chart_tests.test_chart_variants import EXTERNAL_PROMETHEUS, EXTERNAL_REDIS, FULL_NAMES, SECRET_REDIS
from weft_operator.api.pod_template_permissions import PERMISSIONS, Permission
from weft_operator.settings import settings_from_env


def operator_container(render: Render, *values: str, registry: bool = True) -> Manifest:
    deployment = render(*values, registry=registry).get("Deployment", "weft-operator")
    container: Manifest = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


def environment(container: Manifest) -> dict[str, str | None]:
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def test_images_come_from_the_registry_with_the_charts_version(render: Render) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    container = operator_container(render)
    assert container["image"] == f"registry.example.com/team/weft-operator:{version}"
    assert environment(container)["WEFT_ROUTER_IMAGE"] == f"registry.example.com/team/weft-router:{version}"
    assert environment(container)["WEFT_MOCK_IMAGE"] == f"registry.example.com/team/weft-mock-engine:{version}"


def test_chart_and_distribution_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == chart["version"] == project["version"]


def test_a_tag_replaces_the_version_and_a_full_name_replaces_both(render: Render) -> None:
    container = operator_container(render, "image.tag=v9", "router.image=other.example.com/r@sha256:" + "a" * 64)
    assert container["image"] == "registry.example.com/team/weft-operator:v9"
    assert environment(container)["WEFT_ROUTER_IMAGE"] == "other.example.com/r@sha256:" + "a" * 64


def test_the_operator_s_image_with_the_tables_has_a_tag_of_its_own(render: Render) -> None:
    container = operator_container(render, "image.tag=v9", "operator.silicon=true")
    assert container["image"] == environment(container)["WEFT_OPERATOR_IMAGE"]
    assert container["image"] == "registry.example.com/team/weft-operator:v9-silicon"
    assert environment(container)["WEFT_ROUTER_IMAGE"] == "registry.example.com/team/weft-router:v9"
    named = operator_container(render, "operator.image=localhost/o:1", "operator.silicon=true")
    assert named["image"] == "localhost/o:1"


def test_full_names_need_no_registry(render: Render) -> None:
    container = operator_container(render, *FULL_NAMES, registry=False)
    assert container["image"] == "localhost/o:1"


def test_operator_is_told_where_everything_is(render: Render) -> None:
    container = operator_container(render)
    told = environment(container)
    assert container["args"] == ["operator"]
    assert told["WEFT_REDIS_URL"] == "redis://operator@weft-redis.weft-system:6379/0"
    assert told["WEFT_PROMETHEUS_URL"] == "http://weft-prometheus.weft-system:9090"
    assert told["WEFT_WATCH_NAMESPACES"] == ""
    assert told["WEFT_PLANNER_DEADLINE_SECONDS"] == "180"
    assert told["WEFT_OPERATOR_LEASE"] == "weft-system/weft-operator"
    assert {"POD_NAME", "POD_NAMESPACE"} <= set(told)


def test_operators_prefer_different_nodes_and_one_always_stays(render: Render) -> None:
    rendered = render()
    spec = rendered.get("Deployment", "weft-operator")["spec"]
    assert spec["replicas"] == 2
    term = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term[0]["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    budget = rendered.get("PodDisruptionBudget", "weft-operator")["spec"]
    assert budget["minAvailable"] == 1
    labels = spec["template"]["metadata"]["labels"].items()
    for selector in (budget["selector"], term[0]["podAffinityTerm"]["labelSelector"]):
        assert selector["matchLabels"].items() <= labels
    # One alone must let its node be drained.
    assert not render("operator.replicas=1").of_kind("PodDisruptionBudget")
    mine: Manifest = {"nodeAffinity": {}}
    asked = render('operator.affinity:={"nodeAffinity":{}}').get("Deployment", "weft-operator")
    assert asked["spec"]["template"]["spec"]["affinity"] == mine


def test_watched_namespaces_and_deadline_reach_the_operator(render: Render) -> None:
    container = operator_container(
        render, 'operator.watchNamespaces:=["team-a","team-b"]', "operator.plannerDeadlineSeconds=90"
    )
    assert environment(container)["WEFT_WATCH_NAMESPACES"] == "team-a,team-b"
    assert environment(container)["WEFT_PLANNER_DEADLINE_SECONDS"] == "90"


def test_external_stores_replace_the_embedded_ones(render: Render) -> None:
    rendered = render(*EXTERNAL_REDIS, *EXTERNAL_PROMETHEUS)
    assert {item["metadata"]["name"] for item in rendered.of_kind("Deployment")} == {"weft-operator"}
    assert "weft-redis" not in rendered.text
    assert "weft-prometheus" not in rendered.text
    told = environment(operator_container(render, *EXTERNAL_REDIS, *EXTERNAL_PROMETHEUS))
    assert told["WEFT_REDIS_URL"] == "redis://redis.example.com:6379/0"
    assert "WEFT_REDIS_URL_FILE" not in told
    assert told["WEFT_PROMETHEUS_URL"] == "http://prometheus.example.com:9090"


def test_external_stores_may_have_addresses_of_ipv6(render: Render) -> None:
    redis = (EXTERNAL_REDIS[0], "redis.url=redis://[fd00::1]:6379/0")
    prometheus = (EXTERNAL_PROMETHEUS[0], "prometheus.url=http://[fd00::2]:9090/prometheus")
    told = environment(operator_container(render, *redis, *prometheus))
    assert told["WEFT_REDIS_URL"] == "redis://[fd00::1]:6379/0"
    assert told["WEFT_PROMETHEUS_URL"] == "http://[fd00::2]:9090/prometheus"


def test_services_have_an_address_of_each_family_of_the_cluster(render: Render) -> None:
    services = render().of_kind("Service")
    assert {item["metadata"]["name"] for item in services} == {"weft-operator", "weft-redis", "weft-prometheus"}
    assert {item["spec"].get("ipFamilyPolicy") for item in services} == {"PreferDualStack"}


def test_redis_keeps_its_data_on_a_claim_when_asked(render: Render) -> None:
    spec = render().get("Deployment", "weft-redis")["spec"]["template"]["spec"]
    assert "emptyDir" in spec["volumes"][0]
    assert render().of_kind("PersistentVolumeClaim") == []
    rendered = render("redis.embedded.persistence.enabled=true", "redis.embedded.persistence.storageClass=fast")
    claim = rendered.get("PersistentVolumeClaim", "weft-redis")["spec"]
    assert claim["storageClassName"] == "fast"
    spec = rendered.get("Deployment", "weft-redis")["spec"]["template"]["spec"]
    assert spec["volumes"][0] == {"name": "data", "persistentVolumeClaim": {"claimName": "weft-redis"}}


def test_redis_is_durable_and_drops_no_heartbeat_for_lack_of_memory(render: Render) -> None:
    container = render().get("Deployment", "weft-redis")["spec"]["template"]["spec"]["containers"][0]
    options = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "allkeys-lfu"
    assert options["--dir"] == container["volumeMounts"][0]["mountPath"] == "/data"


def prometheus_config(render: Render, *values: str) -> dict[str, Any]:
    text = render(*values).get("ConfigMap", "weft-prometheus")["data"]["prometheus.yml"]
    config: dict[str, Any] = yaml.safe_load(text)
    return config


def test_prometheus_scrapes_routers_engines_and_the_operator(render: Render) -> None:
    jobs = {job["job_name"]: job for job in prometheus_config(render)["scrape_configs"]}
    assert set(jobs) == {"weft-router", "weft-engine", "weft-operator"}
    assert jobs["weft-engine"]["metrics_path"] == "/engine/metrics"
    assert jobs["weft-operator"]["static_configs"][0]["targets"] == ["weft-operator.weft-system:8081"]
    assert "namespaces" not in jobs["weft-router"]["kubernetes_sd_configs"][0]


def test_prometheus_looks_only_where_the_operator_works(render: Render) -> None:
    config = prometheus_config(render, 'operator.watchNamespaces:=["team-a","team-b"]')
    for job in config["scrape_configs"][:2]:
        assert job["kubernetes_sd_configs"][0]["namespaces"]["names"] == ["team-a", "team-b", "weft-system"]


def test_a_changed_prometheus_configuration_starts_a_new_pod(render: Render) -> None:
    def checksum(*values: str) -> str:
        template = render(*values).get("Deployment", "weft-prometheus")["spec"]["template"]
        return str(template["metadata"]["annotations"]["weft.dev/config-checksum"])

    assert checksum() != checksum("prometheus.embedded.scrapeInterval=15s")
    assert checksum() == checksum("prometheus.embedded.retention=2h")


def test_prometheus_volume_is_larger_than_what_it_keeps(render: Render) -> None:
    spec = render("prometheus.embedded.retentionSizeMB=2000").get("Deployment", "weft-prometheus")["spec"]["template"]
    assert "--storage.tsdb.retention.size=2000MB" in spec["spec"]["containers"][0]["args"]
    assert spec["spec"]["volumes"][1]["emptyDir"]["sizeLimit"] == "2500M"


def test_pod_monitors_cover_operator_and_services(render: Render) -> None:
    rendered = render("podMonitor.enabled=true", "podMonitor.labels.release=kube-prometheus")
    services = rendered.get("PodMonitor", "weft-services")
    assert services["metadata"]["labels"]["release"] == "kube-prometheus"
    assert services["spec"]["namespaceSelector"] == {"any": True}
    assert [entry["path"] for entry in services["spec"]["podMetricsEndpoints"]] == ["/metrics", "/engine/metrics"]
    assert rendered.get("PodMonitor", "weft-operator")
    assert render().of_kind("PodMonitor") == []
    watched = render("podMonitor.enabled=true", 'operator.watchNamespaces:=["team-a"]').get(
        "PodMonitor", "weft-services"
    )
    assert watched["spec"]["namespaceSelector"] == {"matchNames": ["team-a"]}


def test_a_release_of_another_name_has_names_of_its_own(render: Render) -> None:
    assert render("fullnameOverride=loom").get("Deployment", "loom-operator")
    assert render("nameOverride=loom").get("Deployment", "weft-loom-operator")


REFUSED: list[tuple[tuple[str, ...], str]] = [
    ((), "image.registry is not set: push Weft's images with 'make images push REGISTRY="),
    (("operator.image=localhost/o:1", "router.image=localhost/r:1"), "name this image in full with mockEngine.image"),
    ((REGISTRY, "redis.embedded.enabled=false"), "redis.url is required when redis.embedded.enabled is false"),
    ((REGISTRY, EXTERNAL_REDIS[1]), "redis.url is set while redis.embedded.enabled is true"),
    ((REGISTRY, SECRET_REDIS[1]), "redis.urlSecretRef is set while redis.embedded.enabled is true"),
    ((REGISTRY, *SECRET_REDIS, EXTERNAL_REDIS[1]), "redis.url and redis.urlSecretRef are both set"),
    ((REGISTRY, "prometheus.embedded.enabled=false"), "prometheus.url is required when prometheus.embedded.enabled is"),
    ((REGISTRY, EXTERNAL_PROMETHEUS[1]), "prometheus.url is set while prometheus.embedded.enabled is true"),
    ((REGISTRY, "redis.url=http://redis"), "at '/redis/url'"),
    ((REGISTRY, "redis.url=redis://fd00::1:6379/0"), "at '/redis/url'"),
    ((REGISTRY, "prometheus.url=redis://x"), "at '/prometheus/url'"),
    ((REGISTRY, "prometheus.url=http://fd00::1:9090"), "at '/prometheus/url'"),
    ((REGISTRY, "image.registery=x"), "additional properties 'registery' not allowed"),
    ((REGISTRY, "operater.image=x:1"), "additional properties 'operater' not allowed"),
    ((REGISTRY, "redis.embedded.persistance.enabled=true"), "additional properties 'persistance' not allowed"),
    ((REGISTRY, "operator.image=localhost/no-tag"), "at '/operator/image'"),
    ((REGISTRY, "image.pullPolicy=Sometimes"), "at '/image/pullPolicy'"),
    ((REGISTRY, 'image.pullSecrets:=["my..secret"]'), "at '/image/pullSecrets/0'"),
    ((REGISTRY, "operator.instance=Canary"), "at '/operator/instance'"),
    ((REGISTRY, "platform.openshift=maybe"), "at '/platform/openshift'"),
    ((REGISTRY, "scheduling.priorityClassName=High!"), "at '/scheduling/priorityClassName'"),
    ((REGISTRY, "redis.embedded.securityContext.runAsUser=0"), "at '/redis/embedded/securityContext/runAsUser'"),
    ((REGISTRY, "operator.securityContext.runasuser=1"), "additional properties 'runasuser' not allowed"),
    (("image.registry=https://registry.example.com",), "at '/image/registry'"),
    ((REGISTRY, "operator.watchNamespaces=team-a"), "at '/operator/watchNamespaces': got string, want array"),
    ((REGISTRY, 'operator.watchNamespaces:=["Team_A"]'), "at '/operator/watchNamespaces/0'"),
    ((REGISTRY, 'operator.watchNamespaces:=["a","a"]'), "at '/operator/watchNamespaces'"),
    ((REGISTRY, "operator.plannerDeadlineSeconds=0"), "at '/operator/plannerDeadlineSeconds'"),
    ((REGISTRY, "operator.resources.limits.memory=lots"), "at '/operator/resources/limits/memory'"),
    ((REGISTRY, "redis.embedded.maxMemory=256Mi"), "at '/redis/embedded/maxMemory'"),
    ((REGISTRY, "prometheus.embedded.retention=forever"), "at '/prometheus/embedded/retention'"),
    ((REGISTRY, "prometheus.embedded.retentionSizeMB=1"), "at '/prometheus/embedded/retentionSizeMB'"),
    ((REGISTRY, "networkPolicy.apiServerPorts:=[]"), "at '/networkPolicy/apiServerPorts'"),
    ((REGISTRY, "crds.install=maybe"), "at '/crds/install'"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=[message[:50] for _, message in REFUSED])
def test_bad_values_are_refused_by_name(refusal: Callable[..., str], values: tuple[str, ...], message: str) -> None:
    assert message in " ".join(refusal(*values).split())


def test_a_redis_url_with_a_password_stays_in_its_secret(render: Render) -> None:
    container = operator_container(render, *SECRET_REDIS)
    told = environment(container)
    assert told["WEFT_REDIS_URL_FILE"] == "/etc/weft-redis/url"
    assert "WEFT_REDIS_URL" not in told
    assert "WEFT_REDIS_PASSWORD_FILE" not in told
    assert {"name": "redis", "mountPath": "/etc/weft-redis", "readOnly": True} in container["volumeMounts"]
    pod = render(*SECRET_REDIS, "redis.urlSecretRef.key=address").get("Deployment", "weft-operator")["spec"]["template"]
    (volume,) = (item for item in pod["spec"]["volumes"] if item["name"] == "redis")
    assert volume["secret"]["secretName"] == "redis"
    assert volume["secret"]["items"] == [{"key": "address", "path": "url"}]


def test_services_may_ask_for_more_where_an_administrator_says_so(render: Render) -> None:
    assert "WEFT_POD_TEMPLATES_ALLOW" not in environment(operator_container(render))
    allow = "operator.podTemplates.allow"
    values = (f"{allow}[0]=seccomp", f"{allow}[1].name=hostPath", f"{allow}[1].namespaces={{team-a}}")
    told = environment(operator_container(render, *values))["WEFT_POD_TEMPLATES_ALLOW"]
    found = settings_from_env({"WEFT_ROUTER_IMAGE": "r", "WEFT_POD_TEMPLATES_ALLOW": told or ""})
    assert found.pod_templates_allow == (Permission("seccomp"), Permission("hostPath", ("team-a",)))


def test_the_schema_knows_the_permissions_of_the_operator() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["$defs"]["podTemplatePermission"]["enum"]) == set(PERMISSIONS)
