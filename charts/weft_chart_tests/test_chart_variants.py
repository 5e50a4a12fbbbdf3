"""What holds in every rendering of the chart."""

import os
from pathlib import Path

import pytest

from weft_chart_tests.rendering import CHART, NAMESPACE, Helm, Manifest, Render

EXTERNAL_REDIS = ("redis.embedded.enabled=false", "redis.url=redis://redis.example.com:6379/0")
SECRET_REDIS = ("redis.embedded.enabled=false", "redis.urlSecretRef.name=redis")
EXTERNAL_PROMETHEUS = ("prometheus.embedded.enabled=false", "prometheus.url=http://prometheus.example.com:9090")
FULL_NAMES = ("operator.image=localhost/o:1", "router.image=localhost/r:1", "mockEngine.image=localhost/m:1")
VARIANTS: dict[str, tuple[str, ...]] = {
    "default": (),
    "external-redis": EXTERNAL_REDIS,
    "secret-redis": SECRET_REDIS,
    "external-prometheus": EXTERNAL_PROMETHEUS,
    "external-both": (*EXTERNAL_REDIS, *EXTERNAL_PROMETHEUS),
    "watch-namespaces": ('operator.watchNamespaces:=["team-a","team-b"]',),
    "labelled-namespaces": ("operator.labelledNamespaces=true",),
    "pod-monitor": ("podMonitor.enabled=true", "podMonitor.labels.release=kube-prometheus"),
    "rules-and-dashboards": ("prometheusRule.enabled=true", "dashboards.enabled=true"),
    "no-network-policy": ("networkPolicy.enabled=false",),
    "persistent-redis": ("redis.embedded.persistence.enabled=true", "redis.embedded.persistence.storageClass=fast"),
    "no-crds": ("crds.install=false",),
    "gateway": ("gateway.enabled=true",),
    "placed": (
        'image.pullSecrets:=["pull"]',
        "operator.nodeSelector.disk=ssd",
        'operator.tolerations:=[{"key":"gpu","operator":"Exists"}]',
        "operator.priorityClassName=system-cluster-critical",
        "operator.podAnnotations.team=ml",
        "operator.serviceAccount.annotations.role=weft",
        'operator.affinity:={"nodeAffinity":{}}',
    ),
}
CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
CLUSTER_SCOPED |= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
every_variant = pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS.keys())


def name_of(item: Manifest) -> tuple[str, str, str]:
    return (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])


@every_variant
def test_names_are_unique_and_namespaced_objects_say_where(render: Render, values: tuple[str, ...]) -> None:
    objects = render(*values).objects
    names = [name_of(item) for item in objects]
    assert len(set(names)) == len(names)
    for kind, namespace, name in names:
        assert bool(namespace) is (kind not in CLUSTER_SCOPED), (kind, name)


@every_variant
def test_every_object_of_the_chart_is_labelled(render: Render, values: tuple[str, ...]) -> None:
    ours = [item for item in render(*values).objects if item["kind"] != "CustomResourceDefinition"]
    assert len(ours) >= 10
    for item in ours:
        labels = item["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "weft"
        assert labels["app.kubernetes.io/instance"] == "weft"
        assert labels["app.kubernetes.io/component"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        # The label that marks pods of services; carrying it would open Redis to the chart's pods.
        assert "weft.dev/service" not in labels


@every_variant
def test_every_pod_meets_the_restricted_pod_security_standard(render: Render, values: tuple[str, ...]) -> None:
    for spec in render(*values).pod_specs().values():
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context.get("runAsUser", 65532) > 0, "the images of Weft name their user"
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert all(
            set(volume) & {"emptyDir", "configMap", "secret", "persistentVolumeClaim"}
            for volume in spec.get("volumes", [])
        )
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}


@every_variant
def test_every_container_has_requests_a_memory_limit_and_a_pinned_image(
    render: Render, values: tuple[str, ...]
) -> None:
    for spec in render(*values).pod_specs().values():
        for container in spec["containers"]:
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert container["resources"]["limits"]["memory"]
            _, _, tag = container["image"].rpartition(":")
            assert tag
            assert tag != "latest"


@every_variant
def test_every_server_is_probed_and_leaves_a_lost_node_soon(render: Render, values: tuple[str, ...]) -> None:
    for item in render(*values).every("Deployment"):
        spec = item["spec"]["template"]["spec"]
        for container in spec["containers"]:
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
        waits = {entry["key"]: entry.get("tolerationSeconds") for entry in spec["tolerations"]}
        assert waits["node.kubernetes.io/unreachable"] == 15
        assert waits["node.kubernetes.io/not-ready"] == 15
        # Of operators one leads, gateways share nothing; two Redis or Prometheus would fight for a volume.
        wanted = "RollingUpdate" if item["metadata"]["name"].endswith(("-operator", "-gateway")) else "Recreate"
        assert item["spec"]["strategy"]["type"] == wanted


@every_variant
def test_services_select_pods_that_are_there(render: Render, values: tuple[str, ...]) -> None:
    rendered = render(*values)
    templates = [item["spec"]["template"] for item in rendered.of_kind("Deployment")]
    for service in rendered.every("Service"):
        selector = service["spec"]["selector"].items()
        matching = [template for template in templates if selector <= template["metadata"]["labels"].items()]
        assert len(matching) == 1, service["metadata"]["name"]
        ports = {port["name"] for container in matching[0]["spec"]["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


@every_variant
def test_no_pod_uses_the_default_service_account_with_a_token(render: Render, values: tuple[str, ...]) -> None:
    rendered = render(*values)
    accounts = {item["metadata"]["name"] for item in rendered.of_kind("ServiceAccount")}
    for spec in rendered.pod_specs().values():
        account = spec.get("serviceAccountName")
        assert account in accounts if account else spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("variant", ["default", "external-both", "watch-namespaces", "gateway"])
def test_rendering_is_as_checked_in(render: Render, variant: str) -> None:
    """Pin the text; WEFT_UPDATE_GOLDEN=1 rewrites it. The definitions are pinned where they are generated."""
    golden = Path(__file__).parent / "golden" / f"{variant}.yaml"
    text = render(*VARIANTS[variant], "crds.install=false").text
    if os.environ.get("WEFT_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert written(text) == written(golden.read_text())


def written(text: str) -> list[str]:
    """Return the lines that say something: versions of Helm differ in the blank ones that templates leave."""
    return [line for line in text.splitlines() if line.strip()]


def test_lint_finds_nothing_but_the_missing_icon(helm: Helm) -> None:
    done = helm("lint", str(CHART), "--strict", "--namespace", NAMESPACE)
    assert done.returncode == 0, done.stdout + done.stderr
    findings = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert findings == ["[INFO] Chart.yaml: icon is recommended"]


def test_pull_secrets_and_placement_reach_the_pods(render: Render) -> None:
    rendered = render(*VARIANTS["placed"])
    for spec in rendered.pod_specs().values():
        assert spec["imagePullSecrets"] == [{"name": "pull"}]
    operator = rendered.get("Deployment", "weft-operator")["spec"]["template"]
    assert operator["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert {"key": "gpu", "operator": "Exists"} in operator["spec"]["tolerations"]
    assert operator["spec"]["priorityClassName"] == "system-cluster-critical"
    assert operator["spec"]["affinity"] == {"nodeAffinity": {}}
    assert operator["metadata"]["annotations"] == {"team": "ml"}
    account = rendered.get("ServiceAccount", "weft-operator")
    assert account["metadata"]["annotations"] == {"role": "weft"}
