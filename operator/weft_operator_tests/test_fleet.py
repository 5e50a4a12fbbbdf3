"""Which workers there are, and which are lost."""

from datetime import UTC, datetime, timedelta

from weft_operator.api.objects import Manifest
from weft_operator.workers.fleet import LINGER_S, Worker, live_workers, loss_of, next_loss, parse_name

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pod(name: str, *, deleted: float | None = None, evicted: bool = False) -> Manifest:
    metadata: Manifest = {"name": f"{name}-0", "labels": {"weft.dev/worker": name}}
    if deleted is not None:
        metadata["deletionTimestamp"] = (NOW + timedelta(seconds=deleted)).isoformat().replace("+00:00", "Z")
    reason = "DeletionByTaintManager" if evicted else "EvictionByEvictionAPI"
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": reason}]
    return {"metadata": metadata, "spec": {"nodeName": "node-2"}, "status": {"conditions": conditions}}


def test_names_are_read_back() -> None:
    worker = Worker(role="decode", degree=16, index=12, pool="h20")
    assert parse_name("my-svc", worker.name("my-svc"), "h20") == worker
    assert parse_name("my-svc", "my-svc-prefill", "h20") is None
    assert parse_name("my", "my-svc-d16-12", "h20") is None


def test_only_a_pod_that_nobody_will_end_is_lost() -> None:
    assert loss_of(pod("w"), now=NOW) is None
    assert loss_of(pod("w", deleted=30), now=NOW) is None
    assert loss_of(pod("w", deleted=-LINGER_S), now=NOW) is None
    assert loss_of(pod("w", deleted=-LINGER_S - 1), now=NOW) == "its pod did not stop within the grace period"
    assert "node" in (loss_of(pod("w", deleted=30, evicted=True), now=NOW) or "")
    assert loss_of(pod("w", evicted=True), now=NOW) is None


def test_the_next_check_is_when_a_terminating_pod_counts_as_lost() -> None:
    assert next_loss([pod("a")], now=NOW) is None
    assert next_loss([pod("a", deleted=5), pod("b", deleted=20)], now=NOW) == 5 + LINGER_S
    assert next_loss([pod("a", deleted=5, evicted=True)], now=NOW) is None


def test_live_workers_are_read_from_statefulsets_and_pods() -> None:
    sets = [
        {"metadata": {"name": name, "uid": "u", "labels": {"weft.dev/pool": "h20"}}, "spec": {"template": {}}}
        for name in ("demo-p4-1", "demo-p4-0", "demo-other")
    ]
    found = live_workers("demo", sets, [pod("demo-p4-1", deleted=0, evicted=True)], now=NOW)
    assert [item.name for item in found] == ["demo-p4-0", "demo-p4-1"]
    assert found[0].lost is None
    assert found[1].lost is not None
    assert found[1].node == "node-2"
