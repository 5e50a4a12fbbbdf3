"""Layouts on a real cluster: prefill and decode on nodes of different GPUs, and workers that do both."""

import asyncio
import json

import pytest

from weft_e2e.checks import check_history_read, check_session_served, check_tokens_computed_once
from weft_e2e.metrics import growth, kv_flow
from weft_e2e.scenarios.installed import Installed
from weft_e2e.scenarios.manifests import changed, small_service
from weft_e2e.service import component_of
from weft_e2e_tests.test_service_cluster import applied

# A guard against a test that hangs: every wait has a deadline of its own, and they add up to less.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]


def test_prefill_and_decode_run_on_pools_of_different_gpus(weft: Installed, namespace: str) -> None:
    nodes = [
        node["metadata"]["name"] for node in json.loads(weft.kube.kubectl("get", "nodes", "-o", "json").stdout)["items"]
    ]
    if len(nodes) < 2:
        pytest.skip("two nodes are needed")
    pool = {"gpusPerNode": 8, "gpus": 2, "degrees": [1, 2]}
    manifest = changed(
        small_service("pools"),
        "spec.capacity.pools",
        [
            {"name": name, "gpuType": gpu, "roles": [role], "pricePerGpuHour": price, **pool}
            | {"nodeSelector": {"kubernetes.io/hostname": node}}
            for name, gpu, role, price, node in (
                ("fast", "nvidia-h100", "prefill", 6.0, nodes[0]),
                ("slow", "nvidia-h20", "decode", 2.5, nodes[1]),
            )
        ],
    )
    manifest = changed(changed(manifest, "spec.capacity.gpus", 4), "spec.planning.budgetPerHour", 20)
    service = applied(weft, namespace, manifest)

    plan = service.plan()
    assert {(group.role, group.pool) for group in plan.groups} == {("prefill", "fast"), ("decode", "slow")}
    price = sum(group.gpus * (6.0 if group.pool == "fast" else 2.5) for group in plan.groups)
    assert plan.predicted.cost_per_hour == pytest.approx(price)
    placed = {component_of(pod): pod["spec"]["nodeName"] for pod in service.pods()}
    assert (placed["prefill"], placed["decode"]) == (nodes[0], nodes[1])
    before = service.metrics_pages()
    with service.reachable() as target:
        transcript = asyncio.run(check_session_served(target, deadline_s=60))
    later = [r for r in transcript.records if r.index and r.route == "remote"]
    assert later, [(r.route, r.reason) for r in transcript.records]
    check_history_read(before, service.metrics_pages(), remote_later_rounds=len(later))


def test_a_co_located_service_is_ready_and_serves_without_prefill_workers(weft: Installed, namespace: str) -> None:
    manifest = changed(small_service("together", decode=(2, 2)), "spec.planning.layouts", ["colocated"])
    service = applied(weft, namespace, manifest)

    plan = service.plan()
    assert plan.layout == "colocated"
    assert {component_of(pod) for pod in service.pods()} == {"coordinator", "decode"}
    assert len(service.worker_uids()) == 2
    before = service.metrics_pages()
    with service.reachable() as target:
        transcript = asyncio.run(check_session_served(target, deadline_s=60))
    after = service.metrics_pages()
    assert {(r.route, r.reason) for r in transcript.records} == {("local", "colocated")}
    check_tokens_computed_once(before, after, transcript.records)
    flow = kv_flow(growth(before, after))
    assert (flow.prefill_to_decode_bytes, flow.decode_to_prefill_bytes) == (0, 0)
