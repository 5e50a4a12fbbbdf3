"""Trials of the engines' side channel: who counts as closed, when it is tried again, and what a refusal looks like."""

import asyncio
from dataclasses import replace

import pytest

from weft_core.heartbeat import WorkerRecord
from weft_router.state.kv_paths import (
    CLOSED_AFTER,
    FAULTY_AFTER,
    MOST_NAMED,
    PROVEN_AGAIN_S,
    UNPROVEN_AGAIN_S,
    KvPaths,
    Proof,
    reaches,
)
from weft_router_tests.stack import Stack, until


def worker(name: str, instance_id: str = "1") -> WorkerRecord:
    return WorkerRecord(name, "prefill", f"http://{name}:8080", 1, 1, instance_id=instance_id, ready=True)


GOOD = Proof(None, "tcp", 2e8, 0.007)
AGAIN_S = PROVEN_AGAIN_S / 2


class World:
    """Workers, ports that answer or not, and a clock."""

    def __init__(self, *names: str, proven_again_s: float = PROVEN_AGAIN_S) -> None:
        self.workers = [worker(name) for name in names]
        self.blocked: set[str] = set()
        self.tried: list[str] = []
        self.now = 0.0
        self.serves = True
        self.proves = True
        self.found: Proof | None = GOOD
        self.proved: list[tuple[str, bool]] = []
        self.paths = KvPaths(
            5600, lambda: self.workers, connect=self._connect, serves=lambda: self.serves, proves=lambda: self.proves,
            proven_again_s=proven_again_s, clock=lambda: self.now,
        )  # fmt: skip

    async def _connect(self, host: str, port: int) -> bool:
        assert port == 5600
        self.tried.append(host)
        return host not in self.blocked

    async def _prove(self, record: WorkerRecord, figures: bool) -> Proof | None:
        self.proved.append((record.worker, figures))
        if figures or self.found is None or self.found.fault:
            return self.found
        return Proof()

    async def proofs(self, after: float = 1.0) -> list[tuple[str, bool]]:
        """Make a turn after so many seconds in which paths are proven; return which, and whether with figures."""
        self.proved.clear()
        self.paths._prove = self._prove
        await self.turns(1)
        self.now += after - 1.0
        await self.paths.prove_next()
        return list(self.proved)

    async def turns(self, count: int) -> list[str]:
        """Make turns a second apart; return who was tried in them."""
        self.tried.clear()
        for _ in range(count):
            self.now += 1.0
            await self.paths.check_all()
        return list(self.tried)


async def test_open_paths_are_counted_and_left_alone_for_a_while() -> None:
    world = World("p0", "p1")
    assert await world.turns(5) == ["p0", "p1"]
    assert (world.paths.open, world.paths.closed) == (2, frozenset())
    world.now += AGAIN_S
    assert await world.turns(1) == ["p0", "p1"]


async def test_a_path_is_closed_after_failures_in_a_row_and_open_again_with_the_first_success() -> None:
    world = World("p0", "p1")
    world.blocked = {"p1"}
    await world.turns(CLOSED_AFTER - 1)
    assert world.paths.closed == frozenset(), "an engine may just be starting"
    await world.turns(1)
    assert world.paths.closed == {"p1"}
    assert (world.paths.open, world.paths.named()) == (1, (("p1", "side-channel"),))
    before = world.paths.closed
    await world.turns(2)
    assert world.paths.closed is before, "readers notice a change by the object"
    world.blocked.clear()
    await world.turns(1)
    assert (world.paths.closed, world.paths.open) == (frozenset(), 2)


async def test_a_path_that_closes_later_is_found_within_a_trial() -> None:
    world = World("p0")
    await world.turns(1)
    world.blocked = {"p0"}
    world.now += AGAIN_S
    await world.turns(CLOSED_AFTER)
    assert world.paths.closed == {"p0"}


async def test_a_new_instance_begins_anew_and_who_is_gone_is_forgotten() -> None:
    world = World("p0")
    world.blocked = {"p0"}
    await world.turns(CLOSED_AFTER)
    world.workers = [worker("p0", "2")]
    await world.turns(1)
    assert world.paths.closed == frozenset()
    await world.turns(CLOSED_AFTER)
    world.workers = []
    await world.turns(1)
    assert (world.paths.closed, world.paths.open) == (frozenset(), 0)


async def test_a_heartbeat_names_a_few() -> None:
    names = [f"p{number:02}" for number in range(MOST_NAMED + 20)]
    world = World(*names)
    world.blocked = set(names)
    await world.turns(CLOSED_AFTER)
    assert world.paths.named() == tuple((name, "side-channel") for name in names[:MOST_NAMED])
    assert len(world.paths.closed) == len(names)


async def test_a_new_path_is_measured_and_from_then_on_tried_from_time_to_time() -> None:
    world = World("p0", "p1")
    assert await world.proofs() == [("p0", True), ("p1", True)]
    said = world.paths.describe(worker("d0"))
    assert (said.kv_proven, said.kv_transports, said.kv_bytes_per_s, said.kv_latency) == (2, ("tcp",), 2e8, 0.007)
    assert world.paths.rates == {"p0": 2e8, "p1": 2e8}
    assert await world.proofs(PROVEN_AGAIN_S / 2) == []
    assert await world.proofs(PROVEN_AGAIN_S) == [("p0", False), ("p1", False)]
    assert world.paths.describe(worker("d0")) == said, "a trial without figures forgets none"
    world.workers = [worker("p0", "2"), worker("p1")]
    assert await world.proofs() == [("p0", True)], "the worker began anew"
    world.serves = False
    assert await world.proofs() == []
    assert world.paths.describe(worker("d0")).kv_proven == 0
    world.serves = True
    assert await world.proofs() == [("p0", True), ("p1", True)], "the engine here began anew"


async def test_a_path_that_carries_nothing_twice_is_closed_until_a_proof_succeeds() -> None:
    world = World("p0")
    await world.proofs()
    world.found = Proof("data-port")
    assert await world.proofs(PROVEN_AGAIN_S) == [("p0", False)]
    assert world.paths.closed == frozenset(), "one failure may be a mischance"
    assert await world.proofs() == [("p0", True)]
    assert world.paths.closed == {"p0"}
    assert world.paths.named() == (("p0", "data-port"),)
    said = world.paths.describe(worker("d0"))
    assert (said.kv_open, said.kv_proven, said.kv_faults) == (1, 0, (("p0", "data-port"),))
    assert await world.proofs(AGAIN_S / 2) == []
    world.found = GOOD
    assert await world.proofs(AGAIN_S) == [("p0", True)]
    assert (world.paths.closed, world.paths.named()) == (frozenset(), ())
    assert FAULTY_AFTER == 2


async def test_a_service_that_wants_it_is_proven_more_often_in_every_state() -> None:
    world = World("p0", proven_again_s=4.0)
    await world.proofs()
    assert await world.proofs(2.0) == []
    assert await world.proofs(2.0) == [("p0", False)]
    world.found = None
    assert await world.proofs(4.0) == [("p0", False)]
    assert await world.proofs(2.0) == [("p0", False)], "an engine that had no time"
    world.found = Proof("data-port")
    assert await world.proofs(2.0) == [("p0", False)]
    assert await world.proofs() == [("p0", True)]
    assert world.paths.closed == {"p0"}
    world.found = GOOD
    assert await world.proofs(2.0) == [("p0", True)], "a closed path"
    assert world.paths.closed == frozenset()
    assert await world.turns(4) == ["p0"] * 2, "the side channel"


async def test_who_waits_hears_of_a_path_when_it_closes_and_only_then() -> None:
    world = World("p0", "p1")
    heard: list[frozenset[str]] = []
    world.paths.on_closed(heard.append)
    world.blocked = {"p0"}
    await world.turns(CLOSED_AFTER + 2)
    world.blocked = {"p0", "p1"}
    world.now += AGAIN_S
    await world.turns(CLOSED_AFTER)
    assert heard == [{"p0"}, {"p1"}]


async def test_an_engine_without_time_proves_nothing_either_way() -> None:
    world = World("p0")
    world.found = None
    for _ in range(4):
        assert await world.proofs(UNPROVEN_AGAIN_S) == [("p0", True)]
        assert await world.proofs() == []
    assert (world.paths.closed, world.paths.describe(worker("d0")).kv_proven) == (frozenset(), 0)


async def test_figures_that_were_mixed_with_rounds_are_taken_again() -> None:
    world = World("p0")
    world.found = Proof()
    await world.proofs()
    said = world.paths.describe(worker("d0"))
    assert (said.kv_proven, said.kv_transports, said.kv_bytes_per_s) == (1, (), None)
    world.found = GOOD
    assert await world.proofs(AGAIN_S) == [("p0", True)]
    assert world.paths.describe(worker("d0")).kv_bytes_per_s == 2e8


async def test_nothing_is_proven_over_a_closed_side_channel_and_at_once_when_it_opens() -> None:
    world = World("p0")
    await world.proofs()
    world.blocked = {"p0"}
    world.now += AGAIN_S
    await world.turns(CLOSED_AFTER)
    assert world.paths.named() == (("p0", "side-channel"),)
    assert await world.proofs() == []
    world.blocked.clear()
    assert [name for name, _ in await world.proofs()] == ["p0"]


async def test_without_a_port_nothing_is_tried() -> None:
    paths = KvPaths(0, lambda: [worker("p0")])
    await paths.run()
    assert (paths.open, paths.closed) == (-1, frozenset())


@pytest.mark.component
async def test_a_listening_port_is_reached_and_a_closed_one_is_not() -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await reaches("127.0.0.1", port)
    server.close()
    await server.wait_closed()
    assert not await reaches("127.0.0.1", port)
    assert not await reaches("no-such-host.invalid", port)


@pytest.mark.component
@pytest.mark.parametrize("started", [False, True], ids=["waits for KV", "has begun"])
async def test_a_stream_that_waits_for_kv_of_a_path_that_closes_is_prefilled_here(stack: Stack, started: bool) -> None:
    await stack.up()
    executor, decode = stack.decoding("d0").executor, stack.engines["d0"]
    if started:
        decode.script.gap_s = 0.1
    else:
        decode.script.hang_reads = True
    asked = asyncio.ensure_future(stack.chat([{"role": "user", "content": "question"}], session="s", stream=True))

    async def is_read() -> bool:
        return decode.streamed > 1 if started else decode.running == 1

    await until(is_read)
    executor.give_up(frozenset({"p1"}))
    executor.give_up(frozenset({"p0"}))
    answer = await asyncio.wait_for(asked, 20)
    assert answer.status == 200
    assert answer.error is None
    assert answer.headers["X-Weft-Route"] == ("remote" if started else "local")
    assert decode.aborted == (0 if started else 1)


@pytest.mark.component
async def test_nothing_is_prefilled_over_a_closed_path_and_again_over_one_that_opened(stack: Stack) -> None:
    await stack.up()
    paths = stack.worker_of("d0").paths
    routes = []
    for number, closed in enumerate((frozenset[str](), frozenset({"p0"}), frozenset[str]())):
        paths.closed = closed
        asked = [{"role": "user", "content": f"question {number}"}]
        answer = await stack.chat(asked, session=f"s{number}", stream=True)
        routes.append(answer.headers["X-Weft-Route"])
    assert routes == ["remote", "local", "remote"]


async def test_only_a_worker_that_decodes_proves_paths_and_only_those_to_workers_that_prefill() -> None:
    world = World("p0", "d0", "b0")
    world.workers = [
        replace(world.workers[0]),
        replace(world.workers[1], role="decode"),
        replace(world.workers[2], role="both"),
    ]
    world.proves = False
    assert await world.proofs() == []
    assert world.paths.open == 3
    assert world.paths.describe(worker("me")).kv_proven == -1
    world.proves = True
    assert [name for name, _ in await world.proofs()] == ["p0", "b0"]
    assert world.paths.describe(worker("me")).kv_proven == 2
