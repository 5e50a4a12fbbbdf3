"""Requests while no worker is there: they wait, bounded in number and time, and the operator is told of them."""

import asyncio
from typing import Any

import pytest
import redis.asyncio as redis

from weft_core.heartbeat import demand_key
from weft_router_tests.conftest import RedisServer
from weft_router_tests.stack import MODEL, Stack, get, router_json, until

pytestmark = pytest.mark.component

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


def holding(seconds: float, most: int = 64) -> dict[str, Any]:
    return {**router_json(), "hold": {"seconds": seconds, "most": most}}


async def held(stack: Stack, count: int) -> None:
    """Wait until so many requests wait."""

    async def wait() -> bool:
        return await stack.count("weft_router_held") == count

    await until(wait)


async def told(server: RedisServer) -> bool:
    async with redis.Redis(port=server.port) as client:
        return bool(await client.exists(demand_key("ns", "svc")))


async def test_a_request_waits_for_the_first_worker_and_is_served_by_it(
    redis_stack: Stack, redis_server: RedisServer
) -> None:
    redis_stack.config = holding(60.0)
    await redis_stack.router("coordinator", "c0")
    await until(lambda: ready(redis_stack))
    status, page = await get(redis_stack, redis_stack.front + "/v1/models")
    assert status == 200
    assert MODEL in page, "the model is listed while there is no worker"
    assert not await told(redis_server)
    request = asyncio.create_task(redis_stack.chat(HELLO, session="s"))
    await held(redis_stack, 1)
    await until(lambda: told(redis_server))
    await redis_stack.worker("decode", "d0")
    answer = await request
    assert answer.status == 200
    assert answer.headers["X-Weft-Worker"] == "d0"
    await held(redis_stack, 0)


async def ready(stack: Stack) -> bool:
    """Return whether the coordinator takes requests."""
    return (await get(stack, stack.front + "/readyz"))[0] == 200


async def test_what_waits_too_long_gets_503_and_when_to_come_back(sidecars: Stack) -> None:
    sidecars.config = holding(0.2)
    await sidecars.router("coordinator", "c0")
    answer = await sidecars.chat(HELLO)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    assert "no worker got ready within 0.2 s" in answer.json["error"]["message"]
    assert await sidecars.count("weft_router_rejected_total", reason="no-worker") == 1


async def test_more_than_may_wait_are_refused_at_once(sidecars: Stack) -> None:
    sidecars.config = holding(600.0, most=2)
    await sidecars.router("coordinator", "c0")
    waiting = [asyncio.create_task(sidecars.chat(HELLO, session=f"s{k}")) for k in range(2)]
    await held(sidecars, 2)
    answer = await sidecars.chat(HELLO, session="one too many")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    assert "2 requests wait" in answer.json["error"]["message"]
    await sidecars.worker("decode", "d0")
    assert [one.status for one in await asyncio.gather(*waiting)] == [200, 200]


async def test_a_request_that_cannot_be_served_wakes_nobody(redis_stack: Stack, redis_server: RedisServer) -> None:
    redis_stack.config = holding(600.0)
    await redis_stack.router("coordinator", "c0")
    assert (await redis_stack.chat(HELLO, n=99)).status == 400
    assert not await told(redis_server)


async def test_those_who_wait_are_told_when_the_coordinator_ends(sidecars: Stack) -> None:
    sidecars.config = holding(600.0)
    await sidecars.router("coordinator", "c0")
    request = asyncio.create_task(sidecars.chat(HELLO))
    await held(sidecars, 1)
    sidecars.processes["c0"].stop.set()
    answer = await request
    assert answer.status == 503


async def test_without_a_hold_nobody_waits(sidecars: Stack) -> None:
    await sidecars.router("coordinator", "c0")
    answer = await sidecars.chat(HELLO)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
    assert (await get(sidecars, sidecars.front + "/readyz"))[0] == 503
