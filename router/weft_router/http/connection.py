"""One client's connection: bytes in, one request after the other served, bytes out with back-pressure.

Reading never stops while a client is connected, so that its going away is seen at once; what it sends beyond its
bounds is dropped, and the connection ends with the answer under way. What is held for it is counted in the budget of
the process.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from typing import Protocol, cast

from weft_router.errors import ApiError, no_room
from weft_router.http.budget import COPIES, EACH, Budget
from weft_router.http.client_memory import ClientMemory
from weft_router.http.deadlines import IDLE, SLOW_BODY, SLOW_READER, ClientDeadlines
from weft_router.http.exchange import ClientTransport, Exchange
from weft_router.http.head import FramingError, Gate, Peer, Request
from weft_router.http.inline_task import InlineTask
from weft_router.http.limits import HttpLimits
from weft_router.http.link import PROTOCOL
from weft_router.http.request import RequestReader
from weft_router.http.write_batch import write_batch_of

log = logging.getLogger(__name__)

Handler = Callable[[Exchange], Coroutine[object, None, None]]
"""Serves a request."""

_FULL_BODY = (
    b'{"error":{"message":"too many connections; try again","type":"service_unavailable","param":null,'
    b'"code":"unavailable"}}'
)
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nServer: weft\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_FULL_BODY), _FULL_BODY)
)
_SWITCHED = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n".encode()


class ConnectionOwner(Protocol):
    """All connections of a server, as one of them sees them."""

    handler: Handler
    refused: Callable[[Exchange, ApiError], None]
    closing: bool
    budget: Budget

    def add(self, connection: "Connection") -> bool:
        """Know a new connection; tell whether there is a place for it."""

    def remove(self, connection: "Connection") -> None:
        """Forget a lost one."""

    def carry(self, transport: asyncio.Transport, peer: Peer) -> None:
        """Turn a connection into a link, whose streams are connections of the same peer."""


class Connection(ClientTransport):
    """A connection of the server; lives as long as its client does.

    An ``asyncio.Protocol`` by its methods, not by its base: a compiled class is a structure only where all bases are.
    """

    __slots__ = (
        "_budget",
        "_deadlines",
        "_deaf",
        "_exchange",
        "_gate",
        "_handler",
        "_limits",
        "_lingers",
        "_loop",
        "_memory",
        "_owner",
        "_reader",
        "_task",
        "_transport",
        "_waiting",
        "_write_batch",
    )  # fmt: skip

    def __init__(
        self, owner: ConnectionOwner, limits: HttpLimits, *, gate: Gate | None, peer: Peer | None = None
    ) -> None:
        self.peer = Peer() if peer is None else peer
        self._owner = owner
        self._handler = owner.handler
        self._budget = owner.budget
        self._limits = limits
        self._gate = gate
        self._reader = RequestReader(limits, gate=gate, peer=self.peer)
        self._loop = asyncio.get_running_loop()
        self._write_batch = write_batch_of(self._loop)
        self._transport: asyncio.Transport | None = None
        self._waiting: list[Request] = []
        self._exchange: Exchange | None = None
        self._task: InlineTask | None = None
        self._deaf = False
        """Whether what comes is dropped."""
        self._lingers = False
        """Whether the client may still be sending what was refused."""
        self._deadlines = ClientDeadlines(limits)
        self._memory = ClientMemory(owner.budget)
        self.closing = False
        self.full = False

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.max_unread)
        self.closing = self._owner.closing
        if not self._owner.add(self):
            self._lingers = True
            self._transport.write(_FULL)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._deaf = True
        self._owner.remove(self)
        self._give_all()
        if self._exchange is not None:
            self._exchange.gone = True
            if self._task is not None:
                self._task.cancel()

    def eof_received(self) -> None:
        """Take a client that ends its side for gone; what was answered already is still sent."""
        if self._exchange is not None:
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        reader = self._reader
        try:
            requests = reader.feed(data)
        except FramingError as error:
            self._refuse(error.error)
            return
        if requests:
            deadlines = self._deadlines
            deadlines.seen = 0
            deadlines.reading = False
            waiting = self._waiting
            waits = self._exchange is not None or bool(waiting)
            for request in requests:
                if waits or request.body or request.head > EACH:
                    self._count(request, waits=waits)
                waits = True
            if waiting:
                waiting += requests
            else:
                waiting = self._waiting = requests
            if reader.failure is not None or (len(waiting) > 1 and self._flooded()):
                self._deaf = self.closing = True
            if self._exchange is None:
                self._serve()
        elif not self._deadlines.reading and self._exchange is None:
            deadlines = self._deadlines
            deadlines.reading = True
            deadlines.since = 0.0
        if reader.kept != self._memory.kept and not self._memory.keep(reader.kept, self):
            self._refuse(no_room())
            return
        if reader.wants_continue:
            self._continue()

    def pause_writing(self) -> None:
        self.full = True
        self._deadlines.stalled_at = monotonic()
        self._memory.count_unread(self._transport, self)
        if self._exchange is not None and self._exchange.source is not None:
            self._exchange.source.pause()

    def resume_writing(self) -> None:
        self.full = False
        self._deadlines.stalled_at = 0.0
        if self._exchange is not None and self._exchange.source is not None:
            self._exchange.source.resume()

    # The exchange's side.

    def put(self, data: bytes) -> None:
        """Write bytes; what a lost client would have got is dropped."""
        if self._transport is not None:
            self._write_batch.put(self._transport, data)

    def put_two(self, first: bytes, second: bytes) -> None:
        """Write bytes that are too many to be joined."""
        if self._transport is not None:
            self._write_batch.put(self._transport, first, second)

    def switch(self) -> None:
        """Carry streams from now on; this object is done."""
        transport, self._transport = self._transport, None
        self._exchange = self._task = None
        self._deaf = True
        self._give_all()
        self._owner.remove(self)
        if transport is not None:
            transport.write(_SWITCHED)
            self._owner.carry(transport, self.peer)

    def flush_soon(self) -> None:
        """Have the exchange flushed once the callback under way is over."""
        if self._exchange is not None:
            self._loop.call_soon(self._exchange.flush)

    def sockname(self) -> object:
        """Return the address at which the client reached this process, as a socket tells it; None where it is lost."""
        return self._transport.get_extra_info("sockname") if self._transport is not None else None

    def finished(self, *, keep: bool) -> None:
        """Serve the next request, or close once all is sent.

        A client that was told that the connection is kept may send its next request at any moment: when the connection
        is to end, the reply to that one says so.
        """
        self._exchange = self._task = None  # a client that stays keeps nothing of what it sent
        if self._memory.held:
            self._memory.release()
        if not keep or self._deaf:
            self.close()
            return
        deadlines = self._deadlines
        deadlines.since = 0.0
        reader = self._reader
        if self._waiting:
            self._loop.call_soon(self._serve)
        elif not reader.idle:
            deadlines.reading = True
            deadlines.seen = reader.received
            if reader.wants_continue:
                self._continue()

    def abort(self) -> None:
        """Close without sending what is left."""
        self._deaf = True
        self._drop_partial()
        if self._transport is not None:
            self._write_batch.flush()
            self._transport.abort()

    def hold(self, size: int) -> bool:
        """Reserve bytes for the current request until it ends; False where the budget has no room."""
        if self._transport is None:
            return True  # it ends, and so does what it takes
        return self._memory.hold(size, self)

    def release(self) -> None:
        """Count nothing any more for the request under way: nothing is kept of it."""
        self._memory.release()

    def shed(self) -> None:
        """Discard the unfinished request and free its memory, because others need it."""
        if not self._memory.unread:
            self._refuse(no_room())
            return
        self._memory.give_unread()
        self.abort()

    def close(self) -> None:
        """Close when what was written is sent."""
        self._deaf = self.closing = True
        self._drop_partial()
        transport = self._transport
        if transport is None or self._deadlines.closed_at:
            return
        self._write_batch.flush()
        self._deadlines.closed_at = monotonic()
        # Closing with bytes unread resets the connection, and a client that is still sending would lose the answer.
        if not self._lingers:
            transport.close()
        elif transport.can_write_eof():
            transport.write_eof()

    # The owner's side.

    @property
    def busy(self) -> bool:
        """Return whether a request is being read or served."""
        return self._exchange is not None or bool(self._waiting) or not self._reader.idle

    def check(self, now: float) -> str | None:
        """Close what holds a place without getting on; return why."""
        memory, reader = self._memory, self._reader
        if memory.count_unread(self._transport, self):
            self._budget.unfinished(memory.kept + memory.unread, self)
        body = reader.received if reader.in_body else -1
        why = self._deadlines.overdue(now, served=self._exchange is not None, body=body, lingers=self._lingers)
        if why is None:
            return None
        if why == IDLE:
            self.close()
        elif why == SLOW_BODY:
            rate = self._limits.min_body_rate
            self._refuse(ApiError(f"the request body did not arrive at {rate:g} bytes a second", status=408))
        else:
            if why == SLOW_READER and self._exchange is not None:
                self._exchange.stalled = True
            self.abort()
        return why

    def _count(self, request: Request, *, waits: bool) -> None:
        """Count the bytes that a request takes while it waits and is served; refuse it where there is no room.

        One that ``waits`` for the one before it may have come whole, so that nobody has looked at its head.
        """
        if self._memory.kept:
            self._memory.keep(0, self)  # they are among its bytes now, and would count twice
        if waits and self._gate is not None and request.refusal is None:
            request.refusal = self._gate(request, self.peer)
        if request.refusal is None:
            size = EACH + COPIES * len(request.body)
            if request.head > EACH:
                size += request.head
            if self._budget.acquire(size, self):
                request.held = size
                return
            request.refusal = no_room()
        request.body, request.headers = b"", {}

    def _drop_partial(self) -> None:
        """Discard an incomplete request, of which nothing more will be read."""
        self._reader.drop()
        if self._memory.kept:
            self._memory.keep(0, self)

    def _give_all(self) -> None:
        """Count nothing any more: there is no client."""
        self._drop_partial()
        self._memory.give_all(self._waiting, self)
        self._waiting.clear()

    def _flooded(self) -> bool:
        """Return whether more requests wait than one client may have waiting."""
        waiting = self._waiting[self._exchange is None :]  # the first one is about to be served
        limits = self._limits
        return len(waiting) > limits.max_pipelined or sum(len(r.body) for r in waiting) > limits.max_body

    def _continue(self) -> None:
        """Tell a client that waits for it to send its body."""
        if self._exchange is None and not self._waiting:
            self._reader.wants_continue = False
            if not self._reader.received:
                self.put(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse(self, error: ApiError) -> None:
        """Answer what could not be read as a request, and end the connection."""
        self._deaf = self.closing = True
        self._drop_partial()
        if self._exchange is not None or self._waiting:
            return  # an answer is on its way; the connection ends with it
        self._lingers = True
        request = Request("", "", "", {}, b"", http10=False, keep_alive=False)
        exchange = self._exchange = Exchange(self, request)
        self._task = None
        self._owner.refused(exchange, error)
        exchange.abort()

    def _serve(self) -> None:
        if self._exchange is not None or not self._waiting or self._transport is None:
            return
        request = self._waiting.pop(0)
        exchange = self._exchange = Exchange(self, request)
        self._task = None
        self._memory.held = request.held
        if request.refusal is not None:
            self._owner.refused(exchange, request.refusal)
            return
        task = self._task = InlineTask(self._handler(exchange), partial(self._over, exchange), self._loop)
        task.start()

    def _over(self, exchange: Exchange, error: BaseException | None) -> None:
        """Handle the end of a handler; whatever it leaves open ends this connection and no other."""
        if isinstance(error, Exception):
            log.error("handler_failed", exc_info=error)
        exchange.abort()  # unless it has ended
