"""Workers on two nodes with a real scheduler and fake nodes: never both pods on one, and none held for nothing."""

from collections.abc import Iterator

import pytest

from weft_operator.api.objects import WORKER_LABEL, Manifest, labels_of, name_of
from weft_operator_tests.api import RealApi, small_service
from weft_operator_tests.cluster import condition, wait_for

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400, func_only=True)]

OTHERS = ("fake-2", "fake-3", "fake-4")
WORKERS = {"demo-w8-0", "demo-w8-1"}


@pytest.fixture(autouse=True)
def ended(api: RealApi) -> Iterator[None]:
    """End the operators of each test, and open the nodes again."""
    yield
    api.heal()
    api.kube.run("uncordon", *OTHERS)


def clear_nodes(api: RealApi) -> None:
    """Remove the pods that tests before have left on the nodes: this one counts what is free there."""
    everywhere = ("--all", "--all-namespaces", "--wait=false")
    api.kube.run("delete", "statefulsets,deployments,jobs", *everywhere)
    api.kube.run("delete", "pods", *everywhere, "--force", "--grace-period=0")
    wait_for("nodes without pods", lambda: not (api.read("api/v1/pods") or {}).get("items"), timeout=60)


def pods(api: RealApi, namespace: str) -> list[Manifest]:
    found = api.items("api/v1/pods", namespace)
    return [pod for pod in found if WORKER_LABEL in labels_of(pod) and "deletionTimestamp" not in pod["metadata"]]


def places(api: RealApi, namespace: str) -> dict[str, list[str]]:
    """Return the nodes of each worker's pods; no two of one worker may share one."""
    found: dict[str, list[str]] = {}
    for pod in pods(api, namespace):
        if node := pod["spec"].get("nodeName"):
            found.setdefault(labels_of(pod)[WORKER_LABEL], []).append(node)
    assert all(len(nodes) == len(set(nodes)) for nodes in found.values()), found
    return found


def sizes(api: RealApi, namespace: str) -> dict[str, int]:
    sets = api.items("apis/apps/v1/statefulsets", namespace)
    return {name_of(item): item["spec"]["replicas"] for item in sets}


def test_a_worker_that_finds_one_node_of_two_gives_it_back_and_comes_up_when_there_are_two(api: RealApi) -> None:
    """The one node that is open has room for all four pods, and may have one of each worker."""
    clear_nodes(api)
    api.kube.run("cordon", *OTHERS)
    namespace = api.namespace()
    api.replica("a", namespace).start()
    body = small_service(namespace)
    body["spec"]["capacity"]["pools"][0] |= {"gpusPerNode": 4, "degrees": [8]}
    del body["spec"]["capacity"]["pools"][0]["rdma"]
    body["spec"]["rollout"] = {"drainTimeout": "1s", "unschedulableTimeout": "10s"}
    api.kube.apply(body)
    half = {name: ["fake-1"] for name in WORKERS}
    wait_for("one pod of each worker on the open node", lambda: places(api, namespace) == half, timeout=120)
    wait_for("a worker without pods", lambda: 0 in sizes(api, namespace).values(), timeout=60)
    wait_for("GPUs that are free", lambda: places(api, namespace) != half, timeout=60)

    def told() -> list[str]:
        found = api.items("api/v1/events", namespace)
        return [item["message"] for item in found if item["reason"] == "WorkerReleased"]

    assert "it releases them and tries again later" in wait_for("the event", told, timeout=60)[0]
    api.kube.run("uncordon", "fake-2")

    def whole() -> bool:
        return {name: sorted(nodes) for name, nodes in places(api, namespace).items()} == {
            name: ["fake-1", "fake-2"] for name in WORKERS
        }

    wait_for("both workers on two nodes each", whole, timeout=120)
    path = f"apis/weft.dev/v1alpha1/namespaces/{namespace}/disagginferenceservices/demo"
    wait_for("rest", lambda: condition(api.read(path), "Progressing").get("reason") == "UpToDate", timeout=60)
