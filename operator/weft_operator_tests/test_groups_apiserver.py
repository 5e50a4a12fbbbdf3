"""WorkerGroups on a real API server: ``/scale`` with planning Off, and workers from before there were groups."""

import json
from collections.abc import Iterator

import pytest

from weft_operator.api.objects import Manifest
from weft_operator_tests.api import RealApi, small_service
from weft_operator_tests.cluster import condition, wait_for

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400, func_only=True)]

GROUPS = "apis/weft.dev/v1alpha1/workergroups"


@pytest.fixture(autouse=True)
def ended(api: RealApi) -> Iterator[None]:
    """End the operators of each test."""
    yield
    api.heal()


def groups(api: RealApi, namespace: str) -> dict[str, Manifest]:
    """Return the groups by role; one of each is expected."""
    return {item["spec"]["role"]: item for item in api.items(GROUPS, namespace)}


def pods(api: RealApi, namespace: str, role: str) -> dict[str, str]:
    """Return the uids of the living worker pods of a role, by name."""
    found = api.items("api/v1/pods", namespace)
    return {
        item["metadata"]["name"]: item["metadata"]["uid"]
        for item in found
        if item["metadata"]["labels"].get("app.kubernetes.io/component") == role
        and not item["metadata"].get("deletionTimestamp")
    }


def progress(api: RealApi, namespace: str) -> str:
    """Return the reason of the condition Progressing."""
    service = api.read(f"apis/weft.dev/v1alpha1/namespaces/{namespace}/disagginferenceservices/demo")
    return str(condition(service, "Progressing").get("reason", ""))


def deploy(api: RealApi, namespace: str) -> None:
    api.kube.apply(small_service(namespace))
    wait_for("workers", lambda: progress(api, namespace) == "UpToDate", timeout=120)


def test_with_planning_off_a_group_is_scaled_by_whoever_likes(api: RealApi) -> None:
    namespace = api.namespace()
    api.replica("a", namespace).start()
    deploy(api, namespace)
    group = groups(api, namespace)["decode"]
    name, planned = group["metadata"]["name"], group["spec"]["replicas"]
    scale = ["-n", namespace, "scale", f"workergroup/{name}"]
    # In mode Auto the number is the plan's.
    api.kube.run(*scale, f"--replicas={planned + 2}")
    wait_for("the plan's number", lambda: groups(api, namespace)["decode"]["spec"]["replicas"] == planned)
    api.kube.apply(small_service(namespace, planning={"mode": "Off"}))
    path = f"apis/weft.dev/v1alpha1/namespaces/{namespace}/disagginferenceservices/demo"

    def seen() -> bool:
        body = api.read(path) or {}
        return bool(body["status"]["observedGeneration"] == body["metadata"]["generation"])

    wait_for("the new mode", seen)
    before = pods(api, namespace, "decode")
    api.kube.run(*scale, f"--replicas={planned + 2}")
    wait_for("more workers", lambda: len(pods(api, namespace, "decode")) == planned + 2)
    assert before.items() <= pods(api, namespace, "decode").items()
    scaled = f"apis/weft.dev/v1alpha1/namespaces/{namespace}/workergroups/{name}/scale"

    def counted() -> Manifest | None:
        body = api.read(scaled)
        return body if body is not None and body["status"]["replicas"] == planned + 2 else None

    # The number that is counted follows the pods.
    found = wait_for("the number of workers at /scale", counted)
    assert found is not None
    assert found["spec"]["replicas"] == planned + 2
    selected = api.kube.list(namespace, "pods", found["status"]["selector"])
    assert {item["metadata"]["name"] for item in selected} == set(pods(api, namespace, "decode"))
    api.kube.run(*scale, "--replicas=1")
    wait_for("fewer workers", lambda: len(pods(api, namespace, "decode")) == 1)

    def desired() -> int:
        rows = (api.read(path) or {})["status"]["groups"]
        return int(next(row["desired"] for row in rows if row["role"] == "decode"))

    wait_for("the number in the service's status", lambda: desired() == 1)
    api.kube.run("-n", namespace, "delete", "dis", "demo")
    wait_for("end of all", lambda: not api.items(GROUPS, namespace) and not pods(api, namespace, "decode"))


def test_workers_from_before_there_were_groups_are_taken_over_with_their_pods(api: RealApi) -> None:
    namespace = api.namespace()
    operator = api.replica("a", namespace).start()
    deploy(api, namespace)
    before = {role: pods(api, namespace, role) for role in ("prefill", "decode")}
    assert all(before.values())
    operator.kill()
    # As an operator from before left them: owned by the service itself, and no group.
    service = api.read(f"apis/weft.dev/v1alpha1/namespaces/{namespace}/disagginferenceservices/demo")
    assert service is not None
    owner = {key: service[key] for key in ("apiVersion", "kind")} | {
        "name": "demo",
        "uid": service["metadata"]["uid"],
        "controller": True,
    }
    sets = api.items("apis/apps/v1/statefulsets", namespace)
    for item in sets:
        body: Manifest = {"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": item["spec"]}
        metadata = {key: item["metadata"][key] for key in ("name", "namespace", "labels")}
        body["metadata"] = {**metadata, "ownerReferences": [owner]}
        path = f"apis/apps/v1/namespaces/{namespace}/statefulsets/{item['metadata']['name']}"
        api.send("PATCH", f"{path}?fieldManager=weft-operator&force=true", body)
    for group in api.items(GROUPS, namespace):
        api.kube.run("-n", namespace, "delete", "workergroup", group["metadata"]["name"], "--cascade=orphan")
    assert not api.items(GROUPS, namespace)
    left = api.items("apis/apps/v1/statefulsets", namespace)
    assert {json.dumps([one["kind"] for one in item["metadata"]["ownerReferences"]]) for item in left} == {
        '["DisaggInferenceService"]'
    }
    operator.start()

    def taken_over() -> bool:
        owners = [item["metadata"]["ownerReferences"] for item in api.items("apis/apps/v1/statefulsets", namespace)]
        return len(owners) == len(sets) and all([one["kind"] for one in few] == ["WorkerGroup"] for few in owners)

    wait_for("new owners", taken_over)
    wait_for("rest", lambda: progress(api, namespace) == "UpToDate")
    assert {role: pods(api, namespace, role) for role in ("prefill", "decode")} == before, "no pod was restarted"
