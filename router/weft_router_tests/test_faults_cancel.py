"""Clients that leave at any point free both engines at once, and nothing stays behind."""

import asyncio
import contextlib
import random
import time

import orjson
import pytest

from weft_router_tests.stack import MODEL, Stack, is_so, until

pytestmark = [pytest.mark.component, pytest.mark.alone]

CANCELS = 500
CLIENTS = 8


async def test_500_cancels_at_random_points_leave_nothing_behind(stack: Stack) -> None:
    """Before the prefill's answer, between prefill and decode, in mid-stream, and just when the answer ends."""
    await stack.up(decode=2, prefill=1)
    for engine in stack.engines.values():
        engine.script.delay_s, engine.script.gap_s = 0.004, 0.004
    stack.engines["p0"].script.delay_s = 0.02
    rng = random.Random(5)
    points = {"nothing": 0, "stream": 0, "whole": 0}

    async def one(k: int) -> None:
        stream = k % 3 > 0
        body = orjson.dumps(
            {"model": MODEL, "messages": [{"role": "user", "content": f"question {k}"}], "stream": stream}
        )
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.processes["c0"].settings.port)
        writer.write(head.encode() + body)
        pieces = rng.choice((0, 0, 1, 2, 4, 8))  # leave after so many, or after a time
        got = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rng.random() * 0.15 if not pieces else 5.0):
                while not got.endswith(b"0\r\n\r\n") and not (pieces and got.count(b"data: ") >= pieces):
                    piece = await reader.read(4096)
                    if not piece or (not stream and piece.endswith(b"}")):
                        got += b"0\r\n\r\n"
                        break
                    got += piece
        points["whole" if got.endswith(b"0\r\n\r\n") else "stream" if b"data: " in got else "nothing"] += 1
        writer.transport.abort()

    async def client() -> None:
        for _ in range(CANCELS // CLIENTS):
            await one(rng.randrange(10**6))

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    ended = time.monotonic()
    await until(lambda: is_so(all(engine.running == 0 for engine in stack.engines.values())), seconds=2)
    assert time.monotonic() - ended < 0.6, "the engines went on for half a second"
    assert points["nothing"] > 50, points
    assert points["stream"] > 50, points

    async def quiet() -> bool:
        pages = [await stack.metrics(name) for name in stack.processes]
        return not any(
            page[key]
            for page in pages
            for key in page
            if key.startswith(("weft_router_inflight{", "weft_router_queue_length"))
        )

    await until(quiet)
    prefill = stack.engines["p0"]
    # What a prefill gave back in the very moment its client left is known to nobody: its lease ends it.
    await until(lambda: is_so(len(prefill.held) <= CANCELS // 12), seconds=3)
    released = await released_of(stack)
    assert released >= 1, "no cancel fell between prefill and decode"
    assert (await stack.chat([{"role": "user", "content": "x"}])).status == 200


async def released_of(stack: Stack) -> float:
    hosts = {id(stack.host(name)): name for name in ("d0", "d1")}
    return sum([await stack.count("weft_router_handle_releases_total", name) for name in hosts.values()])


@pytest.mark.parametrize(
    ("point", "stream"),
    [(point, stream) for point in ("queue", "prefill", "decode") for stream in (True, False)] + [("tokens", True)],
)
async def test_a_cancel_reaches_the_engines_within_half_a_second(stack: Stack, point: str, stream: bool) -> None:
    await stack.up()
    prefill, decode = stack.engines["p0"], stack.engines["d0"]
    blockers: list[asyncio.Future[object]] = []
    if point in ("queue", "prefill"):
        prefill.script.gate = asyncio.Event()
    if point == "queue":
        hello = [{"role": "user", "content": "b"}]
        blockers += [asyncio.ensure_future(stack.chat(hello, session=f"b{k}")) for k in range(2)]
        await until(lambda: is_so(prefill.running == 2))
    if point == "decode":
        decode.script.hang = True
    if point == "tokens":
        decode.script.gap_s = 0.3
    pending = asyncio.ensure_future(stack.chat([{"role": "user", "content": "x"}], stream=stream))
    at_work = decode if point in ("decode", "tokens") else prefill
    if point == "queue":
        await until(lambda: is_so(len(stack.worker_of("p0").queue) == 3))
    else:
        await until(lambda: is_so(at_work.running == 1))
    pending.cancel()
    await asyncio.wait([pending])
    started = time.monotonic()
    if point == "queue":
        await until(lambda: is_so(len(stack.worker_of("p0").queue) == 2), seconds=1)
    else:
        await until(lambda: is_so(at_work.running == 0 and at_work.aborted == 1), seconds=1)
    assert time.monotonic() - started < 0.5
    if prefill.script.gate is not None:
        prefill.script.gate.set()
    for blocker in blockers:
        await blocker
