"""Redis may go and come back under load, and engines may die meanwhile: no request fails."""

import asyncio
from typing import Any

import pytest

from weft_router_tests.conftest import RedisServer
from weft_router_tests.fake_engine import prompt_ids, reply_text
from weft_router_tests.stack import Stack, crowd, failures, until

pytestmark = pytest.mark.component

REQUESTS = 150


def asked(k: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"question {k}"}]


async def store_is(stack: Stack, up: bool) -> bool:
    pages = [await stack.metrics(name) for name in ("c0", "c1", "d0", "d1")]
    return all(page["weft_router_state_up"] == up for page in pages)


async def test_a_store_that_goes_and_comes_back_fails_no_request(redis_stack: Stack, redis_server: RedisServer) -> None:
    stack = redis_stack
    await stack.up(decode=2, prefill=2, coordinators=2)
    fronts = [stack.processes[name].url for name in ("c0", "c1")]
    sent = 0

    async def send(k: int) -> str | None:
        nonlocal sent
        sent += 1
        k += REQUESTS * turn
        answer = await stack.chat(asked(k), session=f"s{k % 30}", stream=k % 2 == 0, front=fronts[k % 2])
        return None if answer.text == reply_text(prompt_ids({"messages": asked(k)})) else f"{answer.status}"

    failed: list[str] = []
    for turn in range(4):
        work = asyncio.ensure_future(crowd(REQUESTS, 6, send))
        if turn == 1:
            await asyncio.to_thread(redis_server.stop)
            await until(lambda: store_is(stack, up=False))
        elif turn == 2:
            await stack.engines["p0"].stop()  # nobody can read of it in Redis: those who call it find out
            await stack.kill("d0")
            await stack.engines["d0"].stop()
        elif turn == 3:
            await asyncio.to_thread(redis_server.start)
        failed += await work
    assert not failed, failures(failed, sent)

    async def back() -> bool:
        pages = [await stack.metrics(name) for name in ("c0", "c1", "d1")]
        return all(page["weft_router_state_up"] == 1 for page in pages)

    await until(back)
    answers = await asyncio.gather(*(stack.chat(asked(0), session="new", front=front) for front in fronts * 2))
    assert {answer.headers["X-Weft-Worker"] for answer in answers} == {"d1"}
    assert (await stack.chat(asked(0), session="another")).headers["X-Weft-Prefill-Worker"] == "p1"
