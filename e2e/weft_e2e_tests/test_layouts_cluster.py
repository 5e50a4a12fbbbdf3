"""Layouts on a real cluster: groups of one role on nodes of different GPUs, and workers that do both phases."""

import asyncio

import pytest

from weft_e2e.checks import (
    check_history_read,
    check_no_silent_failures,
    check_ready,
    check_session_served,
    check_tokens_computed_once,
)
from weft_e2e.checks.sessions import FOUR_ROUNDS
from weft_e2e.metrics import growth, kv_flow
from weft_e2e.replay.sessions import PlannedSession
from weft_e2e.scenarios.installed import Installed
from weft_e2e.scenarios.manifests import changed, small_service
from weft_e2e.service import component_of
from weft_e2e_tests.test_service_cluster import READY_S, answers_are_right, applied, patch, under_load
from weft_operator.api.objects import ROLE_LABEL, WORKER_LABEL, labels_of

# A guard against a test that hangs: every wait has a deadline of its own, and they add up to less.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]

BOTH = {"symmetric": ["both", "both"], "hybrid": ["both", "decode", "prefill"]}
"""The roles of a worker on each GPU."""
SESSIONS = (PlannedSession("one", 0.0, FOUR_ROUNDS.rounds), PlannedSession("two", 0.0, FOUR_ROUNDS.rounds))


def test_workers_of_one_role_differ_in_degree_and_pool(weft: Installed, namespace: str) -> None:
    nodes = weft.kube.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").stdout.split()
    if len(nodes) < 2:
        pytest.skip("two nodes are needed")
    fast, slow = nodes[:2]
    manifest = changed(
        small_service("pools", decode=(2, 2), gpus=4),
        "spec.capacity.pools",
        [
            {
                "name": "fast",
                "gpuType": "nvidia-h100",
                "gpus": 2,
                "degrees": [1],
                "pricePerGpuHour": 6.0,
                "nodeSelector": {"kubernetes.io/hostname": fast},
            },
            {
                "name": "slow",
                "gpuType": "nvidia-h20",
                "gpus": 2,
                "degrees": [2],
                "roles": ["decode"],
                "pricePerGpuHour": 2.5,
                "nodeSelector": {"kubernetes.io/hostname": slow},
            },
        ],
    )
    manifest = changed(
        changed(manifest, "spec.planning.budgetPerHour", 20),
        "spec.routing",
        {"policy": "remote-jsq", "binding": "round-robin"},
    )
    service = applied(weft, namespace, manifest)

    plan = service.plan()
    assert {(group.role, group.degree, group.replicas, group.pool) for group in plan.groups} == {
        ("prefill", 1, 1, "fast"),
        ("decode", 1, 1, "fast"),
        ("decode", 2, 1, "slow"),
    }
    assert plan.predicted.cost_per_hour == pytest.approx(2 * 6.0 + 2 * 2.5)
    placed = {
        (component_of(pod), pod["spec"]["nodeName"]) for pod in service.pods() if component_of(pod) != "coordinator"
    }
    assert placed == {("prefill", fast), ("decode", fast), ("decode", slow)}
    before = service.metrics_pages()
    with service.reachable() as target:
        first, second = (asyncio.run(check_session_served(target, session=named, deadline_s=60)) for named in SESSIONS)
    records = [*first.records, *second.records]
    decode = {pod["metadata"]["labels"][WORKER_LABEL] for pod in service.pods("decode")}
    assert "pools-w2-0" in decode
    assert {r.worker for r in records} == decode, "decode workers of both groups serve"
    later = [r for r in records if r.index and r.route == "remote"]
    assert {r.worker for r in later} == decode, [(r.route, r.reason) for r in records]
    check_history_read(before, service.metrics_pages(), remote_later_rounds=len(later))


def test_a_service_loses_its_prefill_workers_under_load_and_serves_without(weft: Installed, namespace: str) -> None:
    manifest = changed(
        small_service("together", decode=(2, 2)),
        "spec.capacity.pools",
        [{"name": "h20", "gpuType": "nvidia-h20", "degrees": [1]}],
    )
    service = applied(weft, namespace, manifest)
    before = service.worker_uids()
    with under_load(service) as load:
        patch(service, manifest, "spec.planning.layouts", ["colocated"])
        check_ready(service, timeout_s=READY_S, without=before.values())
    served, failed = check_no_silent_failures(load.records)
    assert served > failed
    answers_are_right(load)

    assert service.plan().layout == "colocated"
    assert {component_of(pod) for pod in service.pods()} == {"coordinator", "decode"}
    assert len(service.worker_uids()) == 2
    assert set(service.worker_uids()) < set(before), "workers that stay keep their names"
    pages = service.metrics_pages()
    with service.reachable(run="without-") as target:
        transcript = asyncio.run(check_session_served(target, deadline_s=60))
    after = service.metrics_pages()
    assert {(r.route, r.reason) for r in transcript.records} == {("local", "colocated")}
    check_tokens_computed_once(pages, after, transcript.records)
    flow = kv_flow(growth(pages, after))
    assert (flow.prefill_to_decode_bytes, flow.decode_to_prefill_bytes) == (0, 0)


@pytest.mark.parametrize("layout", BOTH)
def test_a_layout_with_workers_of_both_roles_is_planned_and_serves(
    layout: str, weft: Installed, namespace: str
) -> None:
    roles = BOTH[layout]
    manifest = small_service("shared", gpus=len(roles))
    manifest = changed(manifest, "spec.capacity.pools", [{"name": "h20", "gpuType": "nvidia-h20", "degrees": [1]}])
    service = applied(weft, namespace, changed(manifest, "spec.planning", {"layouts": [layout]}))

    assert service.plan().layout == layout
    workers = [pod for pod in service.pods() if WORKER_LABEL in labels_of(pod)]
    assert sorted(labels_of(pod)[ROLE_LABEL] for pod in workers) == roles
    use = service.object()["status"]["plan"]["predicted"]["use"]
    assert {one["role"] for one in use} == set(roles)
    before = service.metrics_pages()
    with service.reachable() as target:
        served = [asyncio.run(check_session_served(target, session=one, deadline_s=60)) for one in SESSIONS]
    records = [record for transcript in served for record in transcript.records]
    assert {record.worker for record in records} <= {
        labels_of(pod)[WORKER_LABEL] for pod in workers if labels_of(pod)[ROLE_LABEL] != "prefill"
    }
    check_tokens_computed_once(before, service.metrics_pages(), records)
