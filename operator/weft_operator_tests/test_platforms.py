"""Pods on clusters as they are: users that OpenShift assigns, tainted nodes, and registries that ask for a Secret."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from weft_e2e.checks.openshift import check_restricted_v2
from weft_operator.api.crd import service_crd
from weft_operator.api.objects import Manifest
from weft_operator.api.planning import MeasureProfile
from weft_operator.profiling.jobs import profile_job, reader_job
from weft_operator.profiling.targets import KV_TIMED, MeasurementTarget
from weft_operator.render.inputs import Rendering
from weft_operator.render.objects import mounts_of
from weft_operator_tests.samples import SETTINGS, TOKEN, on_nodes, rendered, rendering
from weft_operator_tests.test_render_golden import CASES
from weft_operator_tests.valid import changed, service, spec, vllm_service

OPENSHIFT = replace(SETTINGS, openshift=True)
TARGET = MeasurementTarget(gpu="nvidia-h20", degree=4, pool="h20")


def pods(base: Rendering) -> dict[str, Manifest]:
    """Return the specs of all pods of a service: coordinators, workers, and the Jobs that measure its engine."""
    objects = [item for item in rendered(base) if item["kind"] in ("Deployment", "StatefulSet")]
    if base.spec.engine.type in KV_TIMED:
        mounts, measure = mounts_of(base, token=TOKEN), MeasureProfile()
        objects += [
            profile_job(base, mounts, TARGET, measure, name="demo-profile", reader="http://10.0.0.1:8000"),
            reader_job(base, mounts, TARGET, measure, name="demo-reads"),
        ]
    return {item["metadata"]["name"]: item["spec"]["template"]["spec"] for item in objects}


def contexts(pod: Manifest) -> dict[str, Manifest]:
    """Return the security context of each container, with the pod's beneath it."""
    every = [*pod.get("initContainers", ()), *pod["containers"]]
    return {item["name"]: {**pod["securityContext"], **item["securityContext"]} for item in every}


@pytest.mark.parametrize("name", sorted(CASES))
def test_openshift_admits_every_pod_with_a_user_of_its_own(name: str) -> None:
    found = pods(replace(CASES[name], settings=OPENSHIFT))
    assert len(found) > 2
    for pod_name, pod in found.items():
        check_restricted_v2(pod_name, pod)
        assert all(context["runAsNonRoot"] for context in contexts(pod).values())


def test_openshift_admits_workers_on_several_nodes() -> None:
    for pod_name, pod in pods(replace(on_nodes(vllm_service()), settings=OPENSHIFT)).items():
        check_restricted_v2(pod_name, pod)


def test_elsewhere_only_engines_whose_image_runs_as_root_get_a_user() -> None:
    users = {
        (engine, container): context.get("runAsUser")
        for engine, body in (("mock", service()), ("vllm", vllm_service()))
        for pod in pods(rendering(body)).values()
        for container, context in contexts(pod).items()
    }
    assert {key for key, user in users.items() if user is not None} == {("vllm", "engine")}
    assert users["vllm", "engine"] == 65532


@pytest.mark.parametrize("settings", [SETTINGS, OPENSHIFT], ids=["plain", "openshift"])
def test_a_user_that_the_spec_names_is_that_of_the_engine_alone(settings: Any) -> None:
    base = replace(rendering(changed(vllm_service(), "spec.engine.runAsUser", 2000)), settings=settings)
    users = {
        (name, key): value.get("runAsUser") for name, pod in pods(base).items() for key, value in contexts(pod).items()
    }
    assert {key for key, user in users.items() if user is not None} == {key for key in users if key[1] == "engine"}
    assert {user for user in users.values() if user is not None} == {2000}


def test_files_of_secrets_are_readable_whichever_user_a_pod_runs_as() -> None:
    for base in CASES.values():
        for pod in pods(base).values():
            modes = [volume["secret"].get("defaultMode", 0o644) for volume in pod["volumes"] if "secret" in volume]
            assert all(mode & 0o004 for mode in modes)
            assert "fsGroup" not in pod["securityContext"]


TAINT: Manifest = {"key": "dedicated", "operator": "Equal", "value": "inference", "effect": "NoSchedule"}
NODES: Manifest = {"nodeSelector": {"zone": "a"}, "tolerations": [TAINT], "priorityClassName": "serving.high"}


def test_coordinators_are_placed_as_the_service_says() -> None:
    body = service()
    body["spec"]["coordinator"] = {**body["spec"].get("coordinator", {}), **NODES}
    pod = pods(rendering(body))["demo"]
    assert pod["nodeSelector"] == {"zone": "a"}
    assert pod["priorityClassName"] == "serving.high"
    assert TAINT in pod["tolerations"]
    assert {item["key"] for item in pod["tolerations"][:2]} == {
        f"node.kubernetes.io/{t}" for t in ("not-ready", "unreachable")
    }


def test_workers_and_the_jobs_that_measure_are_placed_as_their_pool_says() -> None:
    body = service()
    body["spec"]["capacity"]["pools"][0] |= NODES
    found = pods(rendering(body))
    placed = {name: pod for name, pod in found.items() if name != "demo"}
    assert {"demo-profile", "demo-reads", "demo-w8-0"} <= set(placed)
    for pod in placed.values():
        assert pod["nodeSelector"] == {"zone": "a"}
        assert pod["priorityClassName"] == "serving.high"
        assert TAINT in pod["tolerations"]
    assert "nodeSelector" not in found["demo"]


def test_every_pod_pulls_with_the_services_secrets_and_engines_with_their_own_too() -> None:
    body = changed(service(), "spec.imagePullSecrets", ["my.registry.secret", "both"])
    body = changed(body, "spec.engine.imagePullSecrets", ["both", "nvcr.io"])
    for name, pod in pods(rendering(body)).items():
        names = [item["name"] for item in pod["imagePullSecrets"]]
        assert names == (
            ["my.registry.secret", "both"] if name == "demo" else ["my.registry.secret", "both", "nvcr.io"]
        )


def test_without_secrets_there_is_no_field() -> None:
    assert all("imagePullSecrets" not in pod for pod in pods(rendering()).values())


DOTTED = "my.dotted.name"
NAMES: dict[str, tuple[str, Any]] = {
    "pull secrets": ("spec.imagePullSecrets", [DOTTED]),
    "the engine's pull secrets": ("spec.engine.imagePullSecrets", [DOTTED]),
    "a claim with weights": ("spec.model.source", {"pvc": {"claimName": DOTTED}}),
    "a token of the hub": ("spec.model.source", {"huggingFace": {"tokenSecretRef": {"name": DOTTED, "key": "token"}}}),
    "API keys": ("spec.coordinator", {"auth": {"apiKeySecretRef": {"name": DOTTED, "key": "keys"}}}),
    "a certificate": ("spec.coordinator", {"tls": {"secretRef": {"name": DOTTED}}}),
    "keys of a provider": (
        "spec.coordinator",
        {
            "auth": {
                "jwt": {
                    "issuer": "https://login.example.com",
                    "audiences": ["weft"],
                    "jwksConfigMapRef": {"name": DOTTED, "key": "jwks.json"},
                }
            }
        },
    ),
    "a coordinator's priority": ("spec.coordinator", {"priorityClassName": DOTTED}),
    "a pool's priority": ("spec.capacity.pools.0.priorityClassName", DOTTED),
    "devices": ("spec.capacity.pools.0.resourceClaims", [{"name": "gpus", "template": DOTTED}]),
    "a cost profile": ("spec.profile", {"ref": {"name": DOTTED}}),
    "credentials of Prometheus": ("spec.planning.prometheus", {"authSecretRef": {"name": DOTTED}}),
    "a header of Prometheus": (
        "spec.planning.prometheus",
        {"headers": [{"name": "X-Team", "secretKeyRef": {"name": DOTTED, "key": "id"}}]},
    ),
    "a trace": ("spec.workload", {"traceConfigMap": {"name": DOTTED, "key": "trace"}}),
}


@pytest.mark.parametrize(("path", "value"), NAMES.values(), ids=NAMES)
def test_names_of_objects_may_hold_dots(path: str, value: Any) -> None:
    assert DOTTED in str(spec(changed(service(), path, value)).model_dump(mode="json"))


def test_no_name_of_another_object_is_limited_to_a_label() -> None:
    """Each field of the definition that names an object takes what Kubernetes takes as its name."""
    named = re.compile("Secret|Ref|ConfigMap|claimName|ClassName|template")
    found = {path: pattern for path, pattern in _patterns(service_crd(), "") if named.search(path)}
    # Namespaces have labels for names.
    names = {path: pattern for path, pattern in found.items() if not path.endswith((".key", ".namespace"))}
    assert len(names) > 12
    assert not [path for path, pattern in names.items() if pattern == LABEL]


LABEL = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


def _patterns(schema: Any, path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("pattern"), str):
        yield path, schema["pattern"]
    for name, inner in (schema.get("properties") or {}).items():
        yield from _patterns(inner, f"{path}.{name}")
    yield from _patterns(schema.get("items"), f"{path}[]")
    for version in (schema.get("spec") or {}).get("versions") or ():
        yield from _patterns(version["schema"]["openAPIV3Schema"], path)
