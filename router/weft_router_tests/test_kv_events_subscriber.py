"""KV events over real sockets: gaps are replayed, restarts of either side are survived, and losses are reported."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import zmq

from weft_core.kv_block_keys import START, block_keys, id_bytes
from weft_core.kv_index import BlockIndex
from weft_mock.kv_events import KvEventPublisher
from weft_mock.kv_events_config import KvEventsConfig
from weft_router.kv_events import subscriber
from weft_router.kv_events.rank_cache import RankCache
from weft_router.kv_events.subscriber import REPLAY_OFFSET, KvEventSubscriber
from weft_router.telemetry.metrics import Metrics
from weft_router_tests.stack import free_port, is_so, until

pytestmark = pytest.mark.component
SIZE = 4


def event(number: int) -> dict[str, Any]:
    """Return the event of a prompt of one block, which only this batch has."""
    return {
        "type": "BlockStored", "block_hashes": [number + 1], "parent_block_hash": None,
        "token_ids": [number] * SIZE, "block_size": SIZE, "medium": "GPU",
    }  # fmt: skip


def ports(ranks: int = 1) -> int:
    """Return a port that is free, as those of further ranks and of replays are."""
    for _ in range(100):
        port = free_port()
        needed = [port + rank - offset for rank in range(ranks) for offset in (0, REPLAY_OFFSET)]
        try:
            for one in needed:
                with zmq.Context() as context, context.socket(zmq.SUB) as socket:
                    socket.bind(f"tcp://127.0.0.1:{one}")
        except zmq.ZMQError:
            continue
        return port
    raise AssertionError("no free ports")


class Reader:
    """A subscriber with what it has read so far."""

    def __init__(self, port: int, *, ranks: int = 1, replay_s: float = 5.0) -> None:
        self.metrics = Metrics()
        self.caches = [RankCache(BlockIndex()) for _ in range(ranks)]
        self.subscriber = KvEventSubscriber(self.caches, port=port, metrics=self.metrics, replay_s=replay_s)

    def known(self, rank: int = 0) -> set[int]:
        index = self.caches[rank].index
        found = set()
        for number in range(200):
            (key,) = block_keys(START, id_bytes([number] * SIZE), SIZE)
            if index.reach(key).gpu:
                found.add(number)
        return found

    async def knows(self, *numbers: int, rank: int = 0) -> None:
        async def reached() -> bool:
            return self.known(rank) == set(numbers)

        await until(reached)

    def count(self, outcome: str) -> float:
        return self.metrics.kv_events.labels(outcome).value


@asynccontextmanager
async def reading(port: int, *, ranks: int = 1, replay_s: float = 5.0) -> AsyncIterator[Reader]:
    reader = Reader(port, ranks=ranks, replay_s=replay_s)
    task = asyncio.create_task(reader.subscriber.run())
    try:
        yield reader
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def publishing(port: int, *, ranks: int = 1) -> AsyncIterator[KvEventPublisher]:
    publisher = KvEventPublisher(KvEventsConfig(port, port - REPLAY_OFFSET, topic="kv"), ranks=ranks)
    publisher.start()
    try:
        yield publisher
    finally:
        await publisher.stop()


async def connected(publisher: KvEventPublisher, reader: Reader) -> int:
    """Publish batches until the first comes through; return how many."""
    for number in range(1000):
        publisher.publish([event(number)])
        await asyncio.sleep(0.01)
        if reader.caches[0].expected:
            await reader.knows(*range(number + 1))
            return number + 1
    raise AssertionError("nothing came")


async def test_batches_before_the_connection_are_asked_for() -> None:
    port = ports()
    async with publishing(port) as publisher:
        for number in range(5):
            publisher.publish([event(number)])
        async with reading(port) as reader:
            publisher.publish([event(5)], sent=False)
            count = 6
            while not reader.known():
                publisher.publish([event(count)])
                count += 1
                await asyncio.sleep(0.01)
            await reader.knows(*range(count))
            await until(lambda: is_so(reader.count("replayed") == 1))
            assert reader.count("applied") == count


async def test_lost_batches_are_replayed_in_order() -> None:
    port = ports()
    async with publishing(port) as publisher, reading(port) as reader:
        count = await connected(publisher, reader)
        publisher.publish([event(count)], sent=False)
        publisher.publish([{"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"}], sent=False)
        publisher.publish([event(count + 1)])
        await reader.knows(*range(1, count + 2))
        publisher.publish([event(count + 2)])
        await reader.knows(*range(1, count + 3))
        assert reader.count("lost") == 0


async def test_batches_that_nobody_has_any_more_make_all_be_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    port = ports()
    async with publishing(port) as publisher, reading(port) as reader:
        await connected(publisher, reader)
        for number in (101, 102):
            publisher.publish([event(number)], sent=False)
        publisher._buffer.clear()
        publisher.publish([event(103)], sent=False)
        publisher.publish([event(104)])
        await reader.knows(103, 104)
        await until(lambda: is_so(reader.count("lost") == 1))
    assert "kv_events_lost" in caplog.messages


async def test_an_engine_that_answers_no_request_is_not_waited_for() -> None:
    port = ports()
    async with reading(port, replay_s=0.05) as reader:
        with zmq.Context() as context, context.socket(zmq.PUB) as socket:
            socket.connect(f"tcp://127.0.0.1:{port}")
            encode = KvEventPublisher(KvEventsConfig(port, port - REPLAY_OFFSET))
            encode.publish([event(7)])
            body = encode._buffer[0][1]
            number = 40
            while not reader.known():
                socket.send_multipart((b"", number.to_bytes(8, "big"), body))
                number += 1
                await asyncio.sleep(0.01)
            await reader.knows(7)
            await until(lambda: is_so(reader.count("lost") >= 1))
            await encode.stop()


async def test_an_engine_that_starts_again_begins_from_nothing() -> None:
    port = ports()
    async with reading(port) as reader:
        async with publishing(port) as publisher:
            await connected(publisher, reader)
            publisher._number = 0
            publisher._buffer.clear()
            publisher.publish([event(140)])
            await reader.knows(140)
            await until(lambda: is_so(reader.count("restarted") == 1))
        reader.caches[0].restart()  # as when the engine's health is lost
        async with publishing(port) as publisher:
            publisher.publish([event(150)], sent=False)
            count = 151
            while 150 not in reader.known():
                publisher.publish([event(count)])
                count += 1
                await asyncio.sleep(0.01)
            await reader.knows(*range(150, count))


async def test_a_sidecar_that_starts_again_reads_all_that_the_engine_has() -> None:
    port = ports()
    async with publishing(port) as publisher:
        async with reading(port) as reader:
            count = await connected(publisher, reader)
        async with reading(port) as reader:
            while not reader.known():
                publisher.publish([event(count)])
                count += 1
                await asyncio.sleep(0.01)
            await reader.knows(*range(count))


async def test_each_rank_has_sockets_and_an_index_of_its_own() -> None:
    port = ports(ranks=3)
    async with publishing(port, ranks=3) as publisher, reading(port, ranks=3) as reader:
        number = 0
        while not all(cache.expected for cache in reader.caches):
            publisher.publish([event(number)])
            number += 1
            await asyncio.sleep(0.01)
        for rank in range(3):
            await reader.knows(*range(number), rank=rank)


async def test_what_is_no_batch_is_counted_and_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    port = ports()
    async with publishing(port) as publisher, reading(port) as reader:
        count = await connected(publisher, reader)
        (socket,) = publisher._sockets
        for frames in ((b"",), (b"", b"5", b""), (b"", (-1).to_bytes(8, "big", signed=True), b"")):
            socket.send_multipart(frames)

        async def counted() -> bool:
            return reader.count("malformed") == 3

        await until(counted)
        assert reader.known() == set(range(count))
        socket.send_multipart((b"", count.to_bytes(8, "big"), b"\xc1"))
        publisher._number = count + 1
        await reader.knows()
        publisher.publish([event(120)])
        await reader.knows(120)
        await until(lambda: is_so(reader.count("malformed") == 4))
    assert "kv_events_malformed" in caplog.messages


async def test_a_port_that_is_in_use_is_told_and_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(subscriber, "BIND_AGAIN_S", 0.02)
    port = ports()
    with zmq.Context() as context:
        other = context.socket(zmq.SUB)
        other.bind(f"tcp://127.0.0.1:{port}")
        async with publishing(port) as publisher, reading(port) as reader:

            async def reported() -> bool:
                return "kv_events_port" in caplog.messages

            await until(reported)
            other.close(linger=0)
            await connected(publisher, reader)
