"""WorkerGroups on a real API server: ``/scale`` with planning Off, and workers from before there were groups."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from weft_operator.api.objects import WORKER_LABEL, Manifest, is_terminating, labels_of, name_of, pod_role
from weft_operator_tests.api import RealApi, small_service
from weft_operator_tests.cluster import condition, wait_for

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400, func_only=True)]

GROUPS = "apis/weft.dev/v1alpha1/workergroups"
FIXED_ROLES = [{"component": "decode", "patch": {"metadata": {"annotations": {"example.com/a": "b"}}}}]
"""Patches of pods (spec.podTemplates) for one role alone: that role is then in the workers' names."""


@pytest.fixture(autouse=True)
def ended(api: RealApi) -> Iterator[None]:
    """End the operators of each test."""
    yield
    api.heal()


def the_group(api: RealApi, namespace: str) -> Manifest:
    """Return the only group: workers of one degree and pool are in one, whatever their roles are."""
    (found,) = api.items(GROUPS, namespace)
    return found


def pods(api: RealApi, namespace: str, role: str) -> dict[str, str]:
    """Return the uids of the living pods of a role (or of coordinators), by name."""
    found = api.items("api/v1/pods", namespace)
    living = [item for item in found if not is_terminating(item)]
    return {name_of(item): item["metadata"]["uid"] for item in living if pod_role(item) == role}


def workers(api: RealApi, namespace: str) -> dict[str, str]:
    """Return the uids of the living worker pods, by name."""
    found = api.items("api/v1/pods", namespace)
    living = [item for item in found if not is_terminating(item)]
    return {name_of(item): item["metadata"]["uid"] for item in living if WORKER_LABEL in labels_of(item)}


def progress(api: RealApi, namespace: str) -> str:
    """Return the reason of the condition Progressing."""
    service = api.read(f"apis/weft.dev/v1alpha1/namespaces/{namespace}/disagginferenceservices/demo")
    return str(condition(service, "Progressing").get("reason", ""))


def deploy(api: RealApi, namespace: str, **spec: Any) -> None:
    api.kube.apply(small_service(namespace, **spec))
    wait_for("workers", lambda: progress(api, namespace) == "UpToDate", timeout=120)


def test_with_planning_off_a_group_is_scaled_by_whoever_likes(api: RealApi) -> None:
    """The number at /scale is that of workers of all roles, which stay in proportion."""
    namespace = api.namespace()
    api.replica("a", namespace).start()
    deploy(api, namespace)
    group = the_group(api, namespace)
    name, planned = name_of(group), group["spec"]["replicas"]
    assert {role: count for role, count in group["spec"]["roles"].items() if count} == {"prefill": 1, "decode": 1}
    scale = ["-n", namespace, "scale", f"workergroup/{name}"]
    # In mode Auto the number is the plan's.
    api.kube.run(*scale, f"--replicas={planned + 2}")
    wait_for("the plan's number", lambda: the_group(api, namespace)["spec"]["replicas"] == planned)
    wait_for("the plan's workers", lambda: len(workers(api, namespace)) == planned)
    api.kube.apply(small_service(namespace, planning={"mode": "Off"}))
    path = f"apis/weft.dev/v1alpha1/namespaces/{namespace}/disagginferenceservices/demo"

    def seen() -> bool:
        body = api.read(path) or {}
        return bool(body["status"]["observedGeneration"] == body["metadata"]["generation"])

    wait_for("the new mode", seen)
    before = workers(api, namespace)
    api.kube.run(*scale, f"--replicas={planned + 2}")
    wait_for("more workers", lambda: len(workers(api, namespace)) == planned + 2)
    assert before.items() <= workers(api, namespace).items()
    assert {role: len(pods(api, namespace, role)) for role in ("prefill", "decode")} == {"prefill": 2, "decode": 2}
    scaled = f"apis/weft.dev/v1alpha1/namespaces/{namespace}/workergroups/{name}/scale"

    def counted() -> Manifest | None:
        body = api.read(scaled)
        return body if body is not None and body["status"]["replicas"] == planned + 2 else None

    # The number that is counted follows the pods.
    found = wait_for("the number of workers at /scale", counted)
    assert found is not None
    assert found["spec"]["replicas"] == planned + 2
    selected = api.kube.list(namespace, "pods", found["status"]["selector"])
    assert {item["metadata"]["name"] for item in selected} == set(workers(api, namespace))
    api.kube.run(*scale, "--replicas=1")
    wait_for("fewer workers", lambda: len(workers(api, namespace)) == 1)
    assert len(pods(api, namespace, "decode")) == 1, "without a decode worker nothing is served"

    def desired() -> int:
        rows = (api.read(path) or {})["status"]["groups"]
        return int(next(row["desired"] for row in rows if row["role"] == "decode"))

    wait_for("the number in the service's status", lambda: desired() == 1)
    api.kube.run("-n", namespace, "delete", "dis", "demo")
    wait_for("end of all", lambda: not api.items(GROUPS, namespace) and not workers(api, namespace))


def test_kubectl_restarts_one_worker_and_what_the_operator_writes_restarts_none(api: RealApi) -> None:
    namespace = api.namespace()
    api.replica("a", namespace).start()
    deploy(api, namespace)
    before = workers(api, namespace)
    restarted = "demo-w2-0-0"
    assert restarted in before
    api.kube.run("-n", namespace, "rollout", "restart", "statefulset/demo-w2-0")
    wait_for("another pod", lambda: workers(api, namespace).get(restarted, before[restarted]) != before[restarted])
    wait_for("rest", lambda: progress(api, namespace) == "UpToDate")
    after = workers(api, namespace)
    path = f"apis/apps/v1/namespaces/{namespace}/statefulsets/demo-w2-0"
    found = api.read(path)
    assert found is not None
    api.kube.run("-n", namespace, "label", "statefulset/demo-w2-0", "--overwrite", "weft.dev/pool=other")

    def reverted() -> bool:
        item = api.read(path) or {}
        return bool(labels_of(item).get("weft.dev/pool") != "other")

    wait_for("the operator's label", reverted)
    again = api.read(path)
    assert again is not None
    time = "kubectl.kubernetes.io/restartedAt"
    asked = found["spec"]["template"]["metadata"]["annotations"]
    assert again["spec"]["template"]["metadata"]["annotations"][time] == asked[time]
    assert workers(api, namespace) == after
    assert {name: uid for name, uid in after.items() if name != restarted} == {
        name: uid for name, uid in before.items() if name != restarted
    }


@pytest.mark.parametrize("fixed", [True, False])
def test_workers_from_before_there_were_groups_are_taken_over_with_their_pods(api: RealApi, fixed: bool) -> None:
    """They had roles in their names, as workers with fixed roles still have, and others with planning Off."""
    namespace = api.namespace()
    operator = api.replica("a", namespace).start()
    deploy(api, namespace, podTemplates=FIXED_ROLES)
    assert set(workers(api, namespace)) == {"demo-p2-0-0", "demo-d2-0-0"}
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
    if not fixed:
        api.kube.apply(small_service(namespace, planning={"mode": "Off"}))
        del before["decode"]  # its template has no annotation any more
    operator.start()

    def taken_over() -> bool:
        owners = [item["metadata"]["ownerReferences"] for item in api.items("apis/apps/v1/statefulsets", namespace)]
        return len(owners) == len(sets) and all([one["kind"] for one in few] == ["WorkerGroup"] for few in owners)

    wait_for("new owners", taken_over)
    wait_for("rest", lambda: progress(api, namespace) == "UpToDate")
    assert set(workers(api, namespace)) == {"demo-p2-0-0", "demo-d2-0-0"}
    assert {role: pods(api, namespace, role) for role in before} == before, "no pod was restarted"
