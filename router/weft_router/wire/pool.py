"""Keep connections to engines and router processes and send requests over them: bounded waits, no client's headers.

A connection serves one request at a time. One that its server closed while it was idle shows when it is used; a
request that may be sent twice is then sent once more over a new one.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from time import monotonic

from weft_router.errors import LegFailedError
from weft_router.wire.leg import Leg, Whole
from weft_router.wire.response import Taker
from weft_router.wire.upstream import Origin, Upstream

RESEND_WITHIN_S = 0.25
"""A connection that was closed while idle fails at once; what fails later had begun to work."""
SWEEP_S = 0.1
MAX_IDLE = 1024
"""Idle connections kept to one origin."""
MAX_ORIGINS = 10_000


class Pool:
    """Connections to any number of origins."""

    def __init__(self, *, connect_s: float, keepalive_s: float) -> None:
        self._connect_s = connect_s
        self._keepalive_s = keepalive_s
        self._idle: dict[Origin, deque[Upstream]] = {}
        self._legs: dict[Leg, Origin] = {}
        self._origins: dict[str, Origin] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    @property
    def legs(self) -> int:
        """Return how many requests are under way."""
        return len(self._legs)

    @property
    def idle(self) -> int:
        """Return how many connections wait for a request."""
        return sum(map(len, self._idle.values()))

    def origin(self, url: str) -> Origin:
        """Return the origin of a URL, the same object each time."""
        found = self._origins.get(url)
        if found is None:
            if len(self._origins) >= MAX_ORIGINS:
                self._origins.clear()
            found = self._origins[url] = Origin(url)
        return found

    async def run(
        self, leg: Leg, origin: Origin, path: str, payload: bytes, taker: Taker, *,
        headers: Mapping[str, str] | None = None, resend: bool = False, method: str = "POST",
    ) -> None:  # fmt: skip
        """Send a request and hand its answer to ``taker`` until it is whole; a cancel aborts it at the other end.

        With ``resend`` it is sent once more when a kept connection turns out closed. Not for requests with a KV
        handle, which is good for one sending.

        Raises:
            LegFailedError: no whole answer came; ``leg.answered`` tells whether a byte of it did.
        """
        head = _head(origin, method, path, payload, headers)
        if self._sweeper is None and not self._closed:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        self._legs[leg] = origin
        started = monotonic() if resend else 0.0
        try:
            while True:
                if self._closed:
                    raise LegFailedError("closed")
                connection = self._take(origin)
                kept = connection is not None
                if connection is None:
                    connection = await self._connect(origin, leg)
                connection.send(leg, taker, head, payload)
                if not (kept and resend):
                    head = payload = b""  # a long stream need not keep its prompt
                try:
                    await leg.done
                except LegFailedError:
                    stale = kept and resend and leg.lost == "disconnected" and not leg.answered
                    if not stale or monotonic() - started > RESEND_WITHIN_S:
                        raise
                    leg.again()
                else:
                    return
        except asyncio.CancelledError:
            leg.fail("cancelled")
            raise
        finally:
            del self._legs[leg]

    async def call(
        self, leg: Leg, origin: Origin, path: str, payload: bytes = b"", *, limit: int,
        headers: Mapping[str, str] | None = None, resend: bool = False, method: str = "POST",
    ) -> Whole:  # fmt: skip
        """Send a request and return its whole answer of at most ``limit`` bytes.

        Raises:
            LegFailedError: no whole answer came.
        """
        whole = Whole(leg, limit)
        await self.run(leg, origin, path, payload, whole, headers=headers, resend=resend, method=method)
        return whole

    def cut(self, reason: str, url: str | None = None) -> None:
        """End all legs now, or those to one URL."""
        for leg, origin in list(self._legs.items()):
            if url is None or origin.url == url:
                leg.fail(reason)

    async def close(self) -> None:
        """Close everything."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.cut("closed")
        for idle in self._idle.values():
            for connection in idle:
                connection.kept = False
                connection.drop()
        self._idle.clear()
        await asyncio.sleep(0)

    def give_back(self, connection: Upstream) -> None:
        """Keep a connection for the next request."""
        idle = self._idle.get(connection.origin)
        if idle is None:
            idle = self._idle[connection.origin] = deque()
        if self._closed or len(idle) >= MAX_IDLE:
            connection.drop()
            return
        connection.idle_since = monotonic()
        connection.kept = True
        idle.append(connection)

    def lost(self, connection: Upstream) -> None:
        """Forget a kept connection that its server closed."""
        connection.kept = False
        idle = self._idle.get(connection.origin)
        if idle is not None and connection in idle:
            idle.remove(connection)

    def _take(self, origin: Origin) -> Upstream | None:
        idle = self._idle.get(origin)
        if not idle:
            return None
        oldest = monotonic() - self._keepalive_s
        while idle:
            connection = idle.pop()
            connection.kept = False
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.drop()
        return None

    async def _connect(self, origin: Origin, leg: Leg) -> Upstream:
        loop = asyncio.get_running_loop()
        context = self._context() if origin.tls else None
        try:
            async with asyncio.timeout(min(self._connect_s, max(0.0, leg.until - monotonic()))) as scope:
                leg.connecting(scope)
                _, connection = await loop.create_connection(
                    lambda: Upstream(self, origin), origin.host, origin.port, ssl=context
                )
        except (OSError, TimeoutError) as error:
            raise LegFailedError(leg.lost or "connect", str(error)) from error
        finally:
            leg.connecting(None)
        if leg.lost:
            connection.drop()
            raise LegFailedError(leg.lost)
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _sweep(self) -> None:
        """End the legs whose time is over, and the connections that were idle for too long."""
        now = monotonic()
        for leg in [leg for leg in self._legs if leg.late(now)]:
            leg.fail("timeout")
        oldest = now - self._keepalive_s
        for origin, idle in list(self._idle.items()):
            while idle and idle[0].idle_since <= oldest:
                connection = idle.popleft()
                connection.kept = False
                connection.drop()
            if not idle:
                del self._idle[origin]
        self._sweeper = None
        if self._legs or self._idle:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)


def _head(origin: Origin, method: str, path: str, payload: bytes, headers: Mapping[str, str] | None) -> bytes:
    head = origin.head(method, path)
    if headers:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
            raise ValueError("a header's value holds a line break")
        head += lines.encode("latin-1", "replace")
    if method == "GET":
        return head + b"\r\n"
    return b"%bContent-Length: %d\r\n\r\n" % (head, len(payload))
