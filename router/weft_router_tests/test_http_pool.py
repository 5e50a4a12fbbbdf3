"""Connections to backends: kept, reused only when nothing is left on them, and let go of."""

import asyncio
import socket
import struct
import tracemalloc

import orjson
import pytest

from weft_router.errors import UpstreamFailedError
from weft_router.http.header_lines import header_lines
from weft_router.http.pool import ConnectionPool
from weft_router.http.response import MAX_HEAD, BadResponseError, ResponseReader
from weft_router.http.upstream_connection import Origin
from weft_router.http.upstream_request import BufferedResponse, UpstreamRequest
from weft_router.http.whole_response import WholeResponseReader
from weft_router_tests.http_kit import Backend, on_uvloop, until

pytestmark = pytest.mark.component

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def saying(data: bytes, *, close: bool = False) -> Backend:
    """Return a backend that answers with these bytes."""

    async def answer(backend: Backend, writer: asyncio.StreamWriter) -> None:
        del backend
        writer.write(data)
        if close:
            writer.close()
            await asyncio.sleep(5)

    return Backend(answer)


async def call(
    pool: ConnectionPool, url: str, payload: bytes = b"{}", *, seconds: float = 5.0, resend: bool = False
) -> BufferedResponse:
    leg = UpstreamRequest(first_s=seconds)
    return await pool.call(leg, pool.origin(url), "/x", payload, limit=10_000, resend=resend)


def pooled() -> ConnectionPool:
    return ConnectionPool(connect_s=1.0, keepalive_s=30.0)


@on_uvloop
async def test_a_connection_is_used_again() -> None:
    pool, backend = pooled(), saying(OK)
    async with backend.running() as url:
        for _ in range(5):
            whole = await call(pool, url)
            assert (whole.status, whole.body) == (200, b"ok")
        assert (backend.opened, pool.idle, pool.requests) == (1, 1, 0)
        await pool.close()


@pytest.mark.parametrize(
    "after",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        b"HTTP/1.1 200 OK\r\nX: ",
        b"H",
        b"garbage\r\n\r\n",
        b"\x00",
    ],
)
@on_uvloop
async def test_what_follows_an_answer_ends_the_connection_and_is_nobodys_answer(after: bytes) -> None:
    pool, backend = pooled(), saying(OK + after)
    async with backend.running() as url:
        for n in range(3):
            assert (await call(pool, url)).body == b"ok"
            assert (pool.idle, backend.opened) == (0, n + 1)
        await pool.close()


@on_uvloop
async def test_what_comes_later_unasked_ends_the_connection() -> None:
    pool, backend = pooled(), saying(OK)
    writers: list[asyncio.StreamWriter] = []

    async def answer(backend: Backend, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(OK)

    backend.answer = answer
    async with backend.running() as url:
        await call(pool, url)
        writers[0].write(OK)
        await until(lambda: pool.idle == 0)
        assert (await call(pool, url)).body == b"ok"
        await pool.close()


@on_uvloop
async def test_an_answer_before_the_request_was_sent_ends_the_connection() -> None:
    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await gate.wait()
        writer.transport.abort()

    gate = asyncio.Event()
    server = await asyncio.start_server(hasty, "127.0.0.1", 0, limit=1024)
    pool = pooled()
    whole = await call(pool, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", b"x" * 50_000_000)
    assert (whole.status, pool.idle, pool.requests) == (413, 0, 0)
    gate.set()
    await pool.close()
    server.close()
    await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe", "cut-short"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "cut-short"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "cut-short"),
        (b"", "disconnected"),
        (b"SSH-2.0-x\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n", "protocol"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + b"x" * 20_000, "reply-too-large"),
    ],
)  # fmt: skip
@on_uvloop
async def test_a_broken_answer_fails_its_leg(raw: bytes, reason: str) -> None:
    pool, backend = pooled(), saying(raw, close=True)
    async with backend.running() as url:
        with pytest.raises(UpstreamFailedError) as failure:
            await call(pool, url)
        assert (failure.value.reason, pool.idle, pool.requests) == (reason, 0, 0)
        await pool.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\nLink: x\r\n\r\n",
    ],
)
@on_uvloop
async def test_a_whole_answer_is_taken_in_every_framing(raw: bytes) -> None:
    pool, backend = pooled(), saying(raw, close=True)
    async with backend.running() as url:
        whole = await call(pool, url)
        assert (whole.status, whole.body, "link" in whole.headers) == (200, b"ok", False)
        assert whole.headers.get("content-length") in ("2", None)
        await pool.close()


@on_uvloop
async def test_an_answer_without_a_length_is_not_whole_when_its_connection_is_reset() -> None:
    leg = UpstreamRequest(first_s=5.0)

    async def answer(backend: Backend, writer: asyncio.StreamWriter) -> None:
        del backend
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf of")
        await until(lambda: leg.answered)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        await asyncio.sleep(5)

    pool, backend = pooled(), Backend(answer)
    async with backend.running() as url:
        with pytest.raises(UpstreamFailedError, match="cut-short"):
            await pool.call(leg, pool.origin(url), "/x", limit=100)
        await pool.close()


@pytest.mark.parametrize("size", [2, 100_000])
@on_uvloop
async def test_what_is_sent_over_again_is_the_same(size: int) -> None:
    payload = b"x" * size
    pool, backend = pooled(), saying(OK)

    async def answer(backend: Backend, writer: asyncio.StreamWriter) -> None:
        if len(backend.seen) == 2:
            writer.transport.abort()
            return
        writer.write(OK)

    backend.answer = answer
    async with backend.running() as url:
        await call(pool, url)
        assert (await call(pool, url, payload, resend=True)).body == b"ok"
        assert [seen.body for seen in backend.seen[1:]] == [payload, payload]
        await pool.close()


@on_uvloop
async def test_a_long_request_under_way_takes_little_more_than_its_size() -> None:
    """The bytes that orjson gives hold up to 16 times as much, and a prefill may take long."""
    pool, backend, size = pooled(), saying(OK), 65_000
    text = "x" * size
    async with backend.running() as url:
        await call(pool, url)
        leg = UpstreamRequest(first_s=5.0)
        whole = BufferedResponse(leg, 100)
        tracemalloc.start()
        try:
            pool.send(leg, pool.origin(url), "/x", orjson.dumps(text), whole, resend=True)
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert size < taken < 1.5 * size
        await leg
        await pool.close()


@on_uvloop
async def test_a_kept_connection_that_died_is_noticed_or_sent_over_again() -> None:
    pool, backend = pooled(), saying(OK)
    lost: list[asyncio.StreamWriter] = []

    async def answer(backend: Backend, writer: asyncio.StreamWriter) -> None:
        if len(backend.seen) == 2:
            writer.transport.abort()  # as a server does that ends an idle connection while a request is on its way
            return
        lost.append(writer)
        writer.write(OK)

    backend.answer = answer
    async with backend.running() as url:
        await call(pool, url)
        assert (await call(pool, url, resend=True)).body == b"ok"
        assert (len(backend.seen), backend.opened) == (3, 2)
        lost[-1].transport.abort()
        await until(lambda: pool.idle == 0)
        assert (await call(pool, url)).body == b"ok"
        backend.seen.clear()
        await call(pool, url)
        with pytest.raises(UpstreamFailedError, match="disconnected"):
            await call(pool, url)
        await pool.close()


@on_uvloop
async def test_deadlines_and_cuts_end_legs_soon_and_close_their_connections() -> None:
    async def never(backend: Backend, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    pool, backend = pooled(), Backend(never)
    loop = asyncio.get_running_loop()
    async with backend.running() as url:
        began = loop.time()
        with pytest.raises(UpstreamFailedError, match="timeout"):
            await call(pool, url, seconds=0.2)
        assert 0.15 < loop.time() - began < 0.6
        waiting = asyncio.ensure_future(call(pool, url))
        await until(lambda: len(backend.seen) == 2)
        pool.terminate("shutting-down", url)
        with pytest.raises(UpstreamFailedError, match="shutting-down"):
            await waiting
        waiting = asyncio.ensure_future(call(pool, url))
        await until(lambda: len(backend.seen) == 3)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: backend.open == 0, 0.5)
        assert (pool.requests, pool.idle) == (0, 0)
        await pool.close()


@on_uvloop
async def test_a_leg_that_is_cut_while_it_connects_ends_at_once() -> None:
    # A full backlog: the kernel answers no further connection.
    blocked = socket.create_server(("127.0.0.1", 0), backlog=0)
    port = blocked.getsockname()[1]
    loop = asyncio.get_running_loop()
    fillers = []
    for _ in range(8):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", port))
        fillers.append(filler)
    pool = ConnectionPool(connect_s=5.0, keepalive_s=1.0)
    waiting = asyncio.ensure_future(call(pool, f"http://127.0.0.1:{port}"))
    await until(lambda: pool.requests == 1)
    began = loop.time()
    pool.terminate("gone")
    with pytest.raises(UpstreamFailedError, match="gone"):
        await waiting
    assert loop.time() - began < 0.5
    await pool.close()
    for opened in (blocked, *fillers):
        opened.close()


@on_uvloop
async def test_nobody_answers_and_a_closed_pool_sends_nothing() -> None:
    pool = pooled()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(UpstreamFailedError, match="connect"):
        await call(pool, f"http://127.0.0.1:{port}")
    await pool.close()
    with pytest.raises(UpstreamFailedError, match="closed"):
        await call(pool, f"http://127.0.0.1:{port}")
    assert pool.requests == 0


@on_uvloop
async def test_a_taker_that_refuses_fails_its_leg_with_its_own_reason() -> None:
    class Refusing:
        def head(self, status: int, headers: dict[str, str]) -> None:
            del headers
            if status == 500:
                raise UpstreamFailedError("engine-error")

        def data(self, chunk: bytes) -> None:
            raise KeyError(chunk)

    pool, backend = pooled(), saying(OK)
    async with backend.running() as url:
        pool.send(leg := UpstreamRequest(first_s=5), pool.origin(url), "/x", b"", Refusing())
        with pytest.raises(UpstreamFailedError, match="engine-error: KeyError"):
            await leg
        backend.answer = saying(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n").answer
        pool.send(leg := UpstreamRequest(first_s=5), pool.origin(url), "/x", b"", Refusing())
        with pytest.raises(UpstreamFailedError, match="engine-error"):
            await leg
        assert (pool.idle, pool.requests) == (0, 0)
        await pool.close()


@on_uvloop
async def test_idle_connections_end_and_the_sweeper_with_them() -> None:
    pool, backend = ConnectionPool(connect_s=1.0, keepalive_s=0.15), saying(OK)
    async with backend.running() as url:
        await asyncio.gather(*(call(pool, url) for _ in range(4)))
        assert pool.idle == 4
        await until(lambda: pool.idle == 0 and pool._sweeper is None)
        await until(lambda: backend.open == 0)
        await pool.close()


@on_uvloop
async def test_an_answer_may_be_told_instead_of_awaited() -> None:
    pool, backend = pooled(), saying(OK)
    told: list[tuple[Exception | None, bytes, int]] = []

    def send(url: str, *, seconds: float = 5.0, resend: bool = False) -> UpstreamRequest:
        leg = UpstreamRequest(first_s=seconds)
        whole = BufferedResponse(leg, 10_000)
        leg.on_done = lambda error: told.append((error, whole.body, pool.requests))
        pool.send(leg, pool.origin(url), "/x", b"{}", whole, resend=resend)
        return leg

    async with backend.running() as url:
        for n in range(3):
            send(url)
            assert len(told) == n
            await until(lambda n=n: len(told) == n + 1)  # type: ignore[misc]
        assert told == [(None, b"ok", 0)] * 3
        assert (backend.opened, pool.idle) == (1, 1)
        told.clear()

        backend.answer = saying(b"").answer
        for seconds, cut in ((0.05, ""), (5.0, "gone")):
            leg = send(url, seconds=seconds)
            await until(lambda: pool.idle == 0)
            if cut:
                pool.terminate(cut)
                assert not told  # the end is never told inside the call that brings it
            await until(lambda: bool(told))
            error, body, _ = told.pop()
            assert isinstance(error, UpstreamFailedError)
            assert (error.reason, leg.lost, body, pool.requests) == (cut or "timeout", cut or "timeout", b"", 0)

        for cancel in (send(url), send(url)):
            cancel.cancel()
        seen = len(backend.seen)
        send(url).cancel()
        assert pool.requests == 0
        await until(lambda: backend.open == 0, 0.5)
        assert (told, len(backend.seen)) == ([], seen)

        await pool.close()
        send(url)
        await until(lambda: len(told) == 1)
        assert str(told[0][0]) == "closed"


@on_uvloop
async def test_a_leg_that_failed_before_it_was_sent_is_not_sent() -> None:
    pool, backend = pooled(), saying(OK)
    async with backend.running() as url:
        leg = UpstreamRequest(first_s=5.0)
        leg.fail("stalled")
        with pytest.raises(UpstreamFailedError, match="stalled"):
            await pool.call(leg, pool.origin(url), "/x", limit=10)
        assert (pool.requests, backend.opened) == (0, 0)
        await pool.close()


@on_uvloop
async def test_what_is_told_may_break_and_ends_no_connection(caplog: pytest.LogCaptureFixture) -> None:
    pool, backend = pooled(), saying(OK)

    def broken(error: Exception | None) -> None:
        raise KeyError("x")

    async with backend.running() as url:
        leg = UpstreamRequest(first_s=5.0)
        leg.on_done = broken
        pool.send(leg, pool.origin(url), "/x", b"", BufferedResponse(leg, 10))
        await until(lambda: leg.over)
        assert (pool.idle, pool.requests) == (1, 0)
        assert [r.message for r in caplog.records] == ["end_failed"]
        await pool.close()


@pytest.mark.parametrize("url", ["ftp://a", "a:80", "http://", ""])
def test_an_origin_is_a_url(url: str) -> None:
    with pytest.raises(ValueError, match="give a URL"):
        Origin(url)


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: y", "/a\nb"])
def test_a_path_cannot_carry_more(path: str) -> None:
    with pytest.raises(ValueError, match="must be a path"):
        Origin("http://a").request("POST", path)


@pytest.mark.parametrize("value", ["a\r\nB: c", "a\nb", "a\rb"])
def test_a_header_sent_upstream_cannot_carry_another(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        header_lines({"X": "a", "Y": value})


def test_a_head_goes_in_latin_1() -> None:
    lines = header_lines({"X": "ä", "Y": "€"})
    head, _ = Origin("http://a").request("POST", "/x", b"", lines)
    assert head.endswith(b"\r\nX: \xe4\r\nY: ?\r\nContent-Length: 0\r\n\r\n")


@on_uvloop
async def test_a_head_is_bounded() -> None:
    reader = ResponseReader(WholeResponseReader())
    reader.expect(BufferedResponse(UpstreamRequest(first_s=1), 10))
    reader.feed(b"HTTP/1.1 200 OK\r\n")
    line = b"X: " + b"y" * 995 + b"\r\n"
    for _ in range(MAX_HEAD // len(line)):
        reader.feed(line)
    with pytest.raises(BadResponseError, match="too long"):
        reader.feed(line)
