"""Rounds count as arrivals when a worker takes them on, each once: while they run, and whoever ends them."""

import asyncio
from typing import Any

import pytest

from weft_router_tests.stack import Stack, is_so, until

pytestmark = pytest.mark.component

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello " * 20}]
FIRST = 'weft_router_arrivals_total{phase="first",class="default"}'
LATER = 'weft_router_arrivals_total{phase="later",class="default"}'
SERVED = 'weft_router_rounds_total{phase="first",class="default"}'


async def counted(stack: Stack, name: str, *workers: str) -> float:
    """Return a counter summed over workers' processes, each process once."""
    urls = {stack.host(worker).url: worker for worker in workers}
    return sum([(await stack.metrics(worker)).get(name, 0.0) for worker in urls.values()])


async def test_a_round_that_runs_has_arrived(stack: Stack) -> None:
    await stack.up(prefill=0)
    gate = stack.engines["d0"].script.gate = asyncio.Event()
    pending = asyncio.ensure_future(stack.chat(HELLO, session="s"))
    await until(lambda: is_so(stack.engines["d0"].running == 1))
    assert (await counted(stack, FIRST, "d0"), await counted(stack, SERVED, "d0")) == (1, 0)
    gate.set()
    answer = await pending
    follow = [*HELLO, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "more"}]
    assert (await stack.chat(follow, session="s")).status == 200
    assert (await counted(stack, FIRST, "d0"), await counted(stack, LATER, "d0")) == (1, 1)


async def test_a_round_that_another_worker_serves_again_arrived_once(stack: Stack) -> None:
    await stack.up(decode=2, prefill=0)
    for engine in stack.engines.values():
        engine.script.status = 500
    pending = await stack.chat(HELLO, session="s")
    assert pending.status >= 500
    assert sum(len(engine.seen) for engine in stack.engines.values()) == 2
    assert await counted(stack, FIRST, "d0", "d1") == 1


async def test_a_stream_that_another_worker_ends_arrived_once(stack: Stack) -> None:
    await stack.up(decode=2, prefill=0)
    for engine in stack.engines.values():
        engine.script.length, engine.script.die_at_token, engine.script.times = 40, 20, 1
    answer = await stack.chat(HELLO, stream=True)
    assert answer.whole
    assert sum(engine.died for engine in stack.engines.values()) >= 1
    assert await counted(stack, FIRST, "d0", "d1") == 1
