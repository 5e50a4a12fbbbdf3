"""Coordinators say in Redis that requests wait, and the operator wakes the service: both sides against a real one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from weft_operator.manifest import ServiceKey
from weft_operator.measuring.demand import UNHEARD_S, DemandWatch
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
        super().__init__(url, wake=self.woken.append, clock=lambda: self.now, sleep=self._pause)

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
async def test_a_service_at_zero_is_woken_when_a_coordinator_says_that_requests_wait(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url, namespace="team", service="demo")
    async with watching(redis_server.url) as watch:
        assert [await watch.word(key) for key in (KEY, OTHER)] == ["None", "None"]
        await watch.poll()
        assert watch.woken == []
        await store.demand()
        await watch.poll()
        assert watch.woken == [KEY], "and not the other one"
        assert [await watch.word(key) for key in (KEY, OTHER)] == ["Waiting", "None"]
        watch.forget(KEY)
        watch.woken.clear()
        await watch.poll()
        assert watch.woken == [], "it has workers again"
    await store.close()


async def test_a_redis_that_does_not_answer_is_told_of_after_a_while() -> None:
    async with watching("redis://127.0.0.1:1/0") as watch:
        assert await watch.word(KEY) == "None"
        await watch.poll()
        assert watch.woken == []
        watch.now = UNHEARD_S
        await watch.poll()
        assert watch.woken == [KEY], "so that its status says so"
        assert await watch.word(KEY) == "Unknown"
        watch.woken.clear()
        await watch.poll()
        assert watch.woken == [], "once"
