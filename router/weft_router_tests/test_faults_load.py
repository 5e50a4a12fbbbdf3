"""More load than there is room for, nobody to serve it, workers that are replaced one after the other."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from weft_router_tests.fake_engine import prompt_ids, reply_text
from weft_router_tests.stack import MODEL, Stack, crowd, failures, is_so, router_json, until

pytestmark = pytest.mark.component

WAITING = 20
OFFERED = 300


def asked(k: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"question {k}"}]


def rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def raw(stack: Stack, k: int, *, stream: bool) -> tuple[int, bytes, float]:
    """Send a request over a connection of its own; return status, answer and seconds."""
    body = orjson.dumps({"model": MODEL, "messages": asked(k), "stream": stream})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.processes["c0"].settings.port)
    started = time.monotonic()
    writer.write(head.encode() + body)
    answer = await asyncio.wait_for(reader.read(), 15)
    writer.close()
    return int(answer.split(b" ", 2)[1]), answer, time.monotonic() - started


@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_more_than_the_queue_holds_is_refused_at_once(stack: Stack, stream: bool) -> None:
    stack.config = {**router_json(), "qos": {"maxWaiting": WAITING}}
    await stack.up(prefill=0)
    engine = stack.engines["d0"]
    engine.script.gate = asyncio.Event()
    before = rss()
    offered = [asyncio.ensure_future(raw(stack, k, stream=stream)) for k in range(OFFERED)]
    await until(lambda: is_so(sum(one.done() for one in offered) >= OFFERED - WAITING))
    queued = sum(not one.done() for one in offered)
    assert len(stack.worker_of("d0").queue) <= queued
    assert WAITING // 2 <= queued <= WAITING
    singles = [await raw(stack, k, stream=stream) for k in range(5)]
    assert min(seconds for _, _, seconds in singles) < 0.05
    assert rss() - before < 64 * 2**20
    engine.script.gate.set()
    answers = await asyncio.gather(*offered)
    statuses = [status for status, _, _ in answers]
    assert statuses.count(200) == queued
    refused = [answer for status, answer, _ in answers if status != 200]
    assert {status for status in statuses if status != 200} <= {429, 503}
    assert all(b"\r\nRetry-After: " in answer for answer in refused)
    assert (await raw(stack, 0, stream=stream))[0] == 200, "the room is free again"
    assert await stack.count("weft_router_rejected_total") == OFFERED - queued + 5


async def test_ten_times_the_capacity_leaves_the_capacity_served(stack: Stack) -> None:
    """Offered evenly: what is served is what the engine can do, whatever is refused besides."""
    stack.config = {**router_json(), "qos": {"maxWaiting": 8}}
    await stack.up(prefill=0)
    busy = asyncio.Semaphore(1)
    engine = stack.engines["d0"]
    engine.script.length = 1
    work_s, done = 0.03, 0
    real = engine._answer

    async def one_at_a_time(request: Any, body: Any) -> Any:
        nonlocal done
        async with busy:
            await asyncio.sleep(work_s)
            done += 1
        return await real(request, body)

    engine._answer = one_at_a_time  # type: ignore[method-assign]
    started = time.monotonic()
    offered = []
    for k in range(200):
        offered.append(asyncio.ensure_future(raw(stack, k, stream=False)))
        await asyncio.sleep(work_s / 10)
    offering_s = time.monotonic() - started
    answers = await asyncio.gather(*offered)
    served = sum(status == 200 for status, _, _ in answers)
    assert done == served
    # The engine was never idle while requests were offered; a turn of a busy loop is 5 ms of each 30 here.
    assert served >= 0.7 * offering_s / (work_s + 0.005)
    assert served < 150, "it was no overload"


@pytest.mark.parametrize("cause", ["dead", "unhealthy", "draining"])
async def test_with_nobody_to_serve_it_a_request_is_refused_at_once_and_served_when_somebody_is_back(
    stack: Stack, cause: str
) -> None:
    if cause == "draining" and stack.composition == "standalone":
        pytest.skip("a standalone process drains as a whole")
    await stack.up(prefill=1)
    engine = stack.engines["d0"]
    if cause == "dead":
        await engine.stop()
    elif cause == "unhealthy":
        engine.script.health = 503
    else:
        stack.worker_of("d0").drain()
    await until(lambda: refused(stack))
    for stream in (True, False):
        for path in ("/v1/chat/completions", "/v1/completions"):
            took = []
            for _ in range(4):  # the quickest counts: other processes may hold the CPU for a moment
                started = time.monotonic()
                body = {"model": MODEL, "messages": asked(0), "prompt": "x", "stream": stream}
                async with stack.http.post(stack.front + path, json=body) as response:
                    assert response.status == 503
                    assert int(response.headers["Retry-After"]) >= 1
                    assert (await response.json())["error"]["type"] == "service_unavailable"
                took.append(time.monotonic() - started)
            assert min(took) < 0.1
    if cause == "dead":
        await stack.engine("d0")
    elif cause == "unhealthy":
        engine.script.health = 200
    else:
        stack.worker_of("d0").draining = False
    await until(lambda: served(stack), seconds=5)


async def refused(stack: Stack) -> bool:
    return (await stack.chat(asked(0))).status == 503


async def served(stack: Stack) -> bool:
    return (await stack.chat(asked(0))).status == 200


async def test_all_processes_are_replaced_one_after_the_other_and_no_request_fails(sidecars: Stack) -> None:
    stack = sidecars
    await stack.up(decode=2, prefill=2, coordinators=2)
    # As a Service does: a coordinator that is told to go gets no new connections.
    fronts = ["c0", "c1"]
    for engine in stack.engines.values():
        engine.script.gap_s = 0.005
    over = False
    count = 0
    failed: list[str] = []

    async def client(number: int) -> None:
        nonlocal count
        while not over:
            count += 1
            k = 1000 * number + count
            front = stack.processes[fronts[k % len(fronts)]].url
            answer = await stack.chat(asked(k), session=f"s{k % 40}", stream=k % 2 == 0, front=front)
            text = reply_text(prompt_ids({"messages": asked(k)}))
            if answer.status != 200 or answer.text != text:
                failed.append(f"{answer.status}: {answer.raw[-120:]!r}")

    clients = [asyncio.ensure_future(client(number)) for number in range(6)]
    try:
        for name in ("c0", "d0", "p0", "c1", "d1", "p1"):
            going = stack.processes[name]
            seen = count
            await until(lambda seen=seen: is_so(count > seen + 20))  # type: ignore[misc]
            if name in fronts:
                fronts.remove(name)
            going.stop.set()
            await asyncio.wait_for(going.task, 10)
            if going.settings.role == "coordinator":
                await stack.router("coordinator", name)
                await stack.settle(decode=2, prefill=2)
                fronts.append(name)
            else:
                await stack.router(going.settings.role, name, engine_url=stack.engines[name].url)
                await stack.settle(decode=2, prefill=2)
    finally:
        over = True
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*clients), 10)
    assert not failed, failures(failed, count)
    assert count > 80


async def test_a_crowd_of_sessions_is_served_without_a_fault(stack: Stack) -> None:
    """The base line of all the counts above."""
    await stack.up(decode=2, prefill=2)

    async def send(k: int) -> str | None:
        answer = await stack.chat(asked(k), session=f"s{k}", stream=k % 2 == 0)
        return None if answer.text == reply_text(prompt_ids({"messages": asked(k)})) else f"{answer.status}"

    failed = await crowd(200, 8, send)
    assert not failed, failures(failed, 200)
    assert sum(engine.died + engine.aborted for engine in stack.engines.values()) == 0
