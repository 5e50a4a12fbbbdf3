"""A real HorizontalPodAutoscaler on a WorkerGroup: with planning Off its number is the one that counts."""

from collections.abc import Iterator

import pytest

from weft_operator.api.objects import Manifest, condition_of
from weft_operator_tests.api import RealApi, small_service
from weft_operator_tests.cluster import wait_for
from weft_operator_tests.test_groups_apiserver import GROUPS, progress, the_group, workers

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400, func_only=True)]


@pytest.fixture(autouse=True)
def ended(api: RealApi) -> Iterator[None]:
    """End the operators of each test."""
    yield
    api.heal()


def autoscaler(namespace: str, group: str, *, least: int, most: int) -> Manifest:
    """Return one that needs no metrics as long as the number is outside of its bounds."""
    target = {"apiVersion": "weft.dev/v1alpha1", "kind": "WorkerGroup", "name": group}
    use = {"type": "Utilization", "averageUtilization": 80}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "workers", "namespace": namespace},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": least,
            "maxReplicas": most,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": use}}],
        },
    }


def test_an_autoscaler_sets_the_number_of_a_group_and_nothing_fights_it(api: RealApi) -> None:
    namespace = api.namespace()
    api.replica("a", namespace).start()
    api.kube.apply(small_service(namespace, planning={"mode": "Off"}))
    wait_for("workers", lambda: progress(api, namespace) == "UpToDate", timeout=120)
    group = the_group(api, namespace)
    name, planned = group["metadata"]["name"], group["spec"]["replicas"]
    before = workers(api, namespace)
    many = planned + 2
    api.kube.apply(autoscaler(namespace, name, least=many, most=many + 2))

    def asked() -> Manifest:
        return the_group(api, namespace)

    wait_for("the autoscaler's number", lambda: asked()["spec"]["replicas"] == many)
    wait_for("its workers", lambda: len(workers(api, namespace)) == many)
    assert before.items() <= workers(api, namespace).items(), "those that were there stay"
    wait_for("rest", lambda: progress(api, namespace) == "UpToDate")
    path = f"apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers/workers"

    def able() -> bool:
        body = api.read(path) or {}
        scales = condition_of(body, "AbleToScale")
        return scales is not None and scales["status"] == "True" and body["status"]["currentReplicas"] == many

    wait_for("the autoscaler to read the number at /scale", able)
    # A pass over the whole service, for another reason, leaves the number alone.
    generation = asked()["metadata"]["generation"]
    api.kube.apply(small_service(namespace, planning={"mode": "Off"}, coordinator={"replicas": 2}))
    service = f"apis/weft.dev/v1alpha1/namespaces/{namespace}/disagginferenceservices/demo"

    def heeded() -> bool:
        body = api.read(service) or {}
        same = body["status"]["observedGeneration"] == body["metadata"]["generation"]
        return bool(same and progress(api, namespace) == "UpToDate")

    wait_for("the changed service", heeded)
    deployment = f"apis/apps/v1/namespaces/{namespace}/deployments/demo"
    wait_for("what was changed", lambda: (api.read(deployment) or {})["spec"]["replicas"] == 2)
    assert (asked()["spec"]["replicas"], asked()["metadata"]["generation"]) == (many, generation)
    writers = {
        entry["manager"]
        for entry in asked()["metadata"]["managedFields"]
        if "f:replicas" in (entry.get("fieldsV1") or {}).get("f:spec", {})
    }
    assert writers == {"kube-controller-manager"}, "nobody else holds the number"
    api.kube.apply(autoscaler(namespace, name, least=1, most=1))
    wait_for("the lower number", lambda: asked()["spec"]["replicas"] == 1)
    wait_for("one worker", lambda: len(workers(api, namespace)) == 1)
    api.kube.run("-n", namespace, "delete", "hpa", "workers")
    api.kube.run("-n", namespace, "delete", "dis", "demo")
    wait_for("end of all", lambda: not api.items(GROUPS, namespace) and not workers(api, namespace))
