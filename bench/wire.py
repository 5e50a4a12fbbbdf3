"""Measure the router's wire layer alone: ``python -m bench.wire [REQUESTS]``, without sockets, kernel or duties.

Prints the least processor time of 100 requests in a row, so that a busy machine counts little: a request answered
at once, a request of two legs, an event of a stream, and the longest read. For a
figure that no neighbour disturbs run it under ``valgrind --tool=cachegrind --cache-sim=no`` with two numbers of
requests and divide the difference in instructions by that in requests.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import cast

import uvloop

from weft_router.errors import ApiError
from weft_router.http.connection import Connection, Handler
from weft_router.http.connections import Connections
from weft_router.http.exchange import Exchange
from weft_router.http.limits import HttpLimits
from weft_router.http.pool import ConnectionPool
from weft_router.http.request import RequestReader
from weft_router.http.upstream_connection import UpstreamConnection
from weft_router.http.upstream_request import UpstreamRequest
from weft_router.http.write_batch import write_batch_of

PATH = "/v1/chat/completions"
ROW = 100
LIMIT = 2**25
LINES = "X-Request-Id: weft-0123456789abcdef\r\n"
SHOWN = {"X-Weft-Route": "remote"}
EVENT = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"delta":{"content":" word"}}]}\n\n'
BEGIN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)


def asked(n: int) -> bytes:
    """Return a request as a client with a kept connection sends it."""
    body = b'{"model":"m","prompt":"' + b"x" * (700 + n % 300) + b'"}'
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\nuser-agent: bench\r\naccept: */*\r\nx-session-id: s-%016d\r\n"
        b"authorization: Bearer 0123456789abcdef0123456789abcdef\r\n\r\n%b" % (len(body), n, body)
    )


def answered(n: int) -> bytes:
    """Return an answer as uvicorn sends it."""
    body = b"y" * (500 + n % 200)
    return (
        b"HTTP/1.1 200 OK\r\ndate: Sun, 22 Nov 2026 13:%02d:00 GMT\r\nserver: uvicorn\r\ncontent-length: %d\r\n"
        b"content-type: application/json\r\n\r\n%b" % (n // 100 % 60, len(body), body)
    )


class Still:
    """A transport that takes everything and sends nothing."""

    def __init__(self) -> None:
        self.writes = 0

    def write(self, data: bytes) -> None:
        del data
        self.writes += 1

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None: ...


class Streamed:
    """Passes a stream on."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def head(self, status: int, headers: dict[str, str]) -> None:
        self._exchange.begin(status, content_type=headers["content-type"], headers=SHOWN)

    def data(self, chunk: bytes) -> None:
        self._exchange.write(chunk)


class Bench:
    """A client's connection and two engines' without sockets."""

    def __init__(self) -> None:
        self.pool = ConnectionPool(connect_s=1.0, keepalive_s=3600.0)
        self.origins = [self.pool.origin(f"http://127.0.0.1:{port}") for port in (1, 2)]
        self.engines = [UpstreamConnection(self.pool, origin) for origin in self.origins]
        for engine in self.engines:
            engine.connection_made(cast(asyncio.Transport, Still()))
            self.pool.give_back(engine)
        self.requests = [asked(n) for n in range(1000)]
        self.answers = [answered(n) for n in range(1000)]

    def client(self, handler: Handler) -> tuple[Connection, Still]:
        """Return a connection of a client whose requests are served so."""
        connection = Connection(Connections(handler, refused, HttpLimits()), HttpLimits(), gate=None)
        transport = Still()
        connection.connection_made(cast(asyncio.Transport, transport))
        return connection, transport

    async def two_legs(self, exchange: Exchange) -> None:
        first = await self.pool.call(
            UpstreamRequest(first_s=60.0), self.origins[0], PATH, exchange.body, limit=LIMIT, lines=LINES, resend=True
        )
        second = await self.pool.call(
            UpstreamRequest(first_s=60.0), self.origins[1], PATH, first.body, limit=LIMIT, lines=LINES
        )
        exchange.reply(200, second.body, headers=SHOWN)

    async def stream(self, exchange: Exchange) -> None:
        leg = UpstreamRequest(first_s=60.0, idle_s=60.0)
        self.pool.send(leg, self.origins[0], PATH, exchange.body, Streamed(exchange), lines=LINES)
        await leg
        exchange.end()

    def rounds(self, handler: Handler, legs: int, count: int) -> float:
        """Serve so many requests; return the least microseconds one took in a row of them."""
        connection, transport = self.client(handler)
        engines, turn = self.engines[:legs], write_batch_of(asyncio.get_running_loop())

        def row(start: int) -> None:
            for n in range(start, start + ROW):
                connection.data_received(self.requests[n % 1000])
                for engine in engines:
                    engine.data_received(self.answers[n % 1000])
            turn.flush()

        found = least([lambda start=start: row(start) for start in range(0, count, ROW)])  # type: ignore[misc]
        if transport.writes < count:
            raise RuntimeError("not every request was answered")
        return found

    def events(self, count: int) -> float:
        """Pass so many events on; return the least microseconds one took in a row of them."""
        connection, _ = self.client(self.stream)
        connection.data_received(self.requests[0])
        engine = self.engines[0]
        engine.data_received(BEGIN)

        def row() -> None:
            for _ in range(ROW):
                engine.data_received(CHUNK)

        found = least([row] * (count // ROW))
        engine.data_received(b"0\r\n\r\n")
        return found


def least(rows: list[Callable[[], None]]) -> float:
    """Return the least microseconds of processor time that one of a row took."""
    times = []
    for row in rows:
        began = time.process_time_ns()
        row()
        times.append(time.process_time_ns() - began)
    return min(times) / ROW / 1e3


def longest_read() -> float:
    """Return the least milliseconds a parser took for the largest read of a socket, full of the shortest requests."""
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    data = request * (2**18 // len(request))
    times = []
    for _ in range(10):
        reader = RequestReader(HttpLimits())
        began = time.process_time_ns()
        reader.feed(data)
        times.append(time.process_time_ns() - began)
    return min(times) / 1e6


def refused(exchange: Exchange, error: ApiError) -> None:
    del exchange
    raise error


async def main(count: int) -> None:
    """Measure from the loop's own callbacks, where the wire lives."""

    async def at_once(exchange: Exchange) -> None:
        exchange.reply(200, exchange.body, headers=SHOWN)

    def measure() -> None:
        bench = Bench()
        print(f"a request answered at once: {bench.rounds(at_once, 0, count):.1f} us")
        print(f"a request of two legs: {bench.rounds(bench.two_legs, 2, count):.1f} us")
        print(f"an event of a stream: {bench.events(count):.2f} us")
        print(f"the longest read, 256 KiB of the shortest requests: {longest_read():.1f} ms")
        done.set_result(None)

    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(measure)
    await done


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
