"""Each deadline of a connection by itself; those of clients on a clock that the test moves."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from weft_router.errors import ApiError, UpstreamFailedError
from weft_router.http.budget import Budget
from weft_router.http.connection import Connection, Handler
from weft_router.http.exchange import Exchange
from weft_router.http.head import Peer
from weft_router.http.limits import HttpLimits
from weft_router.http.pool import ConnectionPool
from weft_router.http.upstream_request import UpstreamRequest
from weft_router_tests.http_kit import feed

Refused = Callable[[Exchange, ApiError], None]
LIMITS = HttpLimits()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


class Wire(asyncio.Transport):
    """What a connection writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.high: int | None = None
        self.ended = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del low
        self.high = high

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.ended

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True


async def serve(exchange: Exchange) -> None:
    exchange.reply(200, b"{}")


class Owner:
    """Serves every request with two bytes."""

    closing = False

    def __init__(self) -> None:
        self.budget = Budget()
        self.handler: Handler = serve
        self.refused: Refused = lambda exchange, error: exchange.reply(error.status, error.body())

    def add(self, _: Connection) -> bool:
        return True

    def remove(self, _: Connection) -> None: ...

    def carry(self, _: asyncio.Transport, __: Peer) -> None:
        raise AssertionError("nobody asks for that here")


class Client:
    def __init__(self) -> None:
        self.wire = Wire()
        self.connection = Connection(Owner(), LIMITS, gate=None)
        self.connection.connection_made(self.wire)
        self.began = monotonic()

    def takes(self, data: bytes) -> None:
        """Send to the connection, which a sweep looks at then."""
        feed(self.connection, data)
        assert self.at(0.0) is None

    def at(self, seconds: float) -> str | None:
        return self.connection.check(self.began + seconds)


async def test_headers_get_their_time_and_no_more() -> None:
    client = Client()
    client.takes(HEAD[:20])
    assert client.at(LIMITS.header_s - 0.5) is None
    assert client.at(LIMITS.header_s + 0.5) == "slow headers"
    assert client.wire.ended


async def test_a_body_gets_its_time_and_more_for_what_came_of_it() -> None:
    client = Client()
    client.takes(HEAD % 30_000_000)
    sent = 0
    for second in range(1, 120):
        feed(client.connection, b"x" * 70_000)
        sent += 70_000
        assert client.at(float(second)) is None
        assert second < LIMITS.body_s + sent / LIMITS.min_body_rate
    assert client.at(119 + LIMITS.body_s - 0.5) is None, "it may pause for as long as a body has"
    assert client.at(119 + LIMITS.body_s + 0.5) == "slow body"
    assert b"408" in client.wire.sent


@pytest.mark.parametrize(
    "head", [HEAD % (32 * 2**20), HEAD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked")]
)
async def test_a_trickle_is_ended_soon_however_long_its_body_is_to_be(head: bytes) -> None:
    """1 KiB a second of 32 MiB would take nine hours."""
    client = Client()
    client.takes(head)
    second, why = 0, None
    while why is None and second < 3600:
        second += 1
        feed(client.connection, b"400\r\n" + b"x" * 1024 + b"\r\n" if b"chunked" in head else b"x" * 1024)
        why = client.at(float(second))
    assert why == "slow body"
    assert LIMITS.body_s < second <= LIMITS.body_s + 2
    assert b"408" in client.wire.sent


async def test_a_connection_may_wait_for_its_next_request_for_a_while() -> None:
    client = Client()
    client.takes(HEAD % 2 + b"{}")
    assert client.wire.sent.startswith(b"HTTP/1.1 200")
    assert client.at(LIMITS.keep_alive_s - 0.5) is None
    assert client.at(LIMITS.keep_alive_s + 0.5) == "idle"
    assert client.wire.ended


async def test_what_a_client_leaves_unread_is_bounded_in_bytes_and_time() -> None:
    client = Client()
    assert client.wire.high == LIMITS.max_unread
    client.connection.pause_writing()
    assert client.at(LIMITS.stall_s - 0.5) is None
    client.connection.resume_writing()
    assert client.at(LIMITS.stall_s + 1) != "slow reader"
    other = Client()
    other.connection.pause_writing()
    assert other.at(LIMITS.stall_s + 0.5) == "slow reader"


async def test_an_upstream_that_says_nothing_ends_its_leg() -> None:
    over = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    pool = ConnectionPool(connect_s=1.0, keepalive_s=1.0)
    origin = pool.origin(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        with pytest.raises(UpstreamFailedError, match="timeout"):
            await asyncio.wait_for(
                pool.call(UpstreamRequest(first_s=0.05), origin, "/v1/completions", b"{}", limit=10), 60
            )
        assert pool.requests == 0
    finally:
        over.set()
        await pool.close()
        server.close()
        await server.wait_closed()
