"""Workers on several nodes, on a real cluster: they meet, serve, and come back whole when one of them is lost."""

import asyncio
import json

import pytest

from weft_e2e import kube
from weft_e2e.checks import check_session_served
from weft_e2e.kube import Object
from weft_e2e.scenarios.installed import Installed
from weft_e2e.scenarios.manifests import changed, small_service
from weft_e2e.service import Service, condition_words, settled
from weft_e2e.waiting import until
from weft_e2e_tests.test_service_cluster import apply
from weft_operator.api.objects import WORKER_LABEL

# A guard against a test that hangs: every wait has a deadline of its own, and they add up to less.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900, func_only=True)]

SERVED_S = 180.0
"""Several kubelets start, probe and restart these pods in turn; a slow machine must not fail them."""
WORKERS = ("wide-w8-0", "wide-w8-1")


def pods_of(service: Service) -> dict[str, Object]:
    """Return the worker pods that are not on their way out, by name."""
    pods = [*service.pods("prefill"), *service.pods("decode")]
    return {pod["metadata"]["name"]: pod for pod in pods if "deletionTimestamp" not in pod["metadata"]}


def uids(service: Service) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in pods_of(service).items()}


def serves(service: Service, *, without: str = "") -> None:
    """Wait until all is settled and each node of both workers is ready; ``without`` is the uid of a pod that is not."""

    def whole() -> bool:
        pods = pods_of(service)
        ready = {name for name, pod in pods.items() if kube.pod_ready(pod) and pod["metadata"]["uid"] != without}
        return settled(service.conditions()) and ready == {f"{name}-{rank}" for name in WORKERS for rank in (0, 1)}

    def seen() -> str:
        states = {name: kube.pod_ready(pod) for name, pod in pods_of(service).items()}
        return f"{json.dumps(states)} {condition_words(service.object())}"

    until(whole, what="two workers on two nodes each", timeout_s=SERVED_S, last=seen)


def events(service: Service) -> list[str]:
    found = kube.items(service.kube, "events", namespace=service.namespace)
    return [event["message"] for event in found if event["reason"] == "WorkerRestarted"]


def answers(service: Service) -> None:
    with service.reachable() as target:
        asyncio.run(check_session_served(target, deadline_s=90))


def test_workers_on_two_nodes_serve_and_come_back_from_the_loss_of_a_follower(weft: Installed, namespace: str) -> None:
    nodes = kube.items(weft.kube, "nodes", namespace="")
    if len(nodes) < 2:
        pytest.skip("two nodes are needed")
    manifest = changed(
        small_service("wide", gpus=16),
        "spec.capacity.pools",
        [{"name": "h20", "gpuType": "nvidia-h20", "gpusPerNode": 4, "degrees": [8]}],
    )
    service = apply(weft, namespace, manifest)
    serves(service)
    places = {name: pod["spec"]["nodeName"] for name, pod in pods_of(service).items()}
    for name in WORKERS:
        assert places[f"{name}-0"] != places[f"{name}-1"], "one pod on each node"
    groups = kube.items(weft.kube, "workergroups", namespace=namespace)
    assert {group["spec"]["nodesPerWorker"] for group in groups} == {2}
    assert [len(group["status"]["workers"]) for group in groups] == [2], "workers are counted, not pods"
    answers(service)

    (decode,) = {pod["metadata"]["labels"][WORKER_LABEL] for pod in service.pods("decode")}
    (prefill,) = {*WORKERS} - {decode}
    leader, follower = f"{decode}-0", f"{decode}-1"

    # Killed: the engine that leads ends by itself, as engines do, and both begin anew.
    lost = uids(service)[follower]
    weft.kube.kubectl("delete", "pod", follower, "-n", namespace, "--grace-period=0", "--force", "--wait=false")
    serves(service, without=lost)
    answers(service)

    # Asked to go: the other node drains with it, and both are made anew.
    before = uids(service)
    weft.kube.kubectl("delete", "pod", follower, "-n", namespace, "--wait=false")

    def replaced() -> bool:
        now = uids(service)
        return all(name in now and now[name] != before[name] for name in (leader, follower))

    until(replaced, what="two new pods", timeout_s=SERVED_S, last=lambda: f"{before} {uids(service)}")
    serves(service)
    told = f"worker {decode} restarts on all its nodes, because pod {follower} terminates"
    until(lambda: told in events(service), what=told, timeout_s=30, last=lambda: str(events(service)))
    assert uids(service)[f"{prefill}-0"] == before[f"{prefill}-0"], "the other worker is left alone"
    answers(service)
