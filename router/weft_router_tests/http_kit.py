"""What the tests of the wire stand on: a listener, a client that writes bytes as they are, and a strict backend."""

import asyncio
import functools
import ssl
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import ParamSpec

import h11
import uvloop

from weft_router.errors import ApiError, UpstreamFailedError
from weft_router.http.connection import Connection, Handler
from weft_router.http.exchange import Exchange
from weft_router.http.head import Gate
from weft_router.http.limits import HttpLimits
from weft_router.http.listener import Listener
from weft_router.http.pool import ConnectionPool
from weft_router.http.upstream_request import UpstreamRequest

PATIENCE_S = 30.0
"""No step of a test may take longer."""
QUICK = HttpLimits(
    max_body=64 * 2**10, header_s=0.3, body_s=0.3, keep_alive_s=0.4, stall_s=0.3, handshake_s=0.3, linger_s=0.3,
    sweep_s=0.05,
)  # fmt: skip


USUAL = HttpLimits()
Given = ParamSpec("Given")


def on_uvloop(test: Callable[Given, Coroutine[object, object, None]]) -> Callable[Given, None]:
    """Run a test on the loop that routers run on."""

    @functools.wraps(test)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> None:
        uvloop.run(test(*args, **kwargs))

    return run


async def until(holds: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Poll until something holds.

    Raises:
        AssertionError: it did not in time.
    """
    end = monotonic() + seconds
    while not holds():
        assert monotonic() < end, "it did not hold in time"
        await asyncio.sleep(0.005)


def refused(exchange: Exchange, error: ApiError) -> None:
    """Answer what could not be read as a request."""
    exchange.reply(error.status, error.body())


def feed(connection: Connection, data: bytes) -> None:
    """Give a connection bytes as the loop does: where no task runs."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    _leave_task(loop, task)
    try:
        connection.data_received(data)
    finally:
        _enter_task(loop, task)


@asynccontextmanager
async def listening(
    handler: Handler, limits: HttpLimits = USUAL, *, gate: Gate | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Listener]:
    """Give a listener on a free port and close it afterwards."""
    listener = Listener(handler, refused=refused, limits=limits, gate=gate)
    await listener.start("127.0.0.1", 0, tls=tls)
    try:
        yield listener
    finally:
        await listener.close()
        await until(lambda: len(listener.connections) == 0)


async def echo(exchange: Exchange) -> None:
    """Answer with what was asked."""
    said = f"{exchange.method} {exchange.path} {exchange.query} ".encode() + exchange.body
    exchange.reply(200, said, content_type="text/plain")


@dataclass
class Client:
    """A connection that sends bytes as they are."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Write bytes and wait until they are on their way."""
        self.writer.write(data)
        await asyncio.wait_for(self.writer.drain(), PATIENCE_S)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read a response's status and headers."""
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        first, *lines = raw[:-4].decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split(" ")[1]), headers

    async def response(self) -> tuple[int, bytes]:
        """Read a whole response."""
        status, headers = await self.head()
        if headers.get("transfer-encoding") != "chunked":
            size = int(headers["content-length"])
            return status, await asyncio.wait_for(self.reader.readexactly(size), PATIENCE_S)
        body = b""
        while chunk := await self.chunk():
            body += chunk
        return status, body

    async def chunk(self) -> bytes:
        """Read one chunk; the last one is empty."""
        size = int(await asyncio.wait_for(self.reader.readline(), PATIENCE_S), 16)
        data = await asyncio.wait_for(self.reader.readexactly(size + 2), PATIENCE_S)
        return data[:-2]

    async def rest(self, seconds: float = PATIENCE_S) -> bytes:
        """Read until the server ends the connection; b"RST" when it resets it."""
        try:
            return await asyncio.wait_for(self.reader.read(-1), seconds)
        except ConnectionResetError:
            return b"RST"

    def abort(self) -> None:
        """Reset the connection."""
        self.writer.transport.abort()

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()


@asynccontextmanager
async def connected(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    """Give a client and close it afterwards."""
    reader, writer = await asyncio.wait_for(
        asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname="localhost" if tls else None), PATIENCE_S
    )
    client = Client(reader, writer)
    try:
        yield client
    finally:
        client.abort()


@dataclass
class Seen:
    """A request as the backend read it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes


Answer = Callable[["Backend", asyncio.StreamWriter], Awaitable[None]]


async def whole(backend: "Backend", writer: asyncio.StreamWriter) -> None:
    """Answer in one piece."""
    del backend
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")


@dataclass
class Backend:
    """A backend that reads with h11, strictly, and remembers all it saw."""

    answer: Answer = whole
    seen: list[Seen] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    opened: int = 0
    open: int = 0
    ended: list[float] = field(default_factory=list)
    """When clients' ends of connections were seen."""
    port: int = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Give the backend's URL."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{self.port}"
        finally:
            server.close()
            await until(lambda: self.open == 0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self.open += 1
        try:
            await self._requests(reader, writer)
        except h11.RemoteProtocolError as error:
            self.errors.append(str(error))
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            self.ended.append(monotonic())
            writer.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=2**20)
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(2**16)
                connection.receive_data(data)
                if not data:
                    return
            elif isinstance(event, h11.Request):
                headers = [(name.decode(), value.decode()) for name, value in event.headers]
                self.seen.append(Seen(event.method.decode(), event.target.decode(), headers, b""))
            elif isinstance(event, h11.Data):
                self.seen[-1].body += event.data
            elif isinstance(event, h11.EndOfMessage):
                executor = asyncio.ensure_future(self.answer(self, writer))
                more = asyncio.ensure_future(reader.read(2**16))
                try:
                    await asyncio.wait({executor, more}, return_when=asyncio.FIRST_COMPLETED)
                    if more.done() and not more.result():
                        return
                    await executor
                finally:
                    executor.cancel()
                    await asyncio.gather(executor, return_exceptions=True)
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                connection.start_next_cycle()
                connection.receive_data(await more)
                if not more.result():
                    return


class Passed:
    """Takes a backend's answer and gives it to the client as it comes."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._begun = False

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Begin the client's answer."""
        self._begun = True
        self._exchange.begin(status, content_type=headers.get("content-type", ""))

    def data(self, chunk: bytes) -> None:
        """Pass a piece on."""
        self._exchange.write(chunk)

    def finish(self) -> None:
        """End the client's answer."""
        self._exchange.end()


@dataclass
class Front:
    """A handler that sends every request's body to a backend and streams its answer back."""

    pool: ConnectionPool
    url: str
    served: int = 0
    failures: list[str] = field(default_factory=list)
    running: int = 0

    async def serve(self, exchange: Exchange) -> None:
        """Serve one request."""
        self.served += 1
        self.running += 1
        leg = UpstreamRequest(first_s=5.0, idle_s=5.0, total_s=20.0)
        passed = Passed(exchange)
        exchange.source = leg
        try:
            self.pool.send(leg, self.pool.origin(self.url), "/v1/completions", exchange.body, passed)
            await leg
        except UpstreamFailedError as error:
            self.failures.append(error.reason)
            if not exchange.headers_sent:
                exchange.reply(502, b"{}")
            return
        finally:
            self.running -= 1
        passed.finish()


@asynccontextmanager
async def fronted(
    backend: Backend, limits: HttpLimits = USUAL, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Listener, Front]]:
    """Give a listener whose requests go through a pool to the backend."""
    async with backend.running() as url:
        front = Front(ConnectionPool(connect_s=2.0, keepalive_s=30.0), url)
        async with listening(front.serve, limits, tls=tls) as listener:
            yield listener, front
        await front.pool.close()
