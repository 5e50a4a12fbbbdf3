"""A client that goes at any moment: its engine is freed within half a second, and nothing is left of it."""

import asyncio
import gc
import random
from pathlib import Path
from time import monotonic

import pytest

from weft_router_tests.http_kit import Backend, Client, connected, fronted, on_uvloop, until

pytestmark = [pytest.mark.component, pytest.mark.alone]

POINTS = 500
AT_ONCE = 25
FREED_S = 0.5
BODY = b'{"prompt": "' + b"x" * 2000 + b'"}'
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
EVENTS = 40


async def stream(backend: Backend, writer: asyncio.StreamWriter) -> None:
    """Answer after a while with events, a while apart; the sixth part of all answers is larger than any buffer."""
    dice = random.Random(len(backend.seen))
    await asyncio.sleep(dice.random() * 0.02)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    event = b"data: " + b"y" * (200_000 if dice.random() < 1 / 6 else 50) + b"\n\n"
    for _ in range(EVENTS):
        await asyncio.sleep(dice.random() * 0.003)
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await writer.drain()
    writer.write(b"0\r\n\r\n")


async def leave(client: Client, dice: random.Random) -> None:
    """Go at a random byte of the request, or a random time of the answer, in one of three ways."""
    if dice.random() < 0.2:
        await client.send(REQUEST[: dice.randrange(len(REQUEST))])
    else:
        await client.send(REQUEST)
        await asyncio.sleep(dice.random() * 0.08)
        if dice.random() < 0.5:
            await client.reader.read(dice.randrange(1, 4096))
    way = dice.randrange(3)
    if way == 0:
        client.abort()
    elif way == 1:
        client.close()
    else:
        client.writer.write_eof()


def fds() -> int:
    """Return how many files this process has open, where the system tells."""
    listed = Path("/proc/self/fd")
    return len(list(listed.iterdir())) if listed.is_dir() else 0


@on_uvloop
async def test_five_hundred_clients_that_go_leave_nothing() -> None:
    dice = random.Random(5)
    backend = Backend(stream)
    slowest = 0.0
    async with fronted(backend) as (listener, front):
        before = (len(asyncio.all_tasks()), fds())

        async def one() -> None:
            async with connected(listener.port) as client:
                await leave(client, dice)
                await asyncio.sleep(0)

        for _ in range(POINTS // AT_ONCE):
            await asyncio.gather(*(one() for _ in range(AT_ONCE)))
            gone = monotonic()
            await until(lambda: front.running == 0 and front.pool.requests == 0 and not len(listener.connections), 2.0)
            await until(lambda: backend.open == front.pool.idle, 2.0)
            slowest = max(slowest, monotonic() - gone)
        assert slowest < FREED_S
        assert front.served > POINTS / 2
        assert len(front.failures) == 0  # a cancel is no failure of a leg
        await front.pool.close()
        await until(lambda: backend.open == 0)
        gc.collect()
        assert len(asyncio.all_tasks()) <= before[0]
        await until(lambda: fds() <= before[1])
    assert backend.errors == []


@on_uvloop
async def test_a_client_that_goes_while_its_engine_is_held_back_frees_it() -> None:
    async def endless(backend: Backend, writer: asyncio.StreamWriter) -> None:
        del backend
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()

    backend = Backend(endless)
    async with fronted(backend) as (listener, front):
        for way in (Client.abort, Client.close, lambda client: client.writer.write_eof()):
            async with connected(listener.port) as client:
                client.reader._limit = 1024  # type: ignore[attr-defined]
                await client.send(REQUEST)
                await until(lambda: any(c.full for c in listener.connections._live))
                way(client)
                began = monotonic()
                await until(lambda: front.running == 0 and backend.open == 0)
                assert monotonic() - began < FREED_S
        assert front.pool.requests == 0
