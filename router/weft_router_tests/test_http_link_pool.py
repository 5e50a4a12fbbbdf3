"""Links of a connection pool to a server over sockets: dialling, loss, refusal, and plain connections instead."""

import asyncio
import contextlib
import math
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import pytest

from weft_router.errors import ApiError, UpstreamFailedError
from weft_router.http.exchange import Exchange
from weft_router.http.limits import HttpLimits
from weft_router.http.link import PROTOCOL
from weft_router.http.link_dialer import LINK_PATH, REDIAL_S, REFUSED_S
from weft_router.http.listener import Listener
from weft_router.http.pool import ConnectionPool
from weft_router.http.upstream_request import BufferedResponse, UpstreamRequest
from weft_router.roles.link_hop import serve_link
from weft_router_tests.http_kit import (
    PATIENCE_S,
    USUAL,
    Backend,
    Passed,
    connected,
    listening,
    on_uvloop,
    until,
)
from weft_router_tests.test_http_tls import serving, trusting

pytestmark = pytest.mark.component


def linked(*, keepalive_s: float = 30.0) -> ConnectionPool:
    return ConnectionPool(connect_s=1.0, keepalive_s=keepalive_s, links=True)


@dataclass
class Sidecar:
    """A server that carries links, and holds each answer until it is told."""

    listener: Listener
    port: int
    asked: list[Exchange]
    go: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def open(self) -> int:
        """Return how many connections are open, streams among them."""
        return len(self.listener.connections)

    @property
    def links(self) -> int:
        return len(self.listener.connections._links)


class Way:
    """A way to a server on which connections may fall silent: what they carry is kept, and nobody is told."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.relay: list[asyncio.Event] = []
        """Whether each connection, in the order they came, passes on what it carries."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Listen for as long as this lasts; give the URL."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passes = asyncio.Event()
        passes.set()
        self.relay.append(passes)
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._carry(reader, other_writer, passes), self._carry(other_reader, writer, passes))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(2**16):
                await passes.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def sidecar(limits: HttpLimits = USUAL) -> AsyncIterator[Sidecar]:
    asked: list[Exchange] = []

    async def serve(exchange: Exchange) -> None:
        if exchange.path == LINK_PATH:
            try:
                await serve_link(exchange)
            except ApiError as error:
                exchange.reply(error.status, error.body())
            return
        asked.append(exchange)
        await its.go.wait()
        exchange.reply(200, exchange.body.upper(), content_type="text/plain")

    async with listening(serve, limits) as listener:
        its = Sidecar(listener, listener.port, asked)
        its.go.set()
        yield its


async def call(pool: ConnectionPool, url: str, payload: bytes = b"{}", *, seconds: float = PATIENCE_S) -> bytes:
    leg = UpstreamRequest(first_s=seconds)
    whole: BufferedResponse = await pool.call(leg, pool.origin(url), "/x", payload, limit=2**26)
    assert whole.status == 200
    return whole.body


async def twice(pool: ConnectionPool, url: str) -> None:
    """Send two requests at the same time."""
    assert list(await asyncio.gather(call(pool, url), call(pool, url))) == [b"{}"] * 2


async def up(pool: ConnectionPool, server: Sidecar) -> None:
    """Have a link to a sidecar: two requests at once have one tried for."""
    await twice(pool, server.url)
    await until(lambda: pool.links == 1)


@on_uvloop
async def test_one_request_at_a_time_needs_no_link() -> None:
    pool = linked()
    async with sidecar() as server:
        for _ in range(5):
            await call(pool, server.url)
        assert (pool.links, server.links, server.open) == (0, 0, 1)
        await pool.close()


@on_uvloop
async def test_all_that_is_asked_once_a_link_is_up_goes_over_it() -> None:
    pool = linked()
    async with sidecar() as server:
        await up(pool, server)
        server.go.clear()
        calls = [asyncio.ensure_future(call(pool, server.url, b"n%d" % n)) for n in range(50)]
        await until(lambda: len(server.asked) == 52)
        assert (server.links, server.open) == (1, 50)  # each a connection with its own places, times and limits
        server.go.set()
        assert await asyncio.gather(*calls) == [b"N%d" % n for n in range(50)]
        assert (await call(pool, server.url), server.open) == (b"{}", 50)  # a stream that was kept
        await pool.close()
        await until(lambda: not server.open and not server.links)


@on_uvloop
async def test_bodies_of_many_windows_go_both_ways_at_once() -> None:
    pool = linked()
    async with sidecar() as server:
        await up(pool, server)
        bodies = [bytes([97 + n]) * (5 * 2**20 + n) for n in range(4)]
        assert await asyncio.gather(*(call(pool, server.url, body) for body in bodies)) == [
            body.upper() for body in bodies
        ]
        await pool.close()


@on_uvloop
async def test_a_cancelled_request_frees_the_other_end_and_its_link_stays() -> None:
    pool = linked()
    async with sidecar() as server:
        await up(pool, server)
        server.go.clear()
        held = asyncio.ensure_future(call(pool, server.url))
        await until(lambda: len(server.asked) == 3)
        held.cancel()
        await until(lambda: server.asked[2].gone)
        server.go.set()
        assert (await call(pool, server.url), pool.links) == (b"{}", 1)
        await pool.close()


@on_uvloop
async def test_a_time_that_is_over_ends_its_stream_alone() -> None:
    pool = linked()
    async with sidecar() as server:
        await up(pool, server)
        server.go.clear()
        kept = asyncio.ensure_future(call(pool, server.url))
        with pytest.raises(UpstreamFailedError, match="timeout"):
            await call(pool, server.url, seconds=0.05)
        server.go.set()
        assert (await kept, pool.links) == (b"{}", 1)
        await pool.close()


@on_uvloop
async def test_what_a_lost_link_carried_fails_and_the_next_request_goes_without_until_another_is_up() -> None:
    pool = linked()
    async with sidecar() as server:
        await up(pool, server)
        server.go.clear()
        held = [asyncio.ensure_future(call(pool, server.url)) for _ in range(3)]
        await until(lambda: len(server.asked) == 5)
        for link in list(server.listener.connections._links):
            link.abort()
        for one in held:
            with pytest.raises(UpstreamFailedError, match="disconnected"):
                await one
        server.go.set()
        assert (await call(pool, server.url), pool.links) == (b"{}", 0)
        pool.origin(server.url).dial_at = 0.0  # the pause before another is tried for is over
        await up(pool, server)
        await pool.close()


@on_uvloop
async def test_a_server_that_goes_takes_its_kept_streams_along_and_another_in_its_place_is_met() -> None:
    pool = linked()
    async with sidecar() as server:
        await up(pool, server)
        await call(pool, server.url)
        assert pool.idle == 1
        await server.listener.close()
        await until(lambda: pool.links == 0 and pool.idle == 0)
        with pytest.raises(UpstreamFailedError, match="connect"):
            await call(pool, server.url)
        await pool.close()


class Late:
    """Takes an answer, and pauses at its first bytes."""

    def __init__(self, leg: UpstreamRequest) -> None:
        self.leg = leg
        self.got = bytearray()

    def head(self, status: int, headers: dict[str, str]) -> None:
        del status, headers
        self.leg.pause()

    def data(self, chunk: bytes) -> None:
        self.got += chunk


@pytest.mark.parametrize("over", ["a link", "a connection of its own"])
@on_uvloop
async def test_an_answer_that_came_whole_is_read_though_its_server_has_gone(over: str) -> None:
    pool = linked()
    async with sidecar() as server:
        await up(pool, server)
        if over != "a link":
            pool.terminate("worker-lost", server.url)
            await until(lambda: pool.links == 0)
            pool.origin(server.url).dial_at = math.inf
        leg = UpstreamRequest(first_s=PATIENCE_S)
        late = Late(leg)
        pool.send(leg, pool.origin(server.url), "/x", b"x" * 100_000, late)
        await until(lambda: leg.answered and server.asked[-1].ended)
        server.listener.connections.close_after_replies(idle=True)
        await server.listener.close()
        await until(lambda: not server.open and not server.links)
        if over == "a link":
            await until(lambda: pool.links == 0)
        assert len(late.got) < 100_000
        leg.resume()
        await leg
        assert bytes(late.got) == b"X" * 100_000
        await pool.close()


@on_uvloop
async def test_a_stream_carries_no_link() -> None:
    pool = linked()
    async with sidecar() as server:
        await up(pool, server)
        lines = f"Connection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n"
        leg = UpstreamRequest(first_s=PATIENCE_S)
        with pytest.raises(UpstreamFailedError):
            await pool.call(leg, pool.origin(server.url), LINK_PATH, limit=10_000, lines=lines, method="GET")
        assert (await call(pool, server.url), server.links, pool.links) == (b"{}", 1, 1)
        await pool.close()
        await until(lambda: not server.open and not server.links)


@on_uvloop
async def test_whoever_cuts_a_link_off_is_asked_less_and_less_often() -> None:
    async def answer(backend: Backend, writer: asyncio.StreamWriter) -> None:
        if backend.seen[-1].target == LINK_PATH:
            writer.transport.abort()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    pool, backend = linked(), Backend(answer)
    async with backend.running() as url:
        origin, pauses = pool.origin(url), []
        for _ in range(8):
            origin.dial_at = 0.0
            began = monotonic()
            assert list(await asyncio.gather(call(pool, url), call(pool, url))) == [b"ok"] * 2
            await until(lambda: origin.dial_at < math.inf)
            pauses.append(origin.dial_at - began)
        assert pauses == pytest.approx([1, 2, 4, 8, 16, 32, REFUSED_S, REFUSED_S], abs=0.9)
        await pool.close()


@on_uvloop
async def test_a_server_without_a_place_for_a_link_is_asked_again_soon() -> None:
    async def answer(backend: Backend, writer: asyncio.StreamWriter) -> None:
        full = backend.seen[-1].target == LINK_PATH
        writer.write((b"HTTP/1.1 503 No" if full else b"HTTP/1.1 200 OK") + b"\r\nContent-Length: 2\r\n\r\nok")

    pool, backend = linked(), Backend(answer)
    async with backend.running() as url:
        began = monotonic()
        assert list(await asyncio.gather(call(pool, url), call(pool, url))) == [b"ok"] * 2
        await until(lambda: pool.origin(url).dial_at < math.inf)
        assert pool.origin(url).dial_at - began == pytest.approx(REDIAL_S, abs=0.9)
        await pool.close()


@on_uvloop
async def test_a_link_that_was_heard_is_looked_for_again_as_if_it_were_the_first() -> None:
    pool = linked()
    async with sidecar() as server:
        origin = pool.origin(server.url)
        for heard, pause in ((False, 2.0), (False, 4.0), (True, 0.0)):
            origin.dial_at = 0.0
            await up(pool, server)
            assert origin.redial_s == (pause or 8.0)
            assert origin.link is not None
            if heard:
                await call(pool, server.url)
            origin.link.abort()
            await until(lambda: origin.link is None)
            assert origin.redial_s == pause
        await pool.close()


@on_uvloop
async def test_an_origin_with_tls_has_no_link() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asked: list[str] = []

        async def serve(exchange: Exchange) -> None:
            asked.append(exchange.path)
            exchange.reply(200, exchange.body, content_type="text/plain")

        pool = linked()
        async with listening(serve, tls=serving(Path(folder))) as listener:
            pool._tls = trusting(Path(folder), 1)
            url = f"https://localhost:{listener.port}"
            for _ in range(3):
                await twice(pool, url)
            assert (set(asked), pool.origin(url).dial_at) == ({"/x"}, 0.0)
            await pool.close()


@pytest.mark.parametrize("status", [b"404 Not Found", b"200 OK", b"101 Switching Protocols"])
@on_uvloop
async def test_a_server_that_carries_none_is_asked_once_and_served_by_plain_connections(status: bytes) -> None:
    async def answer(backend: Backend, writer: asyncio.StreamWriter) -> None:
        links = backend.seen[-1].target == LINK_PATH
        writer.write(b"HTTP/1.1 " + (status if links else b"200 OK") + b"\r\nContent-Length: 2\r\n\r\nok")

    pool, backend = linked(), Backend(answer)
    async with backend.running() as url:
        for _ in range(20):
            assert list(await asyncio.gather(call(pool, url), call(pool, url))) == [b"ok"] * 2
            await asyncio.sleep(0.005)
        assert [seen.target for seen in backend.seen].count(LINK_PATH) == 1
        link = next(seen for seen in backend.seen if seen.target == LINK_PATH)
        assert {("connection", "Upgrade"), ("upgrade", PROTOCOL)} <= set(link.headers)
        assert (pool.links, pool.idle) == (0, 2)
        await pool.close()


@on_uvloop
async def test_a_server_that_does_not_answer_to_it_costs_no_request_anything() -> None:
    silent = 0
    open_ = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal silent, open_
        open_ += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while LINK_PATH.encode() not in await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(2)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            silent += 1
            await reader.read()
        writer.transport.abort()
        open_ -= 1

    pool, backend = linked(), await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{backend.sockets[0].getsockname()[1]}"
    async with backend:
        assert list(await asyncio.gather(call(pool, url), call(pool, url))) == [b"ok"] * 2
        await until(lambda: silent == 1)
        for _ in range(5):
            assert await call(pool, url, seconds=1.0) == b"ok"
        await pool.close()
        await until(lambda: not open_)


@on_uvloop
async def test_a_link_that_falls_silent_is_passed_by_until_it_is_heard_again() -> None:
    pool = linked()
    async with sidecar() as server:
        way = Way(server.port)
        async with way.open() as url:
            await twice(pool, url)
            await until(lambda: pool.links == 1)
            await call(pool, url)
            silent = way.relay[2]  # after those of the first two requests
            silent.clear()
            waits = asyncio.ensure_future(call(pool, url, b"waits"))
            link = pool.origin(url).link
            assert link is not None
            await until(lambda: link.doubted)
            assert pool.links == 0
            assert (await call(pool, url, b"passes by"), len(way.relay)) == (b"PASSES BY", 4)
            assert not waits.done()
            silent.set()
            assert (await waits, pool.links) == (b"WAITS", 1)
            assert (await call(pool, url, b"again"), len(way.relay)) == (b"AGAIN", 4)
            assert pool.origin(url).link is link
            assert not link.doubted
            await pool.close()


@on_uvloop
async def test_a_link_that_nobody_uses_is_closed_by_both_ends() -> None:
    pool = linked(keepalive_s=0.2)
    async with sidecar() as server:
        await up(pool, server)
        await until(lambda: pool.links == 0 and not server.links and not server.open)
        assert pool.origin(server.url).redial_s == 0.0
        pool.origin(server.url).dial_at = 0.0
        await up(pool, server)
        await call(pool, server.url)
        await until(lambda: pool.links == 0 and not server.links and not server.open)
        await pool.close()
    pool = linked()
    async with sidecar(HttpLimits(keep_alive_s=0.2, sweep_s=0.05)) as server:
        await up(pool, server)
        await call(pool, server.url)
        await until(lambda: pool.links == 0 and not server.links and not server.open)
        await pool.close()


@on_uvloop
async def test_a_link_is_cut_with_its_worker() -> None:
    pool = linked()
    async with sidecar() as server:
        await up(pool, server)
        server.go.clear()
        held = asyncio.ensure_future(call(pool, server.url))
        await until(lambda: len(server.asked) == 3)
        pool.terminate("worker-lost", server.url)
        with pytest.raises(UpstreamFailedError, match="worker-lost"):
            await held
        await until(lambda: pool.links == 0 and server.asked[2].gone)
        await pool.close()


@on_uvloop
async def test_a_server_without_a_place_says_so_to_a_stream() -> None:
    pool = linked()
    async with sidecar(HttpLimits(max_connections=3)) as server:
        await up(pool, server)
        await call(pool, server.url)
        await until(lambda: server.open == 1)  # the connection from before the link is closed
        server.go.clear()
        held = [asyncio.ensure_future(call(pool, server.url)) for _ in range(3)]
        await until(lambda: server.open == 3)
        leg = UpstreamRequest(first_s=PATIENCE_S)
        refused = await pool.call(leg, pool.origin(server.url), "/x", b"{}", limit=10_000)
        assert (refused.status, b"too many connections" in refused.body) == (503, True)
        server.go.set()
        assert await asyncio.gather(*held) == [b"{}"] * 3
        await pool.close()


@on_uvloop
async def test_another_protocol_is_refused_and_the_connection_serves_on() -> None:
    async with sidecar() as server, connected(server.port) as client:
        head = f"GET {LINK_PATH} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        await client.send(head.encode())
        assert (await client.response())[0] == 426
        await client.send(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab")
        assert await client.response() == (200, b"AB")


@on_uvloop
async def test_a_client_that_does_not_read_stops_the_engine_across_a_link() -> None:
    """Back-pressure: from the client's socket through a stream's window to whoever writes at its other end."""
    written = 0
    piece = b"x" * 2**16

    async def serve(exchange: Exchange) -> None:
        nonlocal written
        if exchange.path == LINK_PATH:
            await serve_link(exchange)
            return
        waits = asyncio.Event()
        waits.set()

        class Source:
            def pause(self) -> None:
                waits.clear()

            def resume(self) -> None:
                waits.set()

        exchange.begin(200, content_type="text/plain")
        exchange.source = Source()
        for _ in range(1024 if exchange.body == b"much" else 1):
            await waits.wait()
            exchange.write(piece)
            written += len(piece)
            await asyncio.sleep(0)
        exchange.end()

    pool = linked()
    async with listening(serve) as far:
        url = f"http://127.0.0.1:{far.port}"

        async def pass_on(exchange: Exchange) -> None:
            leg = UpstreamRequest(first_s=PATIENCE_S, idle_s=PATIENCE_S, total_s=PATIENCE_S)
            passed = Passed(exchange)
            exchange.source = leg
            pool.send(leg, pool.origin(url), "/x", exchange.body, passed)
            await leg
            passed.finish()

        await asyncio.gather(call(pool, url), call(pool, url))
        await until(lambda: pool.links == 1)
        written = 0
        async with listening(pass_on) as near, connected(near.port) as client:
            await client.send(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nmuch")
            await client.head()
            await until(lambda: written > 2**20)
            still = -1
            while still != written:
                still = written
                await asyncio.sleep(0.1)
            assert written < 24 * 2**20, "what nobody reads is bounded: sockets, the client's buffer and two windows"
            assert await call(pool, url) == piece  # while another stream of the same link gets on
            size = 0
            while chunk := await client.chunk():
                size += len(chunk)
            assert size == 1024 * len(piece)
        await pool.close()
