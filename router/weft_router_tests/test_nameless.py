"""Conversations without a name: each tenant has its bound, and the oldest goes first, in the store, too."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis.asyncio as redis

from weft_router.openai.identity import Identity, SessionIndex
from weft_router.sessions.session_recognizer import SessionRecognizer
from weft_router.state import redis_store
from weft_router.state.redis_store import RedisStore
from weft_router.state.store import MemoryStore
from weft_router_tests.redis_server import RedisServer
from weft_router_tests.stack import STATE_KEY, Stack, free_port, is_so, router_json, until
from weft_router_tests.test_redis_hostile import record


def test_a_tenant_with_very_many_conversations_has_its_own_oldest_forgotten() -> None:
    heads = SessionIndex(ttl_s=60, per_tenant=100)
    heads.put("h", "patient", "quiet")
    gone = [one for i in range(1000) for one in heads.put(f"{i}", f"s{i}", "loud")]
    assert gone == [(f"{i}", f"s{i}") for i in range(900)]
    assert len(heads) == 101
    assert heads.find(("h",)) == "patient"
    assert heads.find(("899",)) is None
    assert heads.find(("900",)) == "s900"


def test_of_a_conversation_that_goes_on_only_its_older_beginnings_are_forgotten() -> None:
    heads = SessionIndex(ttl_s=60, per_tenant=3)
    gone = [one for i in range(6) for one in heads.put(f"{i}", "s", "t")]
    assert gone == [("0", ""), ("1", ""), ("2", "")]
    assert heads.find(("5",)) == "s"


def test_nothing_is_kept_of_tenants_whose_conversations_are_over() -> None:
    now = 0.0
    heads = SessionIndex(ttl_s=60, limit=50, clock=lambda: now)
    for i in range(200):
        assert heads.put(f"{i}", f"s{i}", f"t{i}") == []
    assert len(heads) == len(heads._tenants) == len(heads._latest) == 50
    now = 100.0
    heads.put("x", "s", "t")
    assert len(heads) == len(heads._tenants) == len(heads._latest) == 1


async def test_what_is_forgotten_here_is_forgotten_in_the_store() -> None:
    store, ended = MemoryStore(), list[str]()
    made = SessionRecognizer(store, ttl_s=60, per_tenant=100, store_up=lambda: True, ended=ended.append)
    for i in range(300):
        await store.bind(f"s{i}", "d0", replaces="", ttl_s=60)
        made._note(Identity(f"s{i}", f"s{i}", (), f"h{i}"), "t")
    await until(lambda: is_so(made._forgetting is not None and made._forgetting.done()))
    assert ended == [f"s{i}" for i in range(200)]
    assert len(store._bindings) == len(store._heads) == 100
    await made.stop()


@pytest.mark.component
async def test_nameless_sessions_do_not_fill_redis(redis_stack: Stack, redis_server: RedisServer) -> None:
    redis_stack.config = router_json(limits={"maxNamelessSessions": 100})
    await redis_stack.up(decode=1, prefill=0)
    async with redis.Redis(port=redis_server.port) as client:
        for i in range(300):
            answer = await redis_stack.chat([{"role": "user", "content": f"conversation {i}"}])
            assert answer.status == 200

        async def bounded() -> bool:
            keys = await cast(Any, client).keys("weft:{ns/svc}:*")
            kinds = [key.split(b":")[2 if b"}" in key else 1] for key in keys]
            return kinds.count(b"bind") <= 100 and kinds.count(b"head") <= 100

        await until(bounded)
    assert await redis_stack.count("weft_router_sessions") <= 100


@pytest.fixture
async def small_redis(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[RedisServer]:
    """Give a server with 8 MB that forgets by the rule of the parameter."""
    options = ("--maxmemory", "8mb", "--maxmemory-policy", request.param)
    server = RedisServer(free_port(), tmp_path, options=options)
    server.start()
    yield server
    server.stop()


@pytest.mark.component
@pytest.mark.parametrize("small_redis", ["allkeys-lfu"], indirect=True)
async def test_heartbeats_stay_while_bindings_fill_a_small_redis(
    small_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine, on which the loop below takes longer than a heartbeat lasts, is not what this is about.
    monkeypatch.setattr(redis_store, "TIMEOUT_S", 30.0)
    monkeypatch.setattr(redis_store, "HEARTBEAT_EXPIRY_S", 300)
    store = RedisStore(small_redis.url, namespace="ns", service="svc", key=STATE_KEY)
    seen, seq = list[int](), 0
    async with redis.Redis(port=small_redis.port) as client:
        evicted = 0
        while evicted < 60_000:
            seq += 1
            for i in range(20):
                await store.heartbeat(record(f"d{i}", seq=seq))
            for part in range(4):
                names = [f"{seq}-{part}-{i}-{'x' * 20}" for i in range(1000)]
                await store.bind_all([(name, "d0") for name in names], ttl_s=600)
                for name in names[:50]:
                    await store.put_head(name, name, ttl_s=600)
                seen.append(len((await store.snapshot()).workers))
            evicted = int(cast(Any, await client.info("stats"))["evicted_keys"])
    await store.close()
    assert seq > 5
    assert min(seen) >= 18, f"of 20, while {evicted} keys were evicted: a worker that is missed is probed, and stays"
    assert sum(seen) / len(seen) > 19.8


@pytest.mark.component
@pytest.mark.parametrize("small_redis", ["allkeys-lfu"], indirect=True)
async def test_heartbeats_are_written_whatever_others_leave_in_redis(
    small_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "TIMEOUT_S", 30.0)
    monkeypatch.setattr(redis_store, "HEARTBEAT_EXPIRY_S", 300)
    store = RedisStore(small_redis.url, namespace="ns", service="svc", key=STATE_KEY)
    async with redis.Redis(port=small_redis.port) as client:
        for i in range(200):
            await client.set(f"weft:{{ns/other}}:junk:{i}", b"x" * 100_000)  # without an end
            await store.heartbeat(record("d0", seq=i + 1))
            assert await store.bind(f"s{i}", "d0", replaces="", ttl_s=600) == "d0"
    assert [one.worker for one in (await store.snapshot()).workers] == ["d0"]
    await asyncio.sleep(0)
    await store.close()
