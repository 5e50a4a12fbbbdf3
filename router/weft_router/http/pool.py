"""Keep connections to engines and router processes and send requests over them: bounded waits, no client's headers.

A connection serves one request at a time. To a process that carries links it is a stream of one, as soon as a link
is up; until then, and wherever none is, it is one by itself. One that its server closed while it was idle shows when
it is used; a request that may be sent twice is then sent once more over a new one.
"""

import asyncio
import contextlib
import socket
import ssl
from time import monotonic
from typing import Final, cast

from weft_router.http.handshake import UnauthenticatedPeerError, connect, warn_unproven
from weft_router.http.link_dialer import LinkPool
from weft_router.http.response import ResponseHandler
from weft_router.http.upstream_connection import Origin, UpstreamConnection, UpstreamConnectionOwner
from weft_router.http.upstream_request import BufferedResponse, UpstreamRequest

RESEND_WITHIN_S = 0.25
"""A connection that was closed while idle fails at once; what fails later had worked first."""
SWEEP_S = 0.1
MAX_IDLE: Final = 1024
"""Idle connections kept to one origin."""
MAX_ORIGINS = 10_000
_PROBES = 3
"""Probes of a connection without an answer after which it is lost."""


class ConnectionPool(UpstreamConnectionOwner):
    """Connections to any number of origins."""

    def __init__(
        self, *, connect_s: float, keepalive_s: float, links: bool = False, hop_key: bytes | None = None,
        tls: ssl.SSLContext | None = None, lost_s: int = 0,
    ) -> None:  # fmt: skip
        """Set the timeouts for connecting and for idle connections; with ``links`` dial links.

        With ``hop_key`` all origins are router processes of this service, and each connection is authenticated.
        ``tls`` says whom to trust. With ``lost_s`` a peer whose machine does not answer for so long is lost, also while
        it owes an answer.
        """
        self._links = LinkPool(hop_key, connect_s=connect_s) if links else None
        self._hop_key = hop_key
        self._connect_s = connect_s
        self._keepalive_s = keepalive_s
        self._kept: set[Origin] = set()
        """Those with idle connections, and since the last sweep those that had some."""
        self._requests: dict[UpstreamRequest, Origin] = {}
        self._origins: dict[str, Origin] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._tls = tls
        self._lost_s = lost_s
        self._closed = False

    @property
    def requests(self) -> int:
        """Return how many requests are under way."""
        return len(self._requests)

    @property
    def idle(self) -> int:
        """Return how many connections wait for a request."""
        return sum(len(origin.idle) for origin in self._kept)

    @property
    def links(self) -> int:
        """Return how many origins are asked over a link."""
        return len(self._links) if self._links is not None else 0

    def origin(self, url: str) -> Origin:
        """Return the origin of a URL, the same object each time."""
        found = self._origins.get(url)
        if found is None:
            if len(self._origins) >= MAX_ORIGINS:
                self._origins.clear()
            found = self._origins[url] = Origin(url)
        return found

    def send(
        self, request: UpstreamRequest, origin: Origin, path: str, payload: bytes, taker: ResponseHandler, *,
        lines: str = "", resend: bool = False, method: str = "POST", tail: bytes = b"",
    ) -> None:  # fmt: skip
        """Send a request and pass its response to ``taker``, never before this returns.

        The end is reported to whoever awaits the request, or to ``request.on_done``. A failed request raises
        UpstreamFailedError where it is awaited, and ``request.answered`` tells whether a byte of an answer came.
        ``request.cancel()`` ends it without telling anybody and aborts it at the other end; so does a cancel of whoever
        awaits it.

        ``lines`` are those of its headers, as header_lines writes them. A body may come in two parts, of which
        ``tail`` is not copied where it is long. With ``resend`` it is sent once more when a kept connection turns out
        closed: not for requests with a KV handle, which is good for one sending.
        """
        head, payload = origin.request(method, path, payload, lines, tail)
        self._requests[request] = origin
        request.sender = self
        if request.over:  # it failed before it was sent
            self.ended(request)
            request.notify_soon()
            return
        if self._closed:
            request.fail("closed")
            return
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        connection = self._take(origin, request.began)
        if connection is None:
            connection = self._begin(origin)
            if connection is None:
                self._open(request, origin, taker, head, payload)
                return
        if resend:
            if payload and not tail:  # kept until there is an answer: what orjson wrote holds up to 16 times its size
                head, payload = head + payload, b""
            request.again = taker, head, payload
        connection.send(request, taker, head, payload)

    async def call(
        self, request: UpstreamRequest, origin: Origin, path: str, payload: bytes = b"", *, limit: int, lines: str = "",
        resend: bool = False, method: str = "POST", tail: bytes = b"",
    ) -> BufferedResponse:  # fmt: skip
        """Send a request and return its whole answer of at most ``limit`` bytes.

        Raises:
            UpstreamFailedError: no whole answer came.
        """
        whole = BufferedResponse(request, limit)
        self.send(request, origin, path, payload, whole, lines=lines, resend=resend, method=method, tail=tail)
        await request
        return whole

    def lost(self, request: UpstreamRequest) -> bool:
        """Handle a failed request; return whether it is sent once more, in another iteration of the event loop."""
        if request.lost != "disconnected" or request.answered or request.again is None:
            return False
        if monotonic() - request.began > RESEND_WITHIN_S:
            return False
        asyncio.get_running_loop().call_soon(self._resend, request)
        return True

    def ended(self, request: UpstreamRequest) -> None:
        """Forget a request that is over."""
        del self._requests[request]
        request.again = None

    def terminate(self, reason: str, url: str | None = None) -> None:
        """End all requests now, or those to one URL."""
        for request, origin in list(self._requests.items()):
            if url is None or origin.url == url:
                request.fail(reason)
        if self._links is not None and url is not None:
            self._links.terminate(url)

    async def close(self) -> None:
        """Close everything."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.terminate("closed")
        for origin in self._kept:
            for connection in origin.idle:
                connection.kept = False
                connection.drop()
            origin.idle.clear()
        self._kept.clear()
        if self._links is not None:
            self._links.close()
        await asyncio.sleep(0)

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection for the next request."""
        origin = connection.origin
        idle = origin.idle
        link = origin.link
        if self._closed or len(idle) >= MAX_IDLE or (link is not None and not connection.linked and link.usable):
            connection.drop()
            return
        now = connection.idle_since = monotonic()
        if not idle:
            self._kept.add(origin)
        elif link is None and self._links is not None and now >= origin.dial_at and not origin.tls:
            self._links.seek(origin)  # it had two requests at once: only then is there anything to share
        connection.kept = True
        idle.append(connection)

    def closed(self, connection: UpstreamConnection) -> None:
        """Forget a kept connection that its server closed."""
        connection.kept = False
        idle = connection.origin.idle
        if connection in idle:
            idle.remove(connection)

    def _take(self, origin: Origin, now: float) -> UpstreamConnection | None:
        idle = origin.idle
        if not idle:
            return None
        oldest = now - self._keepalive_s
        linked = origin.link is not None and origin.link.usable
        while idle:
            connection = idle.pop()
            connection.kept = False
            if connection.idle_since > oldest and connection.usable and connection.linked == linked:
                return connection
            connection.drop()
        return None

    def _begin(self, origin: Origin) -> UpstreamConnection | None:
        """Return another stream to an origin, if there is a link that gets on."""
        link = origin.link
        if link is None or not link.usable:
            return None
        connection = UpstreamConnection(self, origin, linked=True)
        link.open(cast(asyncio.Protocol, connection))
        return connection

    def _open(
        self, request: UpstreamRequest, origin: Origin, taker: ResponseHandler, head: bytes, payload: bytes
    ) -> None:
        """Send a request over a new connection."""
        request.connecting(asyncio.get_running_loop().create_task(self._connect(request, origin, taker, head, payload)))

    def _resend(self, request: UpstreamRequest) -> None:
        """Send a request again whose connection turned out closed."""
        if request.over:
            return
        request.lost = ""
        request.resent = True
        taker, head, payload = cast(tuple[ResponseHandler, bytes, bytes], request.again)
        origin = self._requests[request]
        connection = self._take(origin, monotonic())
        if connection is None:
            request.again = None  # a connection of its own is closed for a reason
            self._open(request, origin, taker, head, payload)
        else:
            connection.send(request, taker, head, payload)

    async def _connect(
        self, request: UpstreamRequest, origin: Origin, taker: ResponseHandler, head: bytes, payload: bytes
    ) -> None:
        try:
            async with asyncio.timeout(min(self._connect_s, max(0.0, request.until - monotonic()))):
                connection = await (self._made(origin) if self._hop_key is None else self._proven(origin))
        except Exception as error:  # noqa: BLE001 - whatever keeps a connection from being made ends this request alone
            if isinstance(error, UnauthenticatedPeerError):
                warn_unproven(origin, error, monotonic())
            request.connecting(None)
            request.fail("connect", str(error))
            return
        request.connecting(None)
        if request.over:
            connection.drop()
        else:
            connection.send(request, taker, head, payload)

    async def _made(self, origin: Origin) -> UpstreamConnection:
        """Return a new connection, whoever the peer is."""
        context = self._context() if origin.tls else None
        transport, protocol = await asyncio.get_running_loop().create_connection(
            lambda: cast(asyncio.Protocol, UpstreamConnection(self, origin)), origin.host, origin.port, ssl=context
        )
        if self._lost_s:
            _probe(transport, self._lost_s)
        return cast(UpstreamConnection, protocol)

    async def _proven(self, origin: Origin) -> UpstreamConnection:
        """Return a new connection to an authenticated router process of this service."""
        if origin.tls:
            raise UnauthenticatedPeerError("router processes serve each other without TLS")
        transport, _ = await connect(origin, self._hop_key)
        connection = UpstreamConnection(self, origin)
        transport.set_protocol(cast(asyncio.Protocol, connection))
        connection.connection_made(transport)
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _sweep(self) -> None:
        """End the requests whose time is over, and the connections that were idle for too long."""
        now = monotonic()
        for request in [request for request in self._requests if request.late(now)]:
            request.fail("timeout")
        oldest = now - self._keepalive_s
        for origin in list(self._kept):
            idle = origin.idle
            while idle and idle[0].idle_since <= oldest:
                connection = idle.pop(0)
                connection.kept = False
                connection.drop()
            if not idle:
                self._kept.discard(origin)
        up = self._links.sweep(now, oldest) if self._links is not None else 0
        self._sweeper = None
        if self._requests or self._kept or up:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)


def _probe(transport: asyncio.BaseTransport, lost_s: int) -> None:
    """Have the kernel give a connection up whose peer acknowledges nothing for so many seconds."""
    own = transport.get_extra_info("socket")
    if own is None or not hasattr(socket, "TCP_USER_TIMEOUT"):  # only Linux has all of it
        return
    pause = max(1, lost_s // (_PROBES + 1))
    options = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, lost_s * 1000),
    )
    with contextlib.suppress(OSError):  # it may be lost already
        for level, name, value in options:
            own.setsockopt(level, name, value)
