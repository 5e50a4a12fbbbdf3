"""Somebody else writes to the service's Redis: forged, copied, old and broken records, and keys of other types."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import redis.asyncio as redis

from weft_core.heartbeat import WorkerRecord, key_prefix, worker_key, workers_key
from weft_core.keys import derive
from weft_core.records import MAX_RECORD_BYTES, seal_record, seal_value
from weft_router.state import redis_store
from weft_router.state.heartbeat import Heartbeat
from weft_router.state.redis_store import RedisStore
from weft_router.state.registry import Health, Registry
from weft_router.state.store import StoreDownError
from weft_router_tests.conftest import RedisServer
from weft_router_tests.stack import STATE_KEY, Stack, is_so, until

pytestmark = pytest.mark.component

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "the secret prompt"}]
PREFIX, WORKERS = key_prefix("ns", "svc"), workers_key("ns", "svc")


def record(worker: str = "d0", **fields: Any) -> WorkerRecord:
    made: dict[str, Any] = {"url": "http://127.0.0.1:9", "instance_id": "i", "seq": 1, "ready": True, **fields}
    return WorkerRecord(worker, "decode", degree=1, capacity=1000, **made)


def stored(one: WorkerRecord, *, key: bytes = STATE_KEY, now: float | None = None) -> bytes:
    name = worker_key("ns", "svc", one.worker)
    return seal_record(one, key=key, name=name, now=time.time() if now is None else now)


class World:
    """A store, and an attacker's connection to the same Redis."""

    def __init__(self, server: RedisServer) -> None:
        self.store = RedisStore(server.url, namespace="ns", service="svc", key=STATE_KEY)
        self.url = server.url
        self.attacker = redis.Redis(port=server.port)

    async def put(self, worker: str | bytes, value: bytes) -> None:
        name = worker if isinstance(worker, bytes) else worker.encode()
        await self.attacker.set(PREFIX.encode() + b"worker:" + name, value)
        await self.attacker.sadd(WORKERS, name)

    async def get(self, worker: str) -> bytes:
        found: object = await self.attacker.get(worker_key("ns", "svc", worker))
        assert isinstance(found, bytes)
        return found

    async def known(self) -> list[str]:
        return sorted(found.worker for found in (await self.store.snapshot()).workers)


@pytest.fixture
async def world(redis_server: RedisServer) -> AsyncIterator[World]:
    made = World(redis_server)
    yield made
    await made.store.close()
    await made.attacker.aclose()


@asynccontextmanager
async def attackers_server() -> AsyncIterator[tuple[str, list[bytes]]]:
    """Listen, and note every connection and what it sends."""
    seen: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(b"")
        while data := await reader.read(65536):
            seen.append(data)
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    finally:
        server.close()


async def test_a_forged_worker_is_never_dialled(redis_stack: Stack, redis_server: RedisServer) -> None:
    await redis_stack.up(decode=1, prefill=1)
    async with redis.Redis(port=redis_server.port) as attacker, attackers_server() as (url, seen):
        other = derive(b"the-token-of-another-service", "state")
        forged = record("d9", url=url, seq=10**6)
        genuine: Any = await attacker.get(PREFIX + "worker:d0")
        for name, value in {
            "d9": stored(forged, key=other), "d8": genuine, "d7": json.dumps(forged.fields()).encode(),
        }.items():  # fmt: skip
            await attacker.set(PREFIX + "worker:" + name, value)
            await attacker.sadd(WORKERS, name)
        # Sessions bound to it, and the binding of one that is known to be there.
        for session in (f"s{i}" for i in range(8)):
            await redis_stack.chat(HELLO, session=session)
        keys: list[bytes] = await cast(Any, attacker).keys(PREFIX + "bind:*")
        assert len(keys) == 8
        for key in keys:
            await attacker.set(key, b"d9 " + b"0" * 32)
        before = await _refused(redis_stack)
        await until(lambda: _refused_since(redis_stack, before))
        for session in (f"s{i}" for i in range(12)):
            answer = await redis_stack.chat(HELLO, session=session)
            assert (answer.status, answer.headers["X-Weft-Worker"]) == (200, "d0")
        assert seen == [], "nobody connected to the attacker, let alone sent a prompt"


async def _refused(stack: Stack) -> float:
    return await stack.count("weft_router_store_records_refused_total", reason="mac")


async def _refused_since(stack: Stack, before: float) -> bool:
    """Return whether all forged records were read, three times."""
    return await _refused(stack) >= before + 9


async def test_records_of_other_services_workers_and_times_are_refused(world: World) -> None:
    await world.store.heartbeat(record("d0"))
    await world.put("copy", await world.get("d0"))
    await world.put("theirs", stored(record("theirs"), key=derive(b"another", "state")))
    await world.put("old", stored(record("old"), now=time.time() - 61))
    await world.put("early", stored(record("early"), now=time.time() + 70))
    found = await world.store.snapshot()
    assert [one.worker for one in found.workers] == ["d0"]
    assert sorted(found.refused) == [("copy", "mac"), ("early", "time"), ("old", "time"), ("theirs", "mac")]


async def test_an_old_record_stored_again_changes_nothing(world: World) -> None:
    async def probe(_: str) -> Health:
        return "ready"

    registry = Registry(world.store, probe)
    await world.store.heartbeat(record(seq=1, url="http://127.0.0.1:1"))
    old = await world.get("d0")
    await registry.refresh()
    await world.store.heartbeat(record(seq=2, url="http://127.0.0.1:2"))
    await registry.refresh()
    await world.put("d0", old)
    await registry.refresh()
    assert [one.url for one in registry.known("decode")] == ["http://127.0.0.1:2"]
    assert registry.refused == {"replay": 1}


@pytest.mark.parametrize(
    "junk",
    [
        b"", b"\xff\xfe\x00", b"{", b"null", b"[" * 100_000, b"x" * (MAX_RECORD_BYTES + 1), b"x" * 5_000_000,
        b"0" * 64 + b" {}", b'{"degree":NaN}',
    ],
    ids=["empty", "binary", "half", "null", "deep", "long", "huge", "unsigned", "nan"],
)  # fmt: skip
async def test_junk_under_a_heartbeats_key_spoils_that_record_alone(world: World, junk: bytes) -> None:
    await world.store.heartbeat(record("d0"))
    await world.put("d1", junk)
    found = await world.store.snapshot()
    assert [one.worker for one in found.workers] == ["d0"]
    assert [name for name, _ in found.refused] == (["d1"] if junk else []), "an empty one is none"
    await world.store.heartbeat(record("d1"))
    assert await world.known() == ["d0", "d1"], "its worker writes over it"


@pytest.mark.parametrize("name", [b"\xff\xfe", b"", b"a b", b"a:b", b"x" * 254, b"x" * 1_000_000, "\u00fc".encode()])
async def test_a_name_that_is_no_workers_spoils_no_other_and_is_taken_off(
    world: World, name: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "ABSENT_S", 0.0)
    await world.store.heartbeat(record("d0"))
    await world.put(name, stored(record("d0")))
    found = await world.store.snapshot()
    assert [one.worker for one in found.workers] == ["d0"]
    assert [reason for _, reason in found.refused] == ["key"]
    assert await world.attacker.smembers(WORKERS) == {b"d0"}


TYPES: dict[str, Any] = {
    "string": lambda client, key: client.set(key, "x"),
    "list": lambda client, key: client.rpush(key, "x"),
    "hash": lambda client, key: client.hset(key, "a", "b"),
    "zset": lambda client, key: client.zadd(key, {"a": 1}),
    "stream": lambda client, key: client.xadd(key, {"a": "b"}),
    "set": lambda client, key: client.sadd(key, "x"),
}


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "set"])
async def test_another_type_in_the_place_of_the_list_is_mended(world: World, kind: str) -> None:
    await world.store.heartbeat(record("d0"))
    await world.attacker.delete(WORKERS)
    await TYPES[kind](world.attacker, WORKERS)
    await world.store.heartbeat(record("d0"))
    assert await world.known() == ["d0"], "by the worker"
    await world.attacker.delete(WORKERS)
    await TYPES[kind](world.attacker, WORKERS)
    found = await world.store.snapshot()
    assert (found.workers, found.refused) == ((), (("", "type"),))
    assert await world.attacker.exists(WORKERS) == 0, "by the reader"
    await world.attacker.delete(WORKERS)
    await TYPES[kind](world.attacker, WORKERS)
    await world.store.withdraw("d0")


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "string"])
async def test_other_types_under_any_key_stop_nothing(world: World, kind: str) -> None:
    put, store = TYPES[kind], world.store
    await store.heartbeat(record("d0"))
    for name in ("worker:d1", "worker:d2", "epoch", "bind:s", "head:h", "demand", "bind:t"):
        await world.attacker.delete(PREFIX + name)
        await put(world.attacker, PREFIX + name)
    await world.attacker.sadd(WORKERS, "d1", "d2")
    found = await store.snapshot()
    assert [one.worker for one in found.workers] == ["d0"]
    assert sorted(found.refused) == [("d1", "type"), ("d2", "type")]
    assert (await store.snapshot()).epoch == found.epoch != ""
    await store.heartbeat(record("d1"))
    assert await world.known() == ["d0", "d1"]
    owners = await asyncio.gather(
        store.bind("s", "d0", replaces="", ttl_s=60), store.bind("fine", "d1", replaces="", ttl_s=60)
    )
    assert list(owners) == ["d0", "d1"], "one bad binding fails no other that is asked with it"
    assert await store.bind("s", "d1", replaces="", ttl_s=60) == "d0"
    assert await store.sessions_of(["h", "unknown"]) == [None, None]
    await store.put_head("h", "session", ttl_s=60)
    assert await store.sessions_of(["h"]) == ["session"]
    assert await store.unbind("t") is None
    assert await world.attacker.exists(PREFIX + "bind:t") == 0
    await store.demand()
    assert await store.unbind("s") == "d0"


@pytest.mark.parametrize(
    "forged",
    [
        b"d1", b"d1 " + b"0" * 32, b"\xff\xfe", b"x" * 100_000, b"",
        seal_value("d1", key=STATE_KEY, name=PREFIX + "bind:another").encode(),
        seal_value("d1", key=STATE_KEY, name="weft:{ns/other}:bind:s").encode(),
        seal_value("d1", key=derive(b"another", "state"), name=PREFIX + "bind:s").encode(),
    ],
    ids=["plain", "guess", "binary", "long", "empty", "other session", "other service", "other key"],
)  # fmt: skip
async def test_a_forged_binding_counts_as_none(world: World, forged: bytes) -> None:
    store = world.store
    await world.attacker.set(PREFIX + "bind:s", forged)
    owners = await asyncio.gather(
        store.bind("s", "d0", replaces="", ttl_s=60), store.bind("other", "d2", replaces="", ttl_s=60)
    )
    assert list(owners) == ["d0", "d2"]
    assert await store.bind("s", "d2", replaces="", ttl_s=60) == "d0", "and is replaced"
    await world.attacker.set(PREFIX + "bind:s", forged)
    assert await store.unbind("s") is None
    await world.attacker.set(PREFIX + "head:h", forged)
    assert await store.sessions_of(["h"]) == [None]


async def test_a_genuine_binding_is_replaced_only_by_who_names_its_worker(world: World) -> None:
    store = world.store
    assert await store.bind("s", "d0", replaces="", ttl_s=60) == "d0"
    assert await store.bind("s", "d1", replaces="d2", ttl_s=60) == "d0"
    assert await store.bind("s", "d1", replaces="d0", ttl_s=60) == "d1"
    assert await store.unbind("s") == "d1"


async def test_two_that_replace_a_binding_at_once_agree(world: World) -> None:
    """And one that is changed in between stays whose it is."""
    other = RedisStore(world.url, namespace="ns", service="svc", key=STATE_KEY)
    for i in range(20):
        session = f"s{i}"
        assert await world.store.bind(session, "d0", replaces="", ttl_s=60) == "d0"
        owners = await asyncio.gather(
            world.store.bind(session, "d1", replaces="d0", ttl_s=60), other.bind(session, "d2", replaces="d0", ttl_s=60)
        )
        assert len(set(owners)) == 1
        assert await world.store.unbind(session) == owners[0]
    await other.close()


async def test_a_full_redis_fails_a_binding_and_forgets_none(world: World) -> None:
    assert await world.store.bind("s", "d0", replaces="", ttl_s=60) == "d0"
    await world.attacker.config_set("maxmemory", "1")
    for replaces in ("", "d0"):
        with pytest.raises(StoreDownError):
            await world.store.bind("s", "d1", replaces=replaces, ttl_s=60)
    await world.attacker.config_set("maxmemory", "0")
    assert await world.store.unbind("s") == "d0"


async def test_names_without_a_heartbeat_are_taken_off_after_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.store.heartbeat(record("d0"))
    await world.attacker.sadd(WORKERS, *(f"dead-{i}" for i in range(50)))
    for _ in range(2):
        assert await world.known() == ["d0"]
    assert await world.attacker.scard(WORKERS) == 51, "it may be about to come back"
    monkeypatch.setattr(redis_store, "ABSENT_S", 0.0)
    await world.store.snapshot()
    assert await world.attacker.smembers(WORKERS) == {b"d0"}


async def test_a_list_of_very_many_names_is_read_in_part_and_shrinks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in range(0, 30_000, 10_000):
        await world.attacker.sadd(WORKERS, *(f"junk-{i}" for i in range(start, start + 10_000)))
    found = await world.store.snapshot()
    assert (found.workers, found.refused) == ((), ()), "it is read, though not whole"
    monkeypatch.setattr(redis_store, "ABSENT_S", 0.0)
    monkeypatch.setattr(redis_store, "MOST_REMOVED", 10_000)
    for _ in range(5):
        await world.store.snapshot()
    await world.store.heartbeat(record("d0"))
    assert await world.known() == ["d0"]
    assert await world.attacker.scard(WORKERS) == 1


async def test_a_heartbeat_and_a_registry_go_on_beside_an_attacker_who_writes_all_the_time(world: World) -> None:
    async def probe(_: str) -> Health:
        return "ready"

    registry = Registry(world.store, probe)
    beat = Heartbeat(world.store, lambda seq: record("d0", seq=seq))
    names = ("workers", "worker:d0", "epoch", "bind:s", "demand")
    for i, kind in enumerate([*TYPES] * 4):
        name = PREFIX + names[i % len(names)]
        await world.attacker.delete(name)
        await TYPES[kind](world.attacker, name)
        await beat.beat()
        await registry.refresh()
        assert registry.store_up
    await until(lambda: is_so(beat.written and [r.worker for r in registry.ready("decode")] == ["d0"]))
