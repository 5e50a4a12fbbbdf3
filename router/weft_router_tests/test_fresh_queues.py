"""Decode workers ask prefill workers for their queues before they route a prefill."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from weft_core.heartbeat import QueueEntry, WorkerRecord
from weft_core.policies.snapshot import PrefillTask
from weft_router.config import RouterConfig
from weft_router.engines.handles import KvHandle
from weft_router.errors import UpstreamFailedError
from weft_router.http.pool import ConnectionPool
from weft_router.roles.prefill_hop import PrefillHop
from weft_router.routing.fresh_queues import FRESH_S, RETRY_S, WAIT_S, FreshQueues
from weft_router.routing.in_flight_prefills import InFlightPrefills
from weft_router.routing.prefill_workers import PrefillWorkers
from weft_router.state.registry import Registry
from weft_router.state.store import MemoryStore
from weft_router_tests.stack import Stack, router_json, settings, until

TASK = PrefillTask(0, 100)


class Service:
    """Some decode workers, and prefill workers whose heartbeats are older than their queues."""

    def __init__(self, folder: Path, believed: Sequence[int], *, decode: int = 2) -> None:
        self.now = 100.0
        self.asked: list[str] = []
        self.queues: dict[str, tuple[QueueEntry, ...]] = {}
        self.failing: set[str] = set()
        self.gate: asyncio.Event | None = None
        known = settings(folder, "decode", port=1, worker="d0")
        self.registry = Registry(MemoryStore(), _probe)
        self.in_flight = InFlightPrefills(known.profile, clock=lambda: self.now)
        self.workers = PrefillWorkers(
            known, registry=self.registry, in_flight=self.in_flight, closed=frozenset, role=lambda: "decode"
        )
        self.fresh = FreshQueues(self, prefill_workers=self.workers, registry=self.registry, clock=lambda: self.now)
        self.heartbeats(believed, decode=decode, seq=1)

    def heartbeats(self, queued: Sequence[int], *, decode: int = 2, seq: int) -> None:
        same = WorkerRecord("", "decode", "http://127.0.0.1:9", 1, 16_000, ready=True, seq=seq, revision="r1")
        prefill = [
            replace(same, worker=f"p{k}", role="prefill", queue=entries(f"p{k}", n)) for k, n in enumerate(queued)
        ]
        self.registry._take((*prefill, *(replace(same, worker=f"d{k}") for k in range(decode))))

    async def queue(self, record: WorkerRecord, *, within_s: float) -> tuple[QueueEntry, ...]:
        assert within_s == WAIT_S
        self.asked.append(record.worker)
        if self.gate is not None:
            await self.gate.wait()
        if record.worker in self.failing:
            raise UpstreamFailedError("timeout")
        return self.queues.get(record.worker, record.queue)

    def queued(self) -> list[int]:
        return [view.queued for view in self.workers.views(TASK)]


async def _probe(_: str) -> Literal["ready"]:
    return "ready"


def entries(worker: str, count: int) -> tuple[QueueEntry, ...]:
    return tuple(QueueEntry(0, 100, f"{worker}-{i}") for i in range(count))


async def test_kv_is_read_by_another_worker_than_the_one_that_holds_it(tmp_path: Path) -> None:
    workers = Service(tmp_path, [0, 3]).workers
    kept = KvHandle(params={}, tokens=100, deadline=1e9, digest=None, holder="p0")
    assert workers.least_queued(set(), TASK) == "p0"
    assert workers.least_queued(set(), TASK, kept) == "p1"
    assert workers.least_queued({"p1"}, TASK, kept) is None
    assert workers.least_queued(set(), TASK, replace(kept, holder="")) == "p0"
    assert [record.worker for record in workers.with_room(100, kept)] == ["p1"]


async def test_what_others_sent_since_the_heartbeat_counts(tmp_path: Path) -> None:
    service = Service(tmp_path, [0, 3])
    service.queues = {"p0": entries("p0", 5), "p1": entries("p1", 1)}
    assert service.queued() == [0, 3]
    await service.fresh.update()
    assert service.queued() == [5, 1]


async def test_what_was_sent_from_here_is_counted_once(tmp_path: Path) -> None:
    service = Service(tmp_path, [0])
    service.queued()
    service.in_flight.add("p0", "mine", TASK, service.now)
    service.queues = {"p0": (QueueEntry(0, 100, "mine"), QueueEntry(0, 100, "another's"))}
    await service.fresh.update()
    assert service.queued() == [2]
    service.in_flight.remove("p0", "mine", service.now)
    assert service.queued() == [1]


async def test_a_heartbeat_counts_again_once_the_answer_is_old(tmp_path: Path) -> None:
    service = Service(tmp_path, [1])
    service.queues = {"p0": entries("p0", 4)}
    await service.fresh.update()
    service.heartbeats([0], seq=2)
    assert service.queued() == [4], "the heartbeat may have been written before the answer"
    service.now += FRESH_S
    service.heartbeats([0], seq=3)
    assert service.queued() == [0]


async def test_the_two_shortest_queues_are_asked_for(tmp_path: Path) -> None:
    service = Service(tmp_path, [4, 1, 3, 0, 2])
    await service.fresh.update()
    assert sorted(service.asked) == ["p1", "p3"]


async def test_another_one_is_asked_where_the_shortest_turn_out_long(tmp_path: Path) -> None:
    service = Service(tmp_path, [4, 1, 3, 0, 2])
    service.queues = {"p3": entries("p3", 9)}
    await service.fresh.update()
    assert sorted(service.asked) == ["p1", "p3", "p4"]
    assert service.queued() == [4, 1, 3, 9, 2]


async def test_a_queue_is_not_asked_for_again_while_it_is_fresh(tmp_path: Path) -> None:
    service = Service(tmp_path, [0, 0])
    await service.fresh.update()
    service.now += FRESH_S
    await service.fresh.update()
    assert service.asked == ["p0", "p1"]
    service.now += 0.001
    await service.fresh.update()
    assert service.asked == ["p0", "p1"] * 2


async def test_rounds_of_a_burst_wait_for_the_same_answer(tmp_path: Path) -> None:
    service = Service(tmp_path, [0])
    service.queues = {"p0": entries("p0", 3)}
    service.gate = asyncio.Event()
    rounds = [asyncio.create_task(service.fresh.update()) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rounds[0].cancel()
    service.gate.set()
    await asyncio.gather(*rounds[1:])
    assert service.asked == ["p0"]
    assert service.queued() == [3]
    assert rounds[0].cancelled()


async def test_a_worker_that_does_not_answer_is_judged_by_its_heartbeat_for_a_while(tmp_path: Path) -> None:
    service = Service(tmp_path, [2, 0])
    service.failing = {"p0"}
    service.queues = {"p0": entries("p0", 9), "p1": entries("p1", 1)}
    await service.fresh.update()
    assert service.queued() == [2, 1]
    service.now += RETRY_S
    await service.fresh.update()
    assert service.asked.count("p0") == 1
    service.now += 0.001
    service.failing.clear()
    await service.fresh.update()
    assert service.queued() == [9, 1]


async def test_a_lone_decode_worker_knows_all_that_is_sent(tmp_path: Path) -> None:
    service = Service(tmp_path, [0, 0], decode=1)
    await service.fresh.update()
    assert service.asked == []


@pytest.mark.component
async def test_a_decode_sidecar_sees_what_another_one_sent(tmp_path: Path) -> None:
    stack = await Stack(tmp_path).up(decode=2, prefill=1)
    try:
        services = [stack.decoding(name) for name in ("d0", "d1")]

        async def known() -> bool:
            return all(len(service._registry.ready("decode")) == 2 for service in services)

        async def queued() -> list[int]:
            await asyncio.sleep(2 * FRESH_S)
            for service in services:
                assert service._fresh_queues is not None
                await service._fresh_queues.update()
            return [view.queued for service in services for view in service.prefill_workers.views(TASK)]

        await until(known)
        stack.engines["p0"].script.delay_s = 0.5
        running = asyncio.create_task(stack.chat([{"role": "user", "content": "hello " * 50}]))

        async def sent() -> bool:
            return bool(stack.engines["p0"].seen)

        await until(sent)
        assert await queued() == [1, 1]
        assert (await running).status == 200
        assert await queued() == [0, 0]
    finally:
        await stack.close()


@pytest.mark.component
async def test_a_sidecar_that_hangs_is_waited_for_20_ms(tmp_path: Path) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = ConnectionPool(connect_s=1.0, keepalive_s=1.0)
    hop = PrefillHop(RouterConfig.model_validate(router_json()), pool=pool)
    record = WorkerRecord("p0", "prefill", f"http://127.0.0.1:{port}", 1, 16_000)
    try:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(UpstreamFailedError, match="timeout"):
            await hop.queue(record, within_s=WAIT_S)
        assert loop.time() - began < 0.08, "the pool by itself looks after 100 ms"
    finally:
        await pool.close()
        server.close()
        await asyncio.sleep(0.05)  # for its handler to see the end
