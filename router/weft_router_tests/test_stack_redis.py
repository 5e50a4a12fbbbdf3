"""Two coordinators on a real Redis: one binding, Redis gone, Redis back and empty."""

import asyncio
from typing import Any

import pytest
import redis.asyncio as redis

from weft_router.state.redis_store import RedisStore
from weft_router_tests.conftest import RedisServer
from weft_router_tests.stack import STATE_KEY, Stack, until

pytestmark = pytest.mark.component

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


async def test_two_coordinators_agree_on_a_sessions_worker(redis_stack: Stack) -> None:
    await redis_stack.up(decode=3, prefill=0, coordinators=2)
    fronts = [redis_stack.processes[name].url for name in ("c0", "c1")]
    for i in range(6):
        answers = await asyncio.gather(*(redis_stack.chat(HELLO, session=f"s{i}", front=front) for front in fronts * 2))
        assert len({answer.headers["X-Weft-Worker"] for answer in answers}) == 1


async def test_heartbeats_expire_and_leave_with_their_worker(redis_stack: Stack, redis_server: RedisServer) -> None:
    await redis_stack.up(decode=1, prefill=1)
    async with redis.Redis(port=redis_server.port) as client:
        seen: list[int] = []

        async def fresh() -> bool:
            seen.append(await client.ttl("weft:{ns/svc}:worker:d0"))
            return seen[-1] >= 3  # right after a heartbeat, of which one may be late on a busy machine

        await until(fresh)
        assert max(seen) <= 5
        assert await client.smembers("weft:{ns/svc}:workers") == {b"d0", b"p0"}
        redis_stack.processes["d0"].stop.set()
        await asyncio.wait_for(redis_stack.processes["d0"].task, 10)
        assert await client.exists("weft:{ns/svc}:worker:d0") == 0
        assert await client.smembers("weft:{ns/svc}:workers") == {b"p0"}


async def test_sessions_go_on_without_redis_and_are_published_when_it_is_back(
    redis_stack: Stack, redis_server: RedisServer
) -> None:
    await redis_stack.up(decode=2, prefill=1, coordinators=2)
    before = {i: await redis_stack.chat(HELLO, session=f"s{i}") for i in range(4)}
    redis_server.stop()
    await until(lambda: _state(redis_stack, 0.0))
    for i in range(4):
        answer = await redis_stack.chat(HELLO, session=f"s{i}")
        assert answer.status == 200
        assert answer.headers["X-Weft-Worker"] == before[i].headers["X-Weft-Worker"]
    fresh = await redis_stack.chat(HELLO, session="new")
    assert fresh.status == 200
    assert fresh.headers["X-Weft-Route"] == "remote"
    redis_server.start()
    await until(lambda: _state(redis_stack, 1.0))
    other = redis_stack.processes["c1"].url
    for i in range(4):
        answer = await redis_stack.chat(HELLO, session=f"s{i}", front=other)
        assert answer.headers["X-Weft-Worker"] == before[i].headers["X-Weft-Worker"]
    answer = await redis_stack.chat(HELLO, session="new", front=other)
    assert answer.headers["X-Weft-Worker"] == fresh.headers["X-Weft-Worker"]


async def test_a_coordinator_waits_for_redis_at_its_start(redis_stack: Stack, redis_server: RedisServer) -> None:
    redis_server.stop()
    await redis_stack.router("coordinator", "c0")
    async with redis_stack.http.get(redis_stack.front + "/readyz") as response:
        assert (response.status, await response.text()) == (503, "Redis was not reached yet\n")
    redis_server.start()
    await redis_stack.worker("decode", "d0")
    await redis_stack.settle(decode=1, prefill=0)
    assert (await redis_stack.chat(HELLO)).status == 200


async def _state(stack: Stack, value: float) -> bool:
    pages = [await stack.metrics(name) for name in stack.processes if not name.startswith("p")]
    return all(page["weft_router_state_up"] == value for page in pages)


async def test_an_epoch_that_is_gone_counts_as_a_new_one(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisStore(redis_server.url, namespace="ns", service="svc", key=STATE_KEY)
    known = (await store.snapshot()).epoch
    assert (await store.snapshot()).epoch == known
    real = redis.client.Pipeline.execute

    async def evicted(pipe: Any, **how: Any) -> list[Any]:
        answers = list(await real(pipe, **how))
        return [answers[0], b""]

    with monkeypatch.context() as patch:
        patch.setattr(redis.client.Pipeline, "execute", evicted)
        assert (await store.snapshot()).epoch not in ("", known)
    await store.close()
