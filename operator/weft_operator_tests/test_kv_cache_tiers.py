"""The condition KVCacheTiers: what is wrong with a tier, where, and what helps; a healthy start is no alarm."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from weft_core.heartbeat import WorkerRecord
from weft_core.kv_tiers import (
    DISK_FAILED,
    DISK_FULL,
    DISK_SILENT,
    DISK_SLOW,
    EVENTS_BLOCK_SIZE,
    EVENTS_DIFFER,
    EVENTS_LOST,
    EVENTS_MISSING,
)
from weft_operator.api.capacity import Pool
from weft_operator.api.kv_cache import KvCache
from weft_operator.api.objects import POOL_LABEL, WORKER_LABEL, Manifest
from weft_operator.status.kv_cache_tiers import (
    RECHECK_S,
    START_S,
    TierFacts,
    TierPod,
    check_tiers,
    next_check_s,
    tier_pods,
)
from weft_operator.workers.node_capacity import largest_memory, pod_memory
from weft_operator_tests.valid import service
from weft_operator_tests.world import World

GI = 2**30
CPU = KvCache.model_validate({"cpu": {"size": "200Gi"}})
DISK = KvCache.model_validate({"cpu": {"size": "200Gi"}, "disk": {"size": "2Ti"}})
CLAIM = KvCache.model_validate({"cpu": {"size": "200Gi"}, "disk": {"size": "2Ti", "claim": "kv"}})
NAMES = frozenset({"a", "b"})


def pod(worker: str, *, node: str = "n1", age_s: float = 2 * START_S, memory: int = 300 * GI) -> TierPod:
    return TierPod(worker=worker, pool="h100", node=node, age_s=age_s, memory=memory)


def beat(worker: str, *faults: tuple[str, str]) -> WorkerRecord:
    return WorkerRecord(worker, "decode", "http://x", 1, 1, node=f"node-{worker}", kv_tier_faults=faults)


def claim(*modes: str, phase: str = "Bound") -> Manifest:
    return {"spec": {"accessModes": list(modes)}, "status": {"phase": phase}}


READY = TierFacts(ready=NAMES, planned=NAMES, pods=(pod("a"), pod("b")))
UNSCHEDULED = replace(READY, ready=frozenset({"a"}), pods=(pod("a"), pod("b", node="")), memory={"h100": 250 * GI})
WAITING = replace(READY, ready=frozenset(), claim_known=True, pods=(pod("a", node=""), pod("b", node="")))
SPREAD = replace(WAITING, ready=frozenset({"a"}), pods=(pod("a", node="n1"), pod("b", node="n2")))


def sick(*faults: tuple[str, str]) -> TierFacts:
    return replace(READY, heartbeats={"a": beat("a"), "b": beat("b", *faults)})


FOUND: Mapping[str, tuple[KvCache | None, TierFacts, tuple[str, ...]]] = {
    "TiersInUse": (CPU, READY, ("CPU memory (200Gi each)",)),
    "NotYetReady": (CPU, replace(READY, ready=frozenset()), ()),
    "TierTooLarge": (CPU, UNSCHEDULED, ("pool h100", "300 GiB", "200 of them", "has 250", "spec.kvCache.cpu.size")),
    "ClaimMissing": (CLAIM, WAITING, ("PersistentVolumeClaim kv", "does not exist")),
    "ClaimNotBound": (CLAIM, replace(WAITING, claim=claim("ReadWriteMany", phase="Pending")), ("kv", "is Pending")),
    "ClaimAccessMode": (CLAIM, replace(SPREAD, claim=claim("ReadWriteOnce")), ("2 workers on 2 nodes",)),
    "DiskFull": (DISK, sick((DISK_FULL, "")), ("b on node node-b", "spec.kvCache.disk.size")),
    "DiskSlow": (DISK, sick((DISK_SLOW, "")), ("b on node node-b", "half a second")),
    "DiskUnavailable": (DISK, sick((DISK_FAILED, "Stale file handle")), ("b on node node-b", "Stale file handle")),
    "EventsFollowed": (None, READY, ()),
    "EventsMissing": (None, sick((EVENTS_MISSING, "")), ("b on node node-b publishes no KV events",)),
    "BlockSizeDiffers": (CPU, sick((EVENTS_BLOCK_SIZE, "16 tokens")), ("b on node node-b", "those of 16 tokens count")),
    "EventsDisagree": (CPU, sick((EVENTS_DIFFER, "")), ("b on node node-b", "without the prompts that it serves")),
    "EventsLost": (None, sick((EVENTS_LOST, "")), ("b on node node-b", "out of order", "estimate meanwhile")),
}
"""A state of a service for each reason, and words of its message."""


@pytest.mark.parametrize("reason", list(FOUND))
def test_each_reason_says_what_is_wrong_and_where(reason: str) -> None:
    cache, facts, words = FOUND[reason]
    value = check_tiers(cache, facts)
    assert value.reason == reason
    well = {"TiersInUse": "True", "EventsFollowed": "True", "NotYetReady": "Unknown"}
    assert value.status == well.get(reason, "False")
    assert [word for word in words if word not in value.message] == [], value.message


@pytest.mark.parametrize("reason", ["TierTooLarge", "ClaimMissing", "ClaimNotBound", "ClaimAccessMode"])
def test_a_start_is_given_time(reason: str) -> None:
    cache, facts, _ = FOUND[reason]
    young = replace(facts, pods=tuple(replace(one, age_s=START_S - 5) for one in facts.pods))
    assert check_tiers(cache, young).status != "False"
    assert next_check_s(cache, young) == pytest.approx(5.0), "it is looked at again when the time is over"


@pytest.mark.parametrize("reason", ["TierTooLarge", "ClaimMissing", "ClaimNotBound", "ClaimAccessMode"])
def test_workers_that_all_run_show_that_it_fits(reason: str) -> None:
    cache, facts, _ = FOUND[reason]
    assert check_tiers(cache, replace(facts, ready=NAMES)).reason == "TiersInUse"


def test_a_tier_is_too_large_only_where_the_pod_would_fit_without_it() -> None:
    assert check_tiers(CPU, replace(UNSCHEDULED, memory={"h100": 64 * GI})).status == "True", "the node is too small"
    assert check_tiers(CPU, replace(UNSCHEDULED, memory={"h100": 300 * GI})).status == "True", "others have the memory"
    assert check_tiers(CPU, replace(UNSCHEDULED, memory={})).status == "True", "no node is known"
    on_node = replace(UNSCHEDULED, pods=(pod("a"), pod("b")))
    assert check_tiers(CPU, on_node).status == "True", "it is scheduled, so something else keeps it"


def test_of_a_worker_on_two_nodes_each_pod_has_half_of_the_tier() -> None:
    both = (pod("a", node="", memory=150 * GI), pod("a", node="", memory=150 * GI))
    facts = TierFacts(ready=frozenset(), planned=frozenset({"a"}), pods=both, memory={"h100": 100 * GI})
    assert "100 of them for spec.kvCache.cpu" in check_tiers(CPU, facts).message


@pytest.mark.parametrize(
    ("found", "facts", "reason"),
    [
        (claim("ReadWriteMany"), SPREAD, "TiersInUse"),
        (claim("ReadWriteOnce", "ReadWriteMany"), SPREAD, "TiersInUse"),
        (claim("ReadWriteOnce"), replace(SPREAD, pods=(pod("a"), pod("b"))), "TiersInUse"),
        (claim("ReadWriteOncePod"), replace(SPREAD, pods=(pod("a"), pod("b", node=""))), "ClaimAccessMode"),
        (claim("ReadWriteOncePod"), replace(WAITING, planned=frozenset({"a"}), pods=(pod("a"),)), "NotYetReady"),
        (claim("ReadOnlyMany"), WAITING, "ClaimAccessMode"),
        (claim("ReadWriteMany", phase="Lost"), WAITING, "ClaimNotBound"),
        ({}, WAITING, "ClaimNotBound"),
    ],
)
def test_claims(found: Manifest, facts: TierFacts, reason: str) -> None:
    assert check_tiers(CLAIM, replace(facts, claim=found)).reason == reason


def test_nothing_is_said_of_a_claim_that_may_not_be_read() -> None:
    assert check_tiers(CLAIM, replace(WAITING, claim_known=False)).reason == "NotYetReady"


def test_the_worst_fault_of_all_disks_is_named_with_all_that_have_it() -> None:
    names = frozenset(f"w{number}" for number in range(6))
    beats = {name: beat(name, (DISK_SLOW, ""), (DISK_SILENT, "kv-disk does not answer")) for name in names}
    facts = TierFacts(ready=names, planned=names, heartbeats=beats)
    value = check_tiers(DISK, facts)
    assert value.reason == "DiskUnavailable"
    assert "w0 on node node-w0, w1 on node node-w1, w2 on node node-w2 and 3 more" in value.message
    assert "kv-disk does not answer" in value.message


def test_faults_of_former_workers_and_of_services_without_files_do_not_count() -> None:
    beats = {"gone": beat("gone", (DISK_FULL, ""))}
    assert check_tiers(DISK, replace(READY, heartbeats=beats)).status == "True"
    assert check_tiers(CPU, sick((DISK_FULL, ""))).status == "True"


def test_a_disk_that_fails_comes_before_events() -> None:
    facts = sick((EVENTS_MISSING, ""), (DISK_FULL, ""))
    assert check_tiers(DISK, facts).reason == "DiskFull"


def test_disks_and_events_are_looked_at_again_and_memory_is_not() -> None:
    assert next_check_s(DISK, READY) == RECHECK_S
    assert next_check_s(None, READY, events=True) == RECHECK_S
    assert next_check_s(CPU, READY, events=True) == RECHECK_S
    assert next_check_s(CPU, READY) is None


def test_pods_are_read_as_the_scheduler_sees_them() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    made = (now - timedelta(seconds=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
    container = {"resources": {"requests": {"memory": "2Gi"}}}
    spec = {
        "nodeName": "n1",
        "initContainers": [
            {"restartPolicy": "Always", "resources": {"limits": {"memory": "1Gi"}}},
            {"resources": {"requests": {"memory": "2560Mi"}}},
        ],
        "containers": [container],
    }
    labels = {WORKER_LABEL: "a", POOL_LABEL: "h100"}
    metadata: dict[str, Any] = {"name": "a-0", "labels": labels, "creationTimestamp": made}
    worker = {"metadata": metadata, "spec": spec}
    leaving = {"metadata": {**metadata, "deletionTimestamp": made}, "spec": spec}
    coordinator = {"metadata": {"name": "c", "labels": {}}}
    assert tier_pods([worker, leaving, coordinator], now=now) == (
        TierPod(worker="a", pool="h100", node="n1", age_s=30.0, memory=int(3.5 * GI)),
    )
    assert pod_memory({"containers": [container]}) == 2 * GI


def test_the_largest_node_of_each_pool_counts() -> None:
    pools = [Pool(name=name, gpu_type="nvidia-h20", node_selector={"pool": name}) for name in ("x", "y")]
    nodes = [
        {"metadata": {"name": name, "labels": {"pool": "x"}}, "status": {"allocatable": {"memory": size}}}
        for name, size in (("a", "64Gi"), ("b", "131072Ki"))
    ]
    assert largest_memory(pools, nodes) == {"x": 64 * GI}


async def test_a_service_without_tiers_has_no_such_condition_and_one_with_them_has_it_while_they_are_there() -> None:
    world = World()
    await world.until_quiet()
    assert "KVCacheTiers" not in conditions(world)
    world.cluster.change(kvCache={"cpu": {"size": "64Gi"}})
    await world.until_quiet()
    assert conditions(world)["KVCacheTiers"] == ("True", "TiersInUse")
    del world.cluster.service["spec"]["kvCache"]
    world.cluster.change()
    await world.until_quiet()
    assert "KVCacheTiers" not in conditions(world)


async def test_a_full_disk_is_an_event_and_its_end_is_seen() -> None:
    world = World()
    pools = [{**pool, "degrees": [4, 8]} for pool in service()["spec"]["capacity"]["pools"]]
    capacity = {**service()["spec"]["capacity"], "pools": pools}
    world.cluster.change(kvCache={"cpu": {"size": "64Gi"}, "disk": {"size": "1Ti"}}, capacity=capacity)
    await world.until_quiet()
    assert conditions(world)["KVCacheTiers"] == ("True", "TiersInUse")
    name = next(iter(world.cluster.names("StatefulSet")))
    world.heartbeats[name] = WorkerRecord(name, "decode", "http://x", 1, 1, kv_tier_faults=((DISK_FULL, ""),))
    await world.until_quiet()
    assert conditions(world)["KVCacheTiers"] == ("False", "DiskFull")
    assert any((event.reason, event.type) == ("DiskFull", "Warning") for event in world.cluster.events)
    world.heartbeats.clear()
    await world.until_quiet()
    assert conditions(world)["KVCacheTiers"] == ("True", "TiersInUse")


async def test_events_that_stop_are_a_condition_of_a_service_without_tiers() -> None:
    world = World()
    world.cluster.change(engine={**service()["spec"]["engine"], "kvEvents": "Enabled"})
    await world.until_quiet()
    assert conditions(world)["KVCacheTiers"] == ("True", "EventsFollowed")
    name = next(iter(world.cluster.names("StatefulSet")))
    world.heartbeats[name] = WorkerRecord(name, "decode", "http://x", 1, 1, kv_tier_faults=((EVENTS_MISSING, ""),))
    await world.until_quiet()
    assert conditions(world)["KVCacheTiers"] == ("False", "EventsMissing")


def conditions(world: World) -> dict[str, tuple[Any, Any]]:
    found = world.cluster.service["status"]["conditions"]
    return {item["type"]: (item["status"], item["reason"]) for item in found}
