"""Which workers there are: lowest indices stay, lost ones are replaced under new names."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from weft_operator.fleet import (
    LINGER_S,
    LiveWorker,
    Worker,
    choose,
    live_workers,
    loss_of,
    next_loss,
    parse_name,
)
from weft_operator.manifest import Manifest
from weft_operator_tests.samples import group

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def live(index: int, *, role: str = "prefill", lost: str | None = None, terminating: bool = False) -> LiveWorker:
    worker = Worker(role=role, degree=4, index=index, pool="h20")  # type: ignore[arg-type]
    name = worker.name("demo")
    return LiveWorker(worker, name=name, uid=f"uid-{name}", terminating=terminating, lost=lost, node="node-1")


def pod(name: str, *, deleted: float | None = None, evicted: bool = False) -> Manifest:
    metadata: Manifest = {"name": f"{name}-0", "labels": {"weft.dev/worker": name}}
    if deleted is not None:
        metadata["deletionTimestamp"] = (NOW + timedelta(seconds=deleted)).isoformat().replace("+00:00", "Z")
    reason = "DeletionByTaintManager" if evicted else "EvictionByEvictionAPI"
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": reason}]
    return {"metadata": metadata, "spec": {"nodeName": "node-2"}, "status": {"conditions": conditions}}


def indices(workers: tuple[Worker, ...]) -> list[int]:
    return [worker.index for worker in workers]


def test_a_new_plan_gets_workers_from_zero() -> None:
    fleet = choose([group("prefill", 4, 2), group("decode", 8, 1)], ())
    assert [worker.name("demo") for worker in fleet.workers] == ["demo-d8-0", "demo-p4-0", "demo-p4-1"]


def test_scaling_down_drops_the_highest_indices() -> None:
    fleet = choose([group("prefill", 4, 1)], [live(0), live(3), live(1)])
    assert indices(fleet.workers) == [0]


def test_a_lost_worker_is_replaced_under_a_new_name() -> None:
    fleet = choose([group("prefill", 4, 2)], [live(0, lost="gone"), live(1)])
    assert indices(fleet.workers) == [1, 2]
    assert [item.name for item in fleet.lost] == ["demo-p4-0"]


def test_a_name_is_not_used_again_while_its_pod_hangs() -> None:
    hanging = Worker(role="prefill", degree=4, index=0, pool="h20")
    fleet = choose([group("prefill", 4, 2)], [live(1)], taken=[hanging])
    assert indices(fleet.workers) == [1, 2]


def test_a_worker_that_is_being_deleted_is_neither_kept_nor_named_again() -> None:
    fleet = choose([group("prefill", 4, 1)], [live(0, terminating=True)])
    assert indices(fleet.workers) == [1]


def test_pools_do_not_share_names() -> None:
    fleet = choose([group("prefill", 4, 1, "a"), group("prefill", 4, 1, "b")], ())
    assert indices(fleet.workers) == [0, 1]
    assert {worker.pool for worker in fleet.workers} == {"a", "b"}


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


def test_the_next_look_is_when_a_terminating_pod_counts_as_lost() -> None:
    assert next_loss([pod("a")], now=NOW) is None
    assert next_loss([pod("a", deleted=5), pod("b", deleted=20)], now=NOW) == 5 + LINGER_S
    assert next_loss([pod("a", deleted=5, evicted=True)], now=NOW) is None


def test_live_workers_are_read_from_statefulsets_and_pods() -> None:
    sets = [
        {"metadata": {"name": name, "uid": "u", "labels": {"weft.dev/pool": "h20"}}}
        for name in ("demo-p4-1", "demo-p4-0", "demo-other")
    ]
    found = live_workers("demo", sets, [pod("demo-p4-1", deleted=0, evicted=True)], now=NOW)
    assert [item.name for item in found] == ["demo-p4-0", "demo-p4-1"]
    assert found[0].lost is None
    assert found[1].lost is not None
    assert found[1].node == "node-2"


LIVES = st.lists(
    st.builds(
        live,
        st.integers(0, 12),
        role=st.sampled_from(["prefill", "decode"]),
        lost=st.sampled_from([None, None, "gone"]),
        terminating=st.booleans(),
    ),
    unique_by=lambda item: item.name,
    max_size=10,
)


@settings(max_examples=200)
@given(lives=LIVES, prefill=st.integers(0, 6), decode=st.integers(0, 6))
def test_choosing_gives_the_plan_and_stays(lives: list[LiveWorker], prefill: int, decode: int) -> None:
    groups = [group(role, 4, count) for role, count in (("prefill", prefill), ("decode", decode)) if count]
    fleet = choose(groups, lives)
    names = [worker.name("demo") for worker in fleet.workers]
    assert len(set(names)) == len(names) == prefill + decode
    given_up = {item.name for item in lives if item.lost or item.terminating}
    assert not given_up & set(names)
    # Carried out, the same plan chooses the same workers again.
    after = [
        LiveWorker(worker, worker.name("demo"), "u", terminating=False, lost=None, node="") for worker in fleet.workers
    ]
    assert choose(groups, after).workers == fleet.workers
