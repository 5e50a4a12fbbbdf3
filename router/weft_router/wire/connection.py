"""One client's connection: bytes in, one request after the other served, bytes out with back-pressure."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import cast

from weft_router.errors import ApiError
from weft_router.wire.exchange import Exchange
from weft_router.wire.request import FramingError, Gate, Request, RequestReader

log = logging.getLogger(__name__)

Handler = Callable[[Exchange], Awaitable[None]]

HEADERS_S = 10.0
"""From the first byte, or the connection, to the end of a request's headers."""
IDLE_S = 75.0
"""Between two requests."""
BODY_S = 30.0
"""For a body, and beyond that as long as it comes at BODY_RATE."""
BODY_RATE = 1024.0
WRITE_BUFFER = 256 * 2**10
MAX_PIPELINED = 16
_SMALL = 16 * 2**10
"""Up to here joining parts is cheaper than a vectored write."""


class Connection(asyncio.Protocol):
    """A connection of the server; lives as long as its client does."""

    def __init__(
        self, owner: "Connections", *, max_body: int, gate: Gate | None, body_s: float, stall_s: float
    ) -> None:
        self._owner = owner
        self._reader = RequestReader(max_body=max_body, gate=gate)
        self._body_s = body_s
        self._stall_s = stall_s
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Request] = deque()
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._held = False
        self._stop_reading = False
        self._since = monotonic()
        self._reading = True
        self._stalled_at = 0.0
        self.closing = False

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self._owner.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._owner.remove(self)
        self._waiting.clear()
        if self._exchange is not None:
            self._exchange.gone = True
            if self._task is not None:
                self._task.cancel()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if self._stop_reading:
            return
        if not self._reading and self._exchange is None:
            self._reading = True
            self._since = monotonic()
        try:
            requests = reader.feed(data)
        except FramingError as error:
            self._refuse(error.error)
            return
        if requests:
            self._reading = False
            self._waiting.extend(requests)
            if reader.broken:
                self._stop_reading = self.closing = True
        if reader.wants_continue and self._exchange is None and not reader.received:
            reader.wants_continue = False
            self.put(b"HTTP/1.1 100 Continue\r\n\r\n")
        if len(self._waiting) > MAX_PIPELINED and self._transport is not None:
            self._held = True
            self._transport.pause_reading()
        if self._exchange is None and self._waiting:
            self._serve()

    def pause_writing(self) -> None:
        self._stalled_at = monotonic()
        if self._exchange is not None and self._exchange.source is not None:
            self._exchange.source.pause()

    def resume_writing(self) -> None:
        self._stalled_at = 0.0
        if self._exchange is not None and self._exchange.source is not None:
            self._exchange.source.resume()

    # The exchange's side.

    def put(self, *parts: bytes) -> None:
        """Write bytes; what a lost client would have got is dropped."""
        transport = self._transport
        if transport is None:
            return
        if len(parts) == 1:
            transport.write(parts[0])
        elif len(parts[1]) <= _SMALL:
            transport.write(parts[0] + parts[1])
        else:
            transport.writelines(parts)

    def finished(self, *, keep: bool) -> None:
        """Serve the next request, or close once all is sent."""
        self._exchange = None
        self._since = monotonic()
        self._reading = not self._reader.idle
        if not keep or self.closing:
            self.close()
            return
        if self._held and self._transport is not None:
            self._held = False
            self._transport.resume_reading()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._serve)

    def abort(self) -> None:
        """Close without sending what is left."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close when what was written is sent."""
        self._stop_reading = True
        if self._transport is not None:
            self._transport.close()

    # The owner's side.

    @property
    def busy(self) -> bool:
        """Tell whether a request is being served."""
        return self._exchange is not None

    def check(self, now: float) -> str | None:
        """Close what holds a place without getting on; return why."""
        reader = self._reader
        why: str | None = None
        if self._stalled_at:
            if now - self._stalled_at > self._stall_s:
                why = "slow reader"
                if self._exchange is not None:
                    self._exchange.stalled = True
        elif self._exchange is not None:
            return None
        elif reader.in_body:
            spent = now - self._since
            if spent > self._body_s and reader.received < BODY_RATE * spent:
                self._refuse(ApiError(f"the request body did not arrive within {self._body_s:g} s", status=408))
                return "slow body"
        elif self._reading:
            why = "slow headers" if now - self._since > HEADERS_S else None
        elif now - self._since > IDLE_S:
            self.close()
            return "idle"
        if why is not None:
            self.abort()
        return why

    def _refuse(self, error: ApiError) -> None:
        """Answer what could not be read as a request, and end the connection."""
        self._stop_reading = True
        if self._exchange is not None:  # its answer is on its way; the broken bytes after it end the connection then
            self.closing = True
            return
        self.closing = True
        exchange = Exchange(self, Request("", "", "", {}, b"", http10=False, keep_alive=False))
        self._owner.refused(exchange, error)

    def _serve(self) -> None:
        if self._exchange is not None or not self._waiting or self._transport is None:
            return
        request = self._waiting.popleft()
        exchange = self._exchange = Exchange(self, request)
        self._task = asyncio.get_running_loop().create_task(self._run(exchange))

    async def _run(self, exchange: Exchange) -> None:
        await self._owner.handler(exchange)
        if not exchange.ended:
            exchange.abort()


class Connections:
    """All connections of one listening server."""

    def __init__(self, handler: Handler, refused: Callable[[Exchange, ApiError], None]) -> None:
        self.handler = handler
        self.refused = refused
        self.closing = False
        self._live: set[Connection] = set()

    def __len__(self) -> int:
        """Return how many clients are connected."""
        return len(self._live)

    def add(self, connection: Connection) -> None:
        """Know a new connection."""
        connection.closing = self.closing
        self._live.add(connection)

    def remove(self, connection: Connection) -> None:
        """Forget a lost one."""
        self._live.discard(connection)

    def check(self) -> int:
        """Close the connections that hold a place without getting on; return how many that were."""
        now = monotonic()
        late = [why for connection in list(self._live) if (why := connection.check(now)) is not None]
        for why in late:
            if why != "idle":
                log.info("connection_closed", extra={"reason": why})
        return len(late)

    def close_after_replies(self, *, idle: bool) -> None:
        """Let every connection, and those to come, end with their next answer; with ``idle`` the others end now."""
        self.closing = True
        for connection in list(self._live):
            connection.closing = True
            if idle and not connection.busy:
                connection.close()

    def abort(self) -> None:
        """Cut all off."""
        for connection in list(self._live):
            connection.abort()
