"""Each part of leaving a sick engine by itself: rest, one try after it, half of a pool, a lost connection."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from weft_core.heartbeat import WorkerRecord
from weft_router.engines import watch
from weft_router.engines.watch import HANDSHAKE_S, REST_S, STALL_S, STRIKES, Engine
from weft_router.http.pool import ConnectionPool
from weft_router.http.upstream_request import UpstreamRequest
from weft_router.state.registry import Health, Registry
from weft_router.state.store import MemoryStore
from weft_router.telemetry.metrics import Metrics
from weft_router.workers.worker import Worker
from weft_router_tests.fake_engine import FakeEngine
from weft_router_tests.stack import Stack, free_port, settings

pytestmark = pytest.mark.component


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def healthy(engine: Engine) -> bool:
    return engine.healthy


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    made = FakeEngine("d0")
    await made.start(free_port())
    yield made
    await made.stop()


@pytest.fixture
async def pool() -> AsyncIterator[ConnectionPool]:
    made = ConnectionPool(connect_s=1.0, keepalive_s=1.0)
    yield made
    await made.close()


async def nobody_asked(_: str) -> Health:
    return "dead"


async def test_a_resting_engine_is_tried_once_a_rest_and_comes_back_with_an_answer(
    fake: FakeEngine, pool: ConnectionPool
) -> None:
    clock = Clock()
    probe = ("/v1/completions", b'{"model":"m","prompt":"a","max_tokens":1}')
    engine = Engine(pool, fake.url, on_change=lambda: None, may_rest=lambda: True, probe=probe, clock=clock)
    await engine.poll()
    fake.script.status = 500
    for _ in range(STRIKES):
        engine.failed()
    tries = []
    for seconds in (0.0, REST_S / 2, REST_S / 2, REST_S / 2, REST_S / 2):
        clock.now += seconds
        await engine.poll()
        tries.append(len(fake.seen))
        assert not healthy(engine), "a green health endpoint is not enough"
    assert tries == [0, 0, 1, 1, 2]
    fake.script.status = 200
    clock.now += REST_S / 2
    await engine.poll()
    assert not healthy(engine)
    clock.now += REST_S / 2
    await engine.poll()
    assert healthy(engine)
    assert len(fake.seen) == 3


@pytest.mark.parametrize("meets", [False, True])
async def test_engines_that_meet_for_the_first_time_are_given_time_for_it(
    fake: FakeEngine, pool: ConnectionPool, meets: bool
) -> None:
    clock = Clock()
    engine = Engine(pool, fake.url, on_change=lambda: None, may_rest=lambda: True, clock=clock)
    await engine.poll()
    clock.now = 1.0
    leg = UpstreamRequest(first_s=60.0)
    leg.began = clock.now
    engine.sent(leg, 0.0, meets=meets)
    clock.now += STALL_S + 0.1
    await engine.poll()
    assert healthy(engine) is meets
    if meets:
        clock.now += HANDSHAKE_S
        await engine.poll()
        assert not healthy(engine), "a handshake does not take for ever"


async def worker(
    folder: Path, fake: FakeEngine, pool: ConnectionPool, records: list[WorkerRecord]
) -> tuple[Worker, Registry]:
    store = MemoryStore()
    registry = Registry(store, nobody_asked)
    found = settings(folder, "decode", port=free_port(), worker=records[0].worker, engine_url=fake.url)
    made = Worker(found, store=store, registry=registry, engines=pool, metrics=Metrics())
    for record in records:
        await store.heartbeat(record)
    await registry.refresh()
    await made.engine.poll()
    return made, registry


def members(count: int, out: int, pool: str = "") -> list[WorkerRecord]:
    """Return the heartbeats of a pool whose last ``out`` are out of use."""
    return [
        WorkerRecord(f"d{i}", "decode", "http://x", 1, 1000, pool=pool, seq=1, ready=i < count - out)
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("count", "out", "rests"),
    [(1, 0, False), (2, 0, True), (2, 1, False), (3, 0, True), (3, 1, False), (4, 1, True), (4, 2, False)],
)
async def test_a_worker_rests_only_while_half_of_its_pool_stays(
    tmp_path: Path, fake: FakeEngine, pool: ConnectionPool, count: int, out: int, rests: bool
) -> None:
    other = replace(members(1, 0)[0], worker="x", pool="another")
    made, registry = await worker(tmp_path, fake, pool, [*members(count, out), other])
    for _ in range(STRIKES):
        made.engine.failed()
    assert healthy(made.engine) is not rests
    await registry.stop()


async def test_of_those_that_left_at_the_same_time_one_half_comes_back(
    tmp_path: Path, fake: FakeEngine, pool: ConnectionPool
) -> None:
    for name, stays_out in (("d0", True), ("d2", False)):
        others = [record for record in members(4, 0) if record.worker != name]
        own = replace(members(1, 0)[0], worker=name)
        made, registry = await worker(tmp_path, fake, pool, [own, *others])
        for _ in range(STRIKES):
            made.engine.failed()
        assert not healthy(made.engine)
        store = MemoryStore()
        for record in (own, *others):
            await store.heartbeat(replace(record, seq=2, ready=record.worker == "d3"))
        registry._store = store
        await registry.refresh()
        await made.engine.poll()
        assert healthy(made.engine) is not stays_out
        await registry.stop()


@pytest.mark.parametrize("role", ["d", "p"])
async def test_an_engine_that_refuses_connections_is_left_before_its_health_is_asked_for(
    stack: Stack, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL_S", 600.0)
    await stack.up(decode=2, prefill=2 if role == "p" else 0)
    for name in (f"{role}0", f"{role}1"):
        assert stack.worker_of(name).engine.healthy
    await stack.engines[f"{role}0"].stop()
    for k in range(4):
        answer = await stack.chat([{"role": "user", "content": f"question {k}"}], session=f"s{k}")
        assert answer.status == 200
    assert not stack.worker_of(f"{role}0").engine.healthy
    assert stack.worker_of(f"{role}1").engine.healthy
