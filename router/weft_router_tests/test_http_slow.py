"""Clients that are slow or read nothing: cut in time, and good ones beside them do not notice."""

import asyncio
import socket
from contextlib import AsyncExitStack
from time import monotonic

import pytest

from weft_router.http.exchange import Exchange
from weft_router.http.limits import HttpLimits
from weft_router_tests.http_kit import QUICK, Backend, Client, connected, echo, fronted, listening, on_uvloop, until

pytestmark = [pytest.mark.component, pytest.mark.alone]

POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


async def drip(client: Client, data: bytes, *, gap_s: float) -> float:
    """Send a byte at a time until the server ends the connection; return how long it took."""
    began = monotonic()
    ended = asyncio.ensure_future(client.rest())
    for byte in data:
        if ended.done() or client.writer.transport.is_closing():
            break
        client.writer.write(bytes([byte]))
        await asyncio.wait({ended}, timeout=gap_s)
    await ended
    return monotonic() - began


@on_uvloop
async def test_headers_that_do_not_end_are_cut_off() -> None:
    async with listening(echo, QUICK) as listener:
        async with connected(listener.port) as silent:
            began = monotonic()
            assert await silent.rest() in (b"", b"RST")
            assert QUICK.header_s <= monotonic() - began < 3 * QUICK.header_s
        async with connected(listener.port) as client:
            spent = await drip(client, b"GET / HTTP/1.1\r\nX: " + b"y" * 100, gap_s=0.02)
            assert QUICK.header_s <= spent < 3 * QUICK.header_s
        assert listener.connections.cut["slow headers"] == 2


@on_uvloop
async def test_the_time_for_headers_begins_anew_with_each_request() -> None:
    async with listening(echo, QUICK) as listener, connected(listener.port) as client:
        for _ in range(4):
            await client.send(b"GET / HTTP/1.1\r\n")
            await asyncio.sleep(QUICK.header_s / 2)
            await client.send(b"Host: a\r\n\r\n")
            assert (await client.response())[0] == 200
        began = monotonic()
        assert await client.rest() == b""
        assert QUICK.keep_alive_s <= monotonic() - began < 3 * QUICK.keep_alive_s
        assert listener.connections.cut == {"idle": 1}


@on_uvloop
async def test_a_slow_body_is_refused_and_a_steady_one_is_not() -> None:
    limits = HttpLimits(body_s=0.2, min_body_rate=1000.0, sweep_s=0.05, linger_s=0.2)
    async with listening(echo, limits) as listener:
        async with connected(listener.port) as client:
            await client.send(POST % 1000)
            await client.send(b"x" * 100)
            status, body = await client.response()
            assert (status, b"1000 bytes a second" in body) == (408, True)
        async with connected(listener.port) as client:  # fast first, and then nothing
            await client.send(POST % 300_000)
            await client.send(b"x" * 200_000)
            began = monotonic()
            assert (await client.response())[0] == 408
            assert monotonic() - began < 4 * limits.body_s
        async with connected(listener.port) as client:
            await client.send(POST % 3000)
            for _ in range(30):
                await client.send(b"x" * 100)
                await asyncio.sleep(0.025)
            assert (await client.response())[0] == 200
        assert listener.connections.cut == {"slow body": 2}


@on_uvloop
async def test_a_client_that_reads_nothing_is_cut_off_and_its_engine_waits_meanwhile() -> None:
    sent = 0

    async def endless(backend: Backend, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()
            sent += 65536

    limits = HttpLimits(max_unread=64 * 2**10, stall_s=0.4, sweep_s=0.05)
    backend = Backend(endless)
    async with fronted(backend, limits) as (listener, front), connected(listener.port) as client:
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.reader._limit = 1024  # type: ignore[attr-defined]  # so that the client's own buffers stay small
        await client.send(POST % 2 + b"{}")
        await until(lambda: any(c.full for c in listener.connections._live))
        seen = -1
        while seen != sent:  # until the kernels' buffers are full, too
            seen = sent
            await asyncio.sleep(0.1)
        assert sent < 40 * 2**20
        began = monotonic()
        await until(lambda: front.running == 0 and backend.open == 0)
        assert monotonic() - began < 1.0
        assert listener.connections.cut == {"slow reader": 1}


@on_uvloop
async def test_a_stream_goes_on_when_its_client_reads_again() -> None:
    pieces = 200

    async def long(backend: Backend, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for n in range(pieces):
            writer.write(b"10000\r\n" + bytes([65 + n % 26]) * 65536 + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with fronted(Backend(long)) as (listener, front), connected(listener.port) as client:
        await client.send(POST % 2 + b"{}")
        await until(lambda: any(c.full for c in listener.connections._live))
        status, body = await client.response()
        assert (status, len(body)) == (200, pieces * 65536)
        assert all(body[n * 65536] == 65 + n % 26 for n in range(pieces))
        assert front.failures == []


@on_uvloop
async def test_an_answer_that_nobody_fetches_does_not_hold_its_place() -> None:
    async def big(exchange: Exchange) -> None:
        exchange.reply(200, b"x" * 30_000_000)

    async with listening(big, QUICK) as listener, connected(listener.port) as client:
        client.reader._limit = 1024  # type: ignore[attr-defined]
        await client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        await until(lambda: len(listener.connections) == 1)
        await until(lambda: len(listener.connections) == 0, 2.0)
        assert sum(listener.connections.cut.values()) == 1


@on_uvloop
async def test_good_clients_do_not_notice_four_hundred_bad_ones() -> None:
    async def stream(backend: Backend, writer: asyncio.StreamWriter) -> None:
        endless = len(backend.seen[-1].body) > 2  # the never-reading ones' streams do not end
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while endless:
            writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            await writer.drain()
        writer.write(b"2\r\nok\r\n0\r\n\r\n")

    async def asked(client: Client, seconds: float) -> list[float]:
        times: list[float] = []
        end = monotonic() + seconds
        while monotonic() < end:
            began = monotonic()
            await client.send(POST % 2 + b"{}")
            assert await client.response() == (200, b"ok")
            times.append(monotonic() - began)
            await asyncio.sleep(0.01)
        return sorted(times)

    limits = HttpLimits(
        header_s=0.8, body_s=0.8, stall_s=0.8, keep_alive_s=5.0, sweep_s=0.1, linger_s=0.2, max_unread=16 * 2**10
    )
    backend = Backend(stream)
    async with AsyncExitStack() as stack:
        listener, front = await stack.enter_async_context(fronted(backend, limits))
        good = await stack.enter_async_context(connected(listener.port))
        alone = await asked(good, 0.6)
        bad = [await stack.enter_async_context(connected(listener.port)) for _ in range(300)]
        trickles = [await stack.enter_async_context(connected(listener.port)) for _ in range(100)]
        for n, client in enumerate(bad):
            if n % 3 == 0:
                client.writer.write(b"POST /v1/completions HTT")
            elif n % 3 == 1:
                client.writer.write(POST % 5000 + b"x")
            elif n % 30 == 2:
                client.reader._limit = 1024  # type: ignore[attr-defined]
                client.writer.write(POST % 8 + b'{"a": 1}')

        async def trickle() -> None:
            """Send 5 KB a second of a body of 32 MiB; a second of a body is worth 64 KiB."""
            for client in trickles:
                client.writer.write(POST % limits.max_body)
            while listener.connections.cut["slow body"] < 200:
                for client in trickles:
                    client.writer.write(b"x" * 512)
                await asyncio.sleep(0.1)

        trickling = asyncio.ensure_future(trickle())
        times = await asked(good, 2.0)
        await asyncio.wait_for(trickling, 10.0)
        await until(lambda: len(listener.connections) == 1)
        assert len(times) > 20
        assert times[len(times) * 9 // 10] < 1.5 * alone[len(alone) * 9 // 10] + 0.1
        cut = listener.connections.cut
        assert (cut["slow body"], cut["slow reader"]) == (200, 10)
        assert cut["slow headers"] == 190  # and those who said nothing at all
        assert front.running == 0
