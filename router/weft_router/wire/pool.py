"""Keep connections to engines and router processes and send requests over them: bounded waits, no client's headers.

A connection serves one request at a time. One that its server closed while it was idle shows when it is used; a
request that may be sent twice is then sent once more over a new one.
"""

import asyncio
import ssl
from collections import defaultdict, deque
from collections.abc import Mapping
from time import monotonic
from typing import cast
from urllib.parse import urlsplit

from weft_router.errors import LegFailedError
from weft_router.wire.leg import Leg, Whole
from weft_router.wire.response import BadResponseError, ResponseReader, Taker

RESEND_WITHIN_S = 0.25
"""A connection that was closed while idle fails at once; what fails later had begun to work."""
SWEEP_S = 0.1
_SMALL = 16 * 2**10
BUFFERED = 256 * 2**10
MAX_IDLE = 1024
"""Idle connections kept to one origin."""


class Origin:
    """An address requests go to; made once for each worker, not for each request."""

    __slots__ = ("_heads", "host", "port", "prefix", "tls", "url")

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url}: give a URL such as http://10.0.0.7:8000")
        self.url = url
        self.host = parts.hostname
        self.tls = parts.scheme == "https"
        self.port = parts.port or (443 if self.tls else 80)
        self.prefix = parts.path.rstrip("/")
        self._heads: dict[str, bytes] = {}

    def head(self, method: str, path: str) -> bytes:
        """Return the first lines of a request."""
        found = self._heads.get(path) if method == "POST" else None
        if found is None:
            host = f"[{self.host}]" if ":" in self.host else self.host
            lines = f"{method} {self.prefix}{path} HTTP/1.1\r\nHost: {host}:{self.port}\r\n"
            found = lines.encode("ascii")
            if method == "POST" and len(self._heads) < 64:
                self._heads[path] = found
        return found


class Upstream(asyncio.Protocol):
    """One connection to an origin."""

    def __init__(self, pool: "Pool", origin: Origin) -> None:
        self._pool = pool
        self.origin = origin
        self._reader = ResponseReader()
        self._transport: asyncio.Transport | None = None
        self._leg: Leg | None = None
        self.idle_since = 0.0
        self.used = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        leg, self._leg = self._leg, None
        if leg is None:
            self._pool.lost(self)
            return
        if self._reader.eof():
            leg.finish()
        else:
            leg.fail("cut-short" if leg.answered else "disconnected", str(exc or ""))

    def data_received(self, data: bytes) -> None:
        leg = self._leg
        if leg is None:
            self.drop()  # nobody asked
            return
        leg.answered = True
        leg.extend(monotonic())
        reader = self._reader
        try:
            reader.feed(data)
        except BadResponseError as error:
            leg.fail("protocol", str(error))
            return
        except Exception as error:  # noqa: BLE001 - whatever a taker says of the answer ends this leg and no other
            leg.fail(getattr(error, "reason", "engine-error"), repr(error))
            return
        if reader.complete and self._leg is leg:
            self._leg = None
            if leg.paused:
                self.resume()
            if reader.keep_alive:
                self._pool.give_back(self)
            else:
                self.drop()
            leg.finish()

    def send(self, leg: Leg, taker: Taker, head: bytes, payload: bytes) -> None:
        """Begin a request."""
        transport = self._transport
        if transport is None:
            raise LegFailedError("disconnected")
        self._leg = leg
        self._reader.expect(taker)
        leg.attach(self)
        if len(payload) <= _SMALL:
            transport.write(head + payload)
        else:
            transport.writelines((head, payload))

    def pause(self) -> None:
        """Stop reading."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def drop(self) -> None:
        """Close at once."""
        self._leg = None
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    @property
    def usable(self) -> bool:
        """Tell whether it is connected."""
        return self._transport is not None and not self._transport.is_closing()


class Pool:
    """Connections to any number of origins."""

    def __init__(self, *, connect_s: float, keepalive_s: float) -> None:
        self._connect_s = connect_s
        self._keepalive_s = keepalive_s
        self._idle: defaultdict[Origin, deque[Upstream]] = defaultdict(deque)
        self._legs: dict[Leg, Origin] = {}
        self._origins: dict[str, Origin] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    def origin(self, url: str) -> Origin:
        """Return the origin of a URL, the same object each time."""
        found = self._origins.get(url)
        if found is None:
            if len(self._origins) > 10_000:
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
        if self._sweeper is None:
            self._sweep()
        self._legs[leg] = origin
        started = monotonic()
        try:
            while True:
                connection = self._take(origin)
                fresh = connection is None
                if connection is None:
                    connection = await self._connect(origin, leg)
                    if leg.lost:
                        connection.drop()
                        raise LegFailedError(leg.lost)
                connection.send(leg, taker, head, payload)
                try:
                    await leg.done
                except LegFailedError as error:
                    stale = not fresh and error.reason == "disconnected" and not leg.answered
                    if not stale or not resend or monotonic() - started > RESEND_WITHIN_S:
                        raise
                    leg.lost = ""
                    leg.done = asyncio.get_running_loop().create_future()
                else:
                    return
        except asyncio.CancelledError:
            leg.done.cancel()
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
                connection.drop()
        self._idle.clear()
        await asyncio.sleep(0)

    def give_back(self, connection: Upstream) -> None:
        """Keep a connection for the next request."""
        idle = self._idle[connection.origin]
        if self._closed or len(idle) >= MAX_IDLE:
            connection.drop()
            return
        connection.idle_since = monotonic()
        idle.append(connection)

    def lost(self, connection: Upstream) -> None:
        """Forget an idle connection that its server closed."""
        idle = self._idle.get(connection.origin)
        if idle is not None and connection in idle:
            idle.remove(connection)

    def _take(self, origin: Origin) -> Upstream | None:
        idle = self._idle.get(origin)
        oldest = monotonic() - self._keepalive_s
        while idle:
            connection = idle.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.drop()
        return None

    async def _connect(self, origin: Origin, leg: Leg) -> Upstream:
        loop = asyncio.get_running_loop()
        context = self._context() if origin.tls else None
        try:
            async with asyncio.timeout(min(self._connect_s, max(0.0, leg.until - monotonic()))):
                _, connection = await loop.create_connection(
                    lambda: Upstream(self, origin), origin.host, origin.port, ssl=context
                )
        except (OSError, TimeoutError) as error:
            raise LegFailedError("connect", str(error)) from error
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _sweep(self) -> None:
        """End the legs whose time is over, and the connections that were idle for too long."""
        now = monotonic()
        for leg in [leg for leg in self._legs if leg.until < now and not leg.paused]:
            leg.fail("timeout")
        oldest = now - self._keepalive_s
        for idle in self._idle.values():
            while idle and idle[0].idle_since <= oldest:
                idle.popleft().drop()
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)


def _head(origin: Origin, method: str, path: str, payload: bytes, headers: Mapping[str, str] | None) -> bytes:
    first = origin.head(method, path)
    more = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]) if headers else ""
    if more.count("\n") != len(headers or ()):
        raise ValueError("a header's value holds a line break")
    if method == "GET":
        return b"%b%b\r\n" % (first, more.encode("latin-1", "replace"))
    return b"%b%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
        first, more.encode("latin-1", "replace"), len(payload),
    )  # fmt: skip
