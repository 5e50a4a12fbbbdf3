"""Liveness: heartbeats, silence, probes; and that a silent store is no dead worker."""

import asyncio
from dataclasses import replace

import pytest

from weft_core.heartbeat import WorkerRecord
from weft_core.layouts import ROLES
from weft_core.records import Refusal
from weft_router.state.registry import MOST_LOG_TIMES, PROBE_EVERY_S, REPUBLISH_EVERY_S, SILENT_S, Health, Registry
from weft_router.state.replay_filter import REMEMBERED_S, ReplayFilter
from weft_router.state.store import Snapshot, StoreDownError
from weft_router_tests.passing_store import PassingStore


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Scripted(PassingStore):
    """A store that shows what a test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[str, WorkerRecord] = {}
        self.down = False
        self.epoch = "e1"
        self.withdrawn: list[str] = []
        self.refused: tuple[tuple[str, Refusal], ...] = ()

    async def snapshot(self) -> Snapshot:
        if self.down:
            raise StoreDownError("scripted")
        return Snapshot(tuple(self.records.values()), self.epoch, self.refused)

    async def withdraw(self, worker: str) -> None:
        self.withdrawn.append(worker)


class World:
    """A registry with one decode worker, a clock and a probe that answer as told."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = Scripted()
        self.health: Health = "ready"
        self.probes = 0
        self.registry = Registry(self.store, self._probe, clock=self.clock)
        self.record = WorkerRecord("d0", "decode", "http://x", 1, 1000, instance_id="i", seq=1, ready=True)
        self.store.records["d0"] = self.record

    async def _probe(self, _: str) -> Health:
        self.probes += 1
        return self.health

    def beat(self, **changes: object) -> None:
        self.record = replace(self.record, seq=self.record.seq + 1, **changes)  # type: ignore[arg-type]
        self.store.records["d0"] = self.record

    async def tick(self, seconds: float) -> None:
        self.clock.now += seconds
        await self.registry.refresh()
        for _ in range(5):
            await asyncio.sleep(0)

    @property
    def ready(self) -> list[str]:
        return [record.worker for record in self.registry.ready("decode")]


async def test_heartbeats_decide_while_they_come() -> None:
    world = World()
    await world.tick(0)
    assert world.ready == ["d0"]
    world.beat(ready=False)
    await world.tick(0.5)
    assert world.ready == []
    assert [record.worker for record in world.registry.known("decode")] == ["d0"]
    world.beat(ready=True, draining=True)
    await world.tick(0.5)
    assert world.ready == []
    assert world.probes == 0


async def test_silence_is_probed_and_two_dead_answers_end_a_worker() -> None:
    world = World()
    lost: list[str] = []
    await world.tick(0)
    world.registry._on_gone = lambda record: lost.append(record.worker)
    world.health = "dead"
    await world.tick(SILENT_S + 0.1)
    assert (world.ready, lost) == ([], [])
    await world.tick(PROBE_EVERY_S)
    assert lost == ["d0"]
    assert world.store.withdrawn == ["d0"]
    assert world.registry.known("decode") == []


async def test_a_lost_or_emptied_store_changes_nothing_for_workers_that_answer() -> None:
    world = World()
    await world.tick(0)
    world.store.down = True
    for _ in range(10):
        await world.tick(PROBE_EVERY_S)
    assert world.ready == ["d0"]
    assert not world.registry.store_up
    assert world.probes >= 7
    world.store.down = False
    world.store.records.clear()
    await world.tick(PROBE_EVERY_S)
    assert world.ready == ["d0"]


async def test_a_worker_that_is_alive_but_not_ready_gets_nothing_and_is_kept() -> None:
    world = World()
    await world.tick(0)
    world.health = "busy"
    for _ in range(5):
        await world.tick(SILENT_S)
    assert world.ready == []
    assert [record.worker for record in world.registry.known("decode")] == ["d0"]
    world.health = "ready"
    await world.tick(PROBE_EVERY_S)
    assert world.ready == ["d0"]


async def test_a_reported_failure_takes_a_worker_out_until_a_probe_reaches_it() -> None:
    world = World()
    await world.tick(0)
    world.health = "dead"
    world.registry.report_failure("d0")
    assert world.registry.get("d0") is None
    world.beat()
    await world.tick(0.1)
    assert world.ready == []
    world.health = "ready"
    world.beat()
    await world.tick(PROBE_EVERY_S)
    assert world.ready == ["d0"]
    world.registry.report_failure("nobody")


async def test_a_restarted_worker_is_a_new_one() -> None:
    world = World()
    lost: list[str] = []
    await world.tick(0)
    world.registry._on_gone = lambda record: lost.append(record.worker)
    world.beat(instance_id="j")
    await world.tick(0.5)
    assert lost == ["d0"]
    assert world.ready == ["d0"]


async def test_a_new_epoch_is_told_once() -> None:
    world = World()
    told: list[str] = []

    async def on_new_epoch() -> None:
        told.append(world.registry.epoch)

    world.registry.on_new_epoch(on_new_epoch)
    await world.tick(0)
    await world.tick(0.5)
    assert told == []
    world.store.epoch = "e2"
    await world.tick(0.5)
    await world.tick(0.5)
    assert told == ["e2"]


async def test_a_flood_of_new_epochs_is_told_of_once_in_a_while_and_a_lost_store_in_the_end() -> None:
    world = World()
    told: list[str] = []

    async def on_new_epoch() -> None:
        told.append(world.registry.epoch)

    world.registry.on_new_epoch(on_new_epoch)
    await world.tick(0)
    for i in range(100):
        world.store.epoch = f"flood-{i}"
        await world.tick(0.1)
    assert len(told) == 10.0 / REPUBLISH_EVERY_S
    await world.tick(REPUBLISH_EVERY_S)
    assert told[-1] == "flood-99", "what was lost meanwhile is given back"


async def test_a_stored_record_that_is_not_newer_than_what_was_seen_is_refused() -> None:
    world = World()
    await world.tick(0)
    first = world.record
    world.beat(url="http://elsewhere")
    await world.tick(0.5)
    world.store.records["d0"] = first
    await world.tick(0.5)
    assert [record.url for record in world.registry.known("decode")] == ["http://elsewhere"]
    assert world.registry.refused == {"replay": 1}
    world.beat(instance_id="j")
    await world.tick(0.5)
    world.store.records["d0"] = replace(first, seq=1000)
    await world.tick(0.5)
    assert [record.instance_id for record in world.registry.known("decode")] == ["j"], "a life that is over"


async def test_a_worker_that_is_gone_does_not_come_back_by_its_last_record() -> None:
    world = World()
    await world.tick(0)
    world.health = "dead"
    last = world.store.records.pop("d0")
    for _ in range(4):
        await world.tick(SILENT_S)
    assert world.registry.known("decode") == []
    world.store.records["d0"] = last
    await world.tick(30)
    assert world.registry.known("decode") == []
    assert world.registry.refused["replay"] == 1
    world.beat()
    await world.tick(0.5)
    assert len(world.registry.known("decode")) == 1, "it lives"


async def test_workers_that_are_gone_are_remembered_for_a_while_only() -> None:
    seen = ReplayFilter()
    for i in range(100):
        assert seen.is_new(WorkerRecord(f"d{i}", "decode", "http://x", 1, 1, instance_id="i", seq=1), now=float(i))
    seen.expire(now=50.0 + REMEMBERED_S)
    assert len(seen) == 50


async def test_refused_records_are_counted_and_told_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.store.refused = (("evil", "mac"), ("odd", "size"))
    for _ in range(100):
        await world.tick(0.5)
    assert world.registry.refused == {"mac": 100, "size": 100}
    assert caplog.text.count("record_refused") == 2
    await world.tick(60)
    assert caplog.text.count("record_refused") == 4
    caplog.clear()
    for i in range(3):
        world.store.refused = tuple((f"evil-{i}-{k}", "mac") for k in range(MOST_LOG_TIMES))
        await world.tick(0.5)
    assert caplog.text.count("record_refused") <= MOST_LOG_TIMES, "however many names there are"


async def test_an_answer_about_the_process_before_a_restart_says_nothing_of_the_new_one() -> None:
    world = World()
    await world.tick(0)
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(_: str) -> Health:
        asked.set()
        await go.wait()
        return "dead"

    world.registry._probe = slow
    world.registry.report_failure("d0")
    await asked.wait()
    world.beat(instance_id="j")
    await world.tick(0.1)
    assert world.ready == ["d0"]
    go.set()
    await world.tick(0.1)
    assert world.ready == ["d0"]


async def test_the_watch_outlives_an_unexpected_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("weft_router.state.registry.REFRESH_S", 0.001)
    world = World()
    calls = 0
    done = asyncio.Event()

    async def broken() -> Snapshot:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("scripted")
        done.set()
        return Snapshot((), "e1")

    monkeypatch.setattr(world.store, "snapshot", broken)
    task = asyncio.get_running_loop().create_task(world.registry._run())
    async with asyncio.timeout(60):
        await done.wait()
    assert "turn_failed" in caplog.text
    task.cancel()
    await asyncio.wait([task])


async def test_a_slow_reaction_to_a_new_epoch_does_not_stop_the_watch() -> None:
    world = World()
    go = asyncio.Event()

    async def on_new_epoch() -> None:
        await go.wait()

    world.registry.on_new_epoch(on_new_epoch)
    await world.tick(0)
    world.store.epoch = "e2"
    async with asyncio.timeout(60):
        await world.tick(0.5)
        world.beat(ready=False)
        await world.tick(0.5)
    assert world.ready == []
    go.set()
    await world.tick(0.5)


async def test_a_worker_that_answers_unready_can_be_reached_though_it_gets_nothing() -> None:
    world = World()
    await world.tick(0)
    world.registry.report_failure("d0")
    assert world.registry.reachable("d0") is None, "a connection to it just failed"
    world.health = "busy"
    await world.tick(2)
    await world.tick(2)
    assert world.ready == []
    assert world.registry.reachable("d0") is not None
    assert world.registry.reachable("nobody") is None


async def test_a_worker_with_the_role_both_counts_for_each_duty() -> None:
    world = World()
    for name, role in (("p0", "prefill"), ("b0", "both")):
        world.store.records[name] = replace(world.record, worker=name, role=role)  # type: ignore[arg-type]
    await world.registry.refresh()

    def names(records: list[WorkerRecord]) -> list[str]:
        return sorted(record.worker for record in records)

    assert names(world.registry.ready("prefill")) == names(world.registry.known("prefill")) == ["b0", "p0"]
    assert names(world.registry.ready("decode")) == names(world.registry.known("decode")) == ["b0", "d0"]
    assert names(world.registry.workers()) == ["b0", "d0", "p0"]
    duties = {name: [duty for duty in ROLES if world.registry.get(name, duty)] for name in ("p0", "d0", "b0", "x")}
    assert duties == {"p0": ["prefill"], "d0": ["decode"], "b0": ["prefill", "decode"], "x": []}
    found = world.registry.find("p0")
    assert found is not None
    assert found.role == "prefill"
    assert world.registry.find("x") is None


async def test_a_worker_that_changes_its_role_changes_lists() -> None:
    world = World()
    await world.registry.refresh()
    world.beat(role="prefill")
    await world.registry.refresh()
    assert world.registry.ready("decode") == []
    assert [record.worker for record in world.registry.ready("prefill")] == ["d0"]
