"""What a service's author may ask of pods: an allow-list, which a cluster administrator may widen by name."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weft_operator.api.objects import Manifest
from weft_operator.api.pod_template_permissions import (
    PERMISSIONS,
    VOLUME_TYPES,
    Permission,
    permissions_from_json,
    permitted_in,
)
from weft_operator.api.secret_references import SecretReference, usable
from weft_operator.commands.manifest_checks import service_messages
from weft_operator.controllers.plan_request import build_plan_request
from weft_operator.errors import StalledError
from weft_operator.kube.observe import Observed
from weft_operator.kube.stored_service import parse_service
from weft_operator.render.pod_templates.allowed import FREE_POD_FIELDS, VOLUMES, secret_names
from weft_operator.render.pod_templates.overrides import pod_template_fault
from weft_operator.render.pod_templates.security import ADDABLE
from weft_operator.settings import SettingsError, settings_from_env
from weft_operator_tests.samples import rendering
from weft_operator_tests.test_pod_templates import container, patched, pods
from weft_operator_tests.valid import changed, service, spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pod(**fields: Any) -> Manifest:
    return {"spec": fields}


def engine(**fields: Any) -> Manifest:
    return pod(containers=[{"name": "engine", **fields}])


def router(**fields: Any) -> Manifest:
    return pod(initContainers=[{"name": "router", **fields}])


def weights(**fields: Any) -> Manifest:
    return pod(initContainers=[{"name": "weights", **fields}])


def mine(**fields: Any) -> Manifest:
    return pod(containers=[{"name": "mine", "image": "x:1", **fields}])


def volume(**source: Any) -> Manifest:
    return pod(volumes=[{"name": "mine", **source}])


def probe(**fields: Any) -> Manifest:
    return {"httpGet": {"port": 80, **fields}}


WITH_PERMISSION: list[tuple[Manifest, str, str]] = [
    *((volume(**{kind: {"x": 1}}), f"spec.volumes[mine].{kind}", kind) for kind in VOLUME_TYPES),
    *(
        (volume(persistentVolumeClaim=claim), "spec.volumes[mine].persistentVolumeClaim.readOnly", "writableClaims")
        for claim in (
            {"claimName": "other-weights"},
            {"claimName": "other-weights", "readOnly": False},
            {"readOnly": None},
            {"$patch": "replace", "claimName": "other-weights"},
        )
    ),
    (volume(projected={"sources": [{"serviceAccountToken": {}}]}), "spec.volumes[mine].proj", "serviceAccountToken"),
    (volume(projected={"sources": [{"podCertificate": {}}]}), "spec.volumes[mine].proj", "serviceAccountToken"),
    (pod(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["weft-redis"]}]), "spec.hostAliases", "dns"),
    (pod(dnsConfig={"nameservers": ["10.0.0.1"]}), "spec.dnsConfig.nameservers", "dns"),
    (pod(dnsConfig={"searches": ["attacker.example.com"]}), "spec.dnsConfig.searches", "dns"),
    (pod(dnsPolicy="None"), "spec.dnsPolicy", "dns"),
    (pod(securityContext={"runAsUser": 0}), "spec.securityContext.runAsUser", "runAsRoot"),
    (pod(securityContext={"runAsNonRoot": False}), "spec.securityContext.runAsNonRoot", "runAsRoot"),
    (pod(securityContext={"runAsNonRoot": None}), "spec.securityContext.runAsNonRoot", "runAsRoot"),
    (pod(securityContext=None), "spec.securityContext", "runAsRoot"),
    (pod(securityContext={"$patch": "replace"}), "spec.securityContext.$patch", "runAsRoot"),
    (pod(securityContext={"fsGroup": 0}), "spec.securityContext.fsGroup", "runAsRoot"),
    (pod(securityContext={"supplementalGroups": [0]}), "spec.securityContext.supplementalGroups", "runAsRoot"),
    (pod(securityContext={"seccompProfile": {"type": "Unconfined"}}), "spec.securityContext.seccomp", "seccomp"),
    (pod(securityContext={"seccompProfile": None}), "spec.securityContext.seccomp", "seccomp"),
    (pod(securityContext={"appArmorProfile": {"type": "Unconfined"}}), "spec.securityContext.appArmor", "appArmor"),
    (pod(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}), "spec.securityContext.s", "sysctls"),
    (pod(securityContext={"seLinuxOptions": {"type": "spc_t"}}), "spec.securityContext.seLinux", "seLinux"),
    (pod(securityContext={"windowsOptions": {"hostProcess": True}}), "spec.securityContext.w", "windowsOptions"),
    *(
        (made(**fields), f"spec.containers[{name}].{field}", permission)
        for made, name in ((engine, "engine"), (mine, "mine"))
        for fields, field, permission in (
            ({"securityContext": {"privileged": True}}, "securityContext.privileged", "privileged"),
            ({"securityContext": {"allowPrivilegeEscalation": True}}, "securityContext.allow", "privileged"),
            ({"securityContext": {"allowPrivilegeEscalation": None}}, "securityContext.allow", "privileged"),
            ({"securityContext": {"runAsUser": 0}}, "securityContext.runAsUser", "runAsRoot"),
            ({"securityContext": {"runAsGroup": "0"}}, "securityContext.runAsGroup", "runAsRoot"),
            ({"securityContext": {"runAsGroup": False}}, "securityContext.runAsGroup", "runAsRoot"),
            ({"securityContext": {"runAsUser": "0"}}, "securityContext.runAsUser", "runAsRoot"),
            ({"securityContext": {"runAsNonRoot": False}}, "securityContext.runAsNonRoot", "runAsRoot"),
            ({"securityContext": None}, "securityContext", "runAsRoot"),
            ({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}, "securityContext.cap", "capabilities"),
            ({"securityContext": {"capabilities": {"add": ["ALL"]}}}, "securityContext.cap", "capabilities"),
            ({"securityContext": {"capabilities": {"drop": []}}}, "securityContext.cap", "capabilities"),
            ({"securityContext": {"capabilities": {"drop": None}}}, "securityContext.cap", "capabilities"),
            ({"securityContext": {"capabilities": None}}, "securityContext.cap", "capabilities"),
            ({"securityContext": {"procMount": "Unmasked"}}, "securityContext.procMount", "procMount"),
            ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "securityContext.s", "seccomp"),
            ({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}, "securityContext.a", "appArmor"),
            (
                {"volumeMounts": [{"name": "x", "mountPath": "/x", "mountPropagation": "Bidirectional"}]},
                "volumeMounts[/x].mountPropagation",
                "mountPropagation",
            ),
        )
    ),
    (mine(ports=[{"containerPort": 80, "hostPort": 80}]), "spec.containers[mine].ports[80].hostPort", "hostPorts"),
    (mine(livenessProbe=probe(host="10.0.0.1")), "spec.containers[mine].livenessProbe.httpGet.host", "hostProbes"),
    (mine(lifecycle={"postStart": probe(host="1.2.3.4")}), "spec.containers[mine].lifecycle.postStart", "hostProbes"),
    *(
        (router(env=[{"name": name, "value": "x"}]), f"spec.initContainers[router].env[{name}]", "routerEnv")
        for name in ("PYTHONPATH", "LD_PRELOAD", "PYTHONSTARTUP", "PYTHONHOME", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
    ),
    (router(envFrom=[{"configMapRef": {"name": "x"}}]), "spec.initContainers[router].envFrom", "routerEnv"),
    (
        router(env=[{"name": "TZ", "valueFrom": {"secretKeyRef": {"name": "other-token", "key": "token"}}}]),
        "spec.initContainers[router].env[TZ]",
        "routerEnv",
    ),
    (
        router(volumeMounts=[{"name": "mine", "mountPath": "/opt/weft/lib"}]),
        "spec.initContainers[router].volumeMounts[/opt/weft/lib]",
        "routerMounts",
    ),
    (
        {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/engine": "unconfined"}}},
        "metadata.annotations[container.apparmor",
        "appArmor",
    ),
    *(
        ({"metadata": {"annotations": {name: "x"}}}, f"metadata.annotations[{name}]", "runtimeAnnotations")
        for name in (
            "cdi.k8s.io/x",
            "devices.nri.io/container.x",
            "io.balloons.nri.io",
            "io.katacontainers.config.hypervisor.path",
            "io.kubernetes.cri.untrusted-workload",
            "io.containerd.cri.runtime-handler",
            "org.systemd.property.ExecStopPost",
            "run.oci.hooks.stdout",
            "dev.gvisor.spec.mount.a.source",
            "krun.cpus",
            "cpu-quota.crio.io",
            "userns-mode.io.kubernetes.cri-o",
            "seccomp-profile.kubernetes.cri-o.io",
        )
    ),
    *(
        ({"metadata": {"annotations": {name: "x"}}}, f"metadata.annotations[{name}]", "injectors")
        for name in (
            "k8s.v1.cni.cncf.io/networks",
            "v1.multus-cni.io/default-network",
            "iam.amazonaws.com/role",
            "vault.hashicorp.com/agent-inject",
            "vault.hashicorp.com/agent-inject-secret-x",
            "inject.istio.io/templates",
            "sidecar.istio.io/inject",
            "sidecar.istio.io/proxyImage",
            "proxy.istio.io/config",
        )
    ),
    (
        {"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}}},
        "metadata.annotations[seccomp",
        "seccomp",
    ),
    (pod(priorityClassName="system-node-critical"), "spec.priorityClassName", "systemPriority"),
]
"""Attacks that an administrator may allow: the patch, the beginning of the field, and the permission."""

NEVER: list[tuple[Manifest, str]] = [
    ({"metadata": {"labels": None}}, "metadata.labels"),
    ({"metadata": {"labels": {"$patch": "replace"}}}, "metadata.labels"),
    ({"metadata": {"labels": {"weft.dev/service": None}}}, "metadata.labels[weft.dev/service]"),
    ({"metadata": {"annotations": {"weft.dev/token-hash": None}}}, "metadata.annotations[weft.dev/token-hash]"),
    (router(env=None), "spec.initContainers[router].env"),
    (router(env=[{"$patch": "replace"}]), "spec.initContainers[router].env"),
    (router(terminationMessagePath="/opt/weft/lib/x.py"), "spec.initContainers[router].terminationMessagePath"),
    (engine(env=None), "spec.containers[engine].env"),
    (engine(env=[{"$patch": "replace", "x": 1}]), "spec.containers[engine].env"),
    (engine(env=[{"name": "A", "value": "b"}, {"$patch": "replace", "x": 1}]), "spec.containers[engine].env"),
    (engine(volumeMounts=[{"$patch": "replace", "x": 1}]), "spec.containers[engine].volumeMounts"),
    (engine(env=[{"name": "VLLM_MEDIA_URL_ALLOW_REDIRECTS", "value": "1"}]), "spec.containers[engine].env[VLLM_MEDIA"),
    (engine(env=[{"name": "POD_IP", "$patch": "delete"}]), "spec.containers[engine].env[POD_IP]"),
    (pod(resources={"limits": {"nvidia.com/gpu": 4}}), "spec.resources.limits[nvidia.com/gpu]"),
    (pod(resourceClaims={"name": "x"}), "spec.resourceClaims"),
    (pod(hostUsers=True), "spec.hostUsers"),
    (pod(enableServiceLinks=True), "spec.enableServiceLinks"),
    (pod(ephemeralContainers=[{"name": "x", "image": "x"}]), "spec.ephemeralContainers"),
    (pod(os={"name": "windows"}), "spec.os"),
    (pod(serviceAccount="other"), "spec.serviceAccount"),
    (pod(unknown=1), "spec.unknown"),
    (pod(hostNetwork=True), "spec.hostNetwork"),
    (pod(hostPID=True), "spec.hostPID"),
    (pod(shareProcessNamespace=True), "spec.shareProcessNamespace"),
    (pod(nodeName="control-plane"), "spec.nodeName"),
    (pod(serviceAccountName="admin"), "spec.serviceAccountName"),
    (pod(automountServiceAccountToken=True), "spec.automountServiceAccountToken"),
    (volume(unknown={}), "spec.volumes[mine].unknown"),
    (router(workingDir="/tmp"), "spec.initContainers[router].workingDir"),
    (router(tty=True), "spec.initContainers[router].tty"),
    (weights(command=["sh"]), "spec.initContainers[weights]"),
    (weights(image="mine:1"), "spec.initContainers[weights].image"),
    (weights(securityContext={"runAsUser": 1}), "spec.initContainers[weights]"),
    (weights(**{"$patch": "delete"}), "spec.initContainers[weights].$patch"),
    *(
        (mine(volumeMounts=[{"name": name, "mountPath": "/x"}]), "spec.containers[mine].volumeMounts[/x]")
        for name in ("token", "engine-proof", "api-keys", "jwks", "tls", "tmp", "config", "live", "redis", "model")
    ),
    (mine(volumeMounts=[{"name": "token", "mountPath": "/x", "subPath": "token"}]), "spec.containers[mine].volumeM"),
    *(
        (engine(volumeMounts=[{"name": "mine", "mountPath": path}]), f"spec.containers[engine].volumeMounts[{path}]")
        for path in ("/", "/etc", "/etc/weft/router.json", "/etc//weft-engine/x", "/etc/x/../weft-token/y", "/models/x")
    ),
    (engine(env=[{"name": "VLLM_API_KEY", "value": "x"}]), "spec.containers[engine].env[VLLM_API_KEY]"),
    (engine(securityContext={"unknown": 1}), "spec.containers[engine].securityContext.unknown"),
    (mine(unknown=1), "spec.containers[mine].unknown"),
    (pod(volumes={"name": "mine", "hostPath": {"path": "/"}}), "spec.volumes"),
    (pod(volumes=["hostPath"]), "spec.volumes"),
    (pod(containers={"name": "engine"}), "spec.containers"),
    (mine(env={"name": "x"}), "spec.containers[mine].env"),
    (mine(ports={"hostPort": 80}), "spec.containers[mine].ports"),
]


@pytest.mark.parametrize(("patch", "field", "permission"), WITH_PERMISSION, ids=lambda value: str(value)[:70])
def test_what_is_not_on_the_list_needs_a_permission(patch: Manifest, field: str, permission: str) -> None:
    body = patched({"patch": patch})
    asked = spec(body)
    fault = pod_template_fault(asked)
    assert fault is not None
    assert fault.startswith(f"spec.podTemplates[0].patch.{field}"), fault
    assert f"add {permission} to operator.podTemplates.allow" in fault
    assert pod_template_fault(asked, set(PERMISSIONS) - {permission}) == fault, "no other permission covers it"
    assert pod_template_fault(asked, {permission}) is None
    assert service_messages(body) == [fault], "weft plan says the same"
    with pytest.raises(StalledError) as caught:
        build_plan_request(parse_service(body), Observed(service=body, owned=(), pods=()), now=NOW)
    assert (caught.value.reason, caught.value.message) == ("ProtectedField", fault)


@pytest.mark.parametrize(("patch", "field"), NEVER, ids=lambda value: str(value)[:70])
def test_some_things_no_administrator_allows(patch: Manifest, field: str) -> None:
    fault = pod_template_fault(spec(patched({"patch": patch})), PERMISSIONS)
    assert fault is not None
    assert fault.startswith(f"spec.podTemplates[0].patch.{field}"), fault
    assert "operator.podTemplates.allow" not in fault


USUAL: list[Manifest] = [
    pod(runtimeClassName="nvidia", schedulerName="volcano", priorityClassName="high", tolerations=[{"key": "a"}]),
    pod(hostUsers=False, dnsPolicy="Default", dnsConfig={"options": [{"name": "ndots", "value": "2"}]}),
    pod(imagePullSecrets=[{"name": "registry"}], nodeSelector={"a": "b"}, preemptionPolicy="Never"),
    pod(securityContext={"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, "supplementalGroups": [44]}),
    pod(securityContext={"runAsUser": 1000650000, "runAsGroup": 0}),
    pod(securityContext={"sysctls": [{"name": "net.ipv4.tcp_keepalive_time", "value": "60"}]}),
    pod(securityContext={"seccompProfile": {"type": "Localhost", "localhostProfile": "x.json"}}),
    engine(securityContext={"capabilities": {"add": ["IPC_LOCK"]}}),
    engine(securityContext={"readOnlyRootFilesystem": False, "runAsUser": 1000}),
    engine(env=[{"name": "LD_PRELOAD", "value": "/usr/lib/libtcmalloc.so"}, {"name": "NCCL_DEBUG", "value": "INFO"}]),
    engine(resources={"limits": {"hugepages-2Mi": "1Gi"}}, workingDir="/tmp"),
    engine(volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}, {"name": "scratch", "mountPath": "/dev/shm"}]),
    router(env=[{"name": "TZ", "value": "UTC"}, {"name": "https_proxy", "value": "http://proxy:3128"}]),
    router(resources={"limits": {"memory": "1Gi"}}, imagePullPolicy="Always"),
    mine(
        args=["x"],
        envFrom=[{"configMapRef": {"name": "x"}}],
        ports=[{"containerPort": 9400}],
        livenessProbe=probe(path="/"),
        volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}, {"name": "model", "mountPath": "/m", "readOnly": True}],
    ),
    volume(emptyDir={"medium": "HugePages"}),
    volume(persistentVolumeClaim={"claimName": "x", "readOnly": True}),
    volume(persistentVolumeClaim=None),
    volume(projected={"sources": [{"configMap": {"name": "x"}}, {"downwardAPI": {}}]}),
    volume(image={"reference": "x:1"}),
    {"metadata": {"annotations": {"prometheus.io/scrape": "true", "sidecar.istio.io/inject": "false"}}},
]


@pytest.mark.parametrize("patch", USUAL, ids=lambda value: str(value)[:70])
def test_what_services_usually_ask_for_is_allowed(patch: Manifest) -> None:
    body = patched({"patch": patch})
    assert pod_template_fault(spec(body)) is None
    assert service_messages(body) == []


def test_added_containers_have_no_rights_unless_they_ask_and_may() -> None:
    own: list[Manifest] = [
        {"name": "plain", "image": "x:1"},
        {"name": "locks", "image": "x:1", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}},
        {"name": "node", "image": "x:1", "securityContext": {"privileged": True}},
    ]
    template = pods(rendering(patched({"patch": pod(containers=own)})))["worker/8/h20"]
    contexts = [container(template, item["name"])["securityContext"] for item in own]
    assert contexts == [
        {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}},
        {"privileged": True, "capabilities": {"drop": ["ALL"]}},  # the API server refuses the pair with false
    ]


# --- Secrets

REFERENCES: list[tuple[Manifest, str]] = [
    (volume(secret={"secretName": "other-token"}), "spec.volumes[mine].secret"),
    (volume(projected={"sources": [{"secret": {"name": "other-token"}}]}), "spec.volumes[mine].projected"),
    *(
        (made(**fields), f"spec.{place}.{field}")
        for made, place in ((engine, "containers[engine]"), (mine, "containers[mine]"))
        for fields, field in (
            ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "other-token", "key": "t"}}}]}, "env[A]"),
            ({"envFrom": [{"secretRef": {"name": "other-token", "optional": True}}]}, "envFrom"),
        )
    ),
]


def asked(body: Manifest, **seen: Any) -> None:
    build_plan_request(parse_service(body), Observed(service=body, owned=(), pods=(), **seen), now=NOW)


@pytest.mark.parametrize(("patch", "field"), REFERENCES, ids=lambda value: str(value)[:70])
def test_a_secret_that_is_not_marked_comes_into_no_pod(patch: Manifest, field: str) -> None:
    body = patched({"patch": patch})
    with pytest.raises(StalledError) as caught:
        asked(body, patched_secrets={"other-token": "unmarked"})
    assert caught.value.reason == "SecretNotAllowed"
    assert caught.value.message.startswith(f"spec.podTemplates[0].patch.{field}")
    assert "kubectl label secret other-token -n default weft.dev/use=pods" in caught.value.message
    with pytest.raises(StalledError) as missing:
        asked(body)
    assert missing.value.reason == "SecretNotFound", "it could be another service's once it is there"
    asked(body, patched_secrets={"other-token": "marked"})
    build_plan_request(
        parse_service(body), Observed(service=body, owned=(), pods=()), now=NOW, permitted=frozenset({"secrets"})
    )


def test_references_of_the_spec_need_a_mark_for_their_use() -> None:
    body = changed(service(), "spec.coordinator", {"auth": {"apiKeySecretRef": {"name": "keys", "key": "all"}}})
    found = SecretReference("spec.coordinator.auth.apiKeySecretRef", "keys", "api-keys")
    with pytest.raises(StalledError) as caught:
        asked(body, unmarked=(found,), api_key_found=False)
    assert caught.value.reason == "SecretNotAllowed", "nothing is said of its keys"


@pytest.mark.parametrize(
    ("secret", "uses"),
    [
        ({"type": "Opaque"}, set()),
        ({"type": "weft.dev/credentials"}, {"model", "pods", "tls"}),
        ({"type": "kubernetes.io/tls"}, {"tls"}),
        ({"type": "Opaque", "labels": {"weft.dev/use": "model"}}, {"model"}),
        ({"type": "Opaque", "labels": {"weft.dev/use": "pods"}}, {"pods"}),
        ({"type": "kubernetes.io/service-account-token"}, set()),
        ({"type": "weft.dev/credentials", "labels": {"app.kubernetes.io/managed-by": "weft"}}, set()),
        ({"labels": {"weft.dev/use": "pods"}, "owner": "DisaggInferenceService"}, set()),
    ],
)
def test_a_secret_is_for_what_its_label_or_type_says(secret: dict[str, Any], uses: set[str]) -> None:
    owners = [{"kind": secret["owner"], "controller": True}] if "owner" in secret else []
    metadata = {"name": "x", "labels": secret.get("labels", {}), "ownerReferences": owners}
    manifest = {"type": secret.get("type", "Opaque"), "metadata": metadata}
    assert {use for use in ("model", "pods", "tls") if usable(manifest, use)} == uses


# --- the administrator's list


def test_permissions_are_for_all_namespaces_or_for_some() -> None:
    text = '["dns", {"name": "hostPath", "namespaces": ["team-a"]}, {"name": "nfs"}]'
    found = settings_from_env({"WEFT_ROUTER_IMAGE": "r", "WEFT_POD_TEMPLATES_ALLOW": text}).pod_templates_allow
    assert found == (Permission("dns"), Permission("hostPath", ("team-a",)), Permission("nfs"))
    assert permitted_in(found, "team-a") == {"dns", "hostPath", "nfs"}
    assert permitted_in(found, "team-b") == {"dns", "nfs"}
    assert permissions_from_json("") == ()


@pytest.mark.parametrize(
    "text",
    ["{}", "[1]", '["everything"]', '[{"name": "dns", "in": []}]', '[{"name": "dns", "namespaces": []}]', "[", "null"],
)
def test_a_list_that_cannot_be_used_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match="WEFT_POD_TEMPLATES_ALLOW"):
        settings_from_env({"WEFT_ROUTER_IMAGE": "r", "WEFT_POD_TEMPLATES_ALLOW": text})


def test_the_page_names_every_permission() -> None:
    page = (Path(__file__).parents[2] / "docs/pod-templates.md").read_text(encoding="utf-8")
    assert {name for name in PERMISSIONS if f"`{name}`" not in page} == set()
    assert {name for name in (*FREE_POD_FIELDS, *VOLUMES, *ADDABLE) if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("path", ["/", "/etc/kubernetes", "/proc", "/var/lib/weft-other", "/var/lib"])
def test_weights_are_cached_below_one_folder_of_nodes(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = {"revision": "v1", "cache": {"node": {"path": path}}}
    body = changed(service(), "spec.model.source", {"huggingFace": cached})
    if path != "/":  # the schema refuses it
        with pytest.raises(StalledError, match="/var/lib/weft or below") as caught:
            asked(body)
        assert service_messages(body) == [caught.value.message]
        monkeypatch.setenv("WEFT_POD_TEMPLATES_ALLOW", '["hostPath"]')
    assert len(service_messages(body)) == (path == "/")
    below = changed(body, "spec.model.source.huggingFace.cache.node.path", "/var/lib/weft/models")
    asked(below)


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ("spec.coordinator", "spec.coordinator.priorityClassName"),
        ("spec.capacity.pools.0", "spec.capacity.pools[h20].priorityClassName"),
    ],
)
def test_a_class_of_the_cluster_s_own_needs_a_permission_in_fields_too(part: str, field: str) -> None:
    body = changed(service(), f"{part}.priorityClassName", "system-cluster-critical")
    with pytest.raises(StalledError) as caught:
        asked(body)
    assert caught.value.message.startswith(f"{field}: ")
    assert service_messages(body) == [caught.value.message]
    assert pod_template_fault(spec(body), {"systemPriority"}) is None
    assert pod_template_fault(spec(changed(service(), f"{part}.priorityClassName", "high"))) is None


def test_no_patch_claims_devices_of_a_pool() -> None:
    claims = [{"name": "gpus", "template": "four-gpus"}]
    patch = pod(resourceClaims=[{"name": "more", "resourceClaimTemplateName": "four-gpus"}])
    body = changed(patched({"patch": patch}), "spec.capacity.pools.0.resourceClaims", claims)
    fault = pod_template_fault(spec(body), PERMISSIONS)
    assert fault is not None
    assert fault.startswith("spec.podTemplates[0].patch.spec.resourceClaims[more]: ")
    patch["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "fpga"
    assert pod_template_fault(spec(changed(body, "spec.podTemplates", [{"patch": patch}]))) is None


# --- whatever comes

WORDS = (
    "spec metadata labels annotations volumes containers initContainers name env valueFrom secretKeyRef secret "
    "projected sources securityContext capabilities add drop $patch volumeMounts mountPath ports hostPort image "
    "resources limits lifecycle envFrom secretRef"
)
NAMES = st.sampled_from(WORDS.split())
TEXTS = st.sampled_from(["engine", "router", "weights", "mine", "token", "delete", "replace", "/etc", "x", "hostPath"])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1, 2), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
)


def found_in(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from value.items()
        for item in value.values():
            yield from found_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from found_in(item)


@given(st.fixed_dictionaries({}, optional={"spec": VALUES, "metadata": VALUES}))
@settings(max_examples=400, deadline=None)
@example({"spec": {"containers": {"$patch": "delete"}}})
@example({"spec": {"containers": [{"name": ["engine"]}]}})
@example({"spec": {"containers": [{"name": "engine", "resources": {"limits": "x"}}]}})
def test_no_patch_brings_the_operator_down_and_every_secret_of_an_accepted_one_is_seen(patch: Manifest) -> None:
    if pod_template_fault(spec(patched({"patch": patch}))) is not None:
        return
    seen = {name for _, name in secret_names(patch)}
    for key, value in found_in(patch):
        if key in ("secretKeyRef", "secretRef") and isinstance(value, dict) and value.get("name") is not None:
            assert str(value["name"]) in seen
