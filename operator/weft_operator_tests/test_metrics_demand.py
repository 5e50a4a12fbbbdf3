"""Coordinators say in Redis that requests wait, and the operator wakes the service: both sides against a real one."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis.asyncio as redis

from weft_core.heartbeat import demand_key
from weft_core.records import seal_mark
from weft_operator.api.objects import ServiceKey
from weft_operator.metrics.demand import UNKNOWN_AFTER_S, DemandWatch
from weft_operator_tests.service_keys import state_key, state_keys
from weft_router.state.redis_store import RedisStore
from weft_router_tests.redis_server import RedisServer

KEY, OTHER = ServiceKey("team", "demo"), ServiceKey("team", "other")


class Watch(DemandWatch):
    """One that looks when the test says so, with a clock of the test."""

    def __init__(self, url: str) -> None:
        self.now = 0.0
        self.woken: list[ServiceKey] = []
        self.polls = asyncio.Semaphore(0)
        self.ended = asyncio.Semaphore(0)
        super().__init__(url, keys=state_keys(), enqueue=self.woken.append, clock=lambda: self.now, sleep=self._pause)

    async def _pause(self, _seconds: float) -> None:
        self.ended.release()
        await self.polls.acquire()

    async def poll(self) -> None:
        """Look once, to the end."""
        await self.ended.acquire()
        self.polls.release()
        await self.ended.acquire()
        self.ended.release()


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[Watch]:
    watch = Watch(url)
    try:
        yield watch
    finally:
        await watch.close()


@pytest.mark.component
async def test_a_service_at_zero_is_scaled_up_when_a_coordinator_reports_waiting_requests(
    redis_server: RedisServer,
) -> None:
    store = RedisStore(redis_server.url, namespace="team", service="demo", key=state_key(KEY))
    async with watching(redis_server.url) as watch:
        assert [await watch.read(key) for key in (KEY, OTHER)] == ["None", "None"]
        await watch.poll()
        assert watch.woken == []
        await store.demand()
        await watch.poll()
        assert watch.woken == [KEY], "and not the other one"
        assert [await watch.read(key) for key in (KEY, OTHER)] == ["Waiting", "None"]
        watch.forget(KEY)
        watch.woken.clear()
        await watch.poll()
        assert watch.woken == [], "it has workers again"
    await store.close()


@pytest.mark.component
async def test_forged_demand_does_not_scale_a_service_up(redis_server: RedisServer) -> None:
    key, now = state_key(KEY), time.time()
    mine, theirs = demand_key("team", "demo"), demand_key("team", "other")
    async with watching(redis_server.url) as watch, redis.Redis(port=redis_server.port) as client:
        for forged in (
            b"1", b"\xff\xfe", b"x" * 5000, seal_mark(key=state_key(OTHER), name=mine, now=now),
            seal_mark(key=key, name=theirs, now=now), seal_mark(key=key, name=mine, now=now - 3600),
            seal_mark(key=key, name=mine, now=now + 3600),
        ):  # fmt: skip
            await client.set(mine, forged)
            assert await watch.read(KEY) == "None", forged
        await client.delete(mine)
        await client.sadd(mine, b"another type")
        assert await watch.read(KEY) == "None"
        await client.delete(mine)
        await client.set(mine, seal_mark(key=key, name=mine, now=now))
        assert await watch.read(KEY) == "Waiting"


async def test_a_redis_that_does_not_answer_is_reported_after_a_while() -> None:
    async with watching("redis://127.0.0.1:1/0") as watch:
        assert await watch.read(KEY) == "None"
        await watch.poll()
        assert watch.woken == []
        watch.now = UNKNOWN_AFTER_S
        await watch.poll()
        assert watch.woken == [KEY], "so that its status says so"
        assert await watch.read(KEY) == "Unknown"
        watch.woken.clear()
        await watch.poll()
        assert watch.woken == [], "once"
