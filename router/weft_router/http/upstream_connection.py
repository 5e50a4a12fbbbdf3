"""One connection to an engine or another router process: one request at a time, responses passed on as they arrive."""

import asyncio
from abc import abstractmethod
from typing import Final, cast
from urllib.parse import urlsplit

from weft_core.authority import authority
from weft_router.http.header_lines import encoded
from weft_router.http.link import Link
from weft_router.http.response import BadResponseError, ResponseHandler, ResponseReader
from weft_router.http.upstream_request import RequestSender, UpstreamRequest
from weft_router.http.whole_response import WholeResponseReader
from weft_router.http.write_batch import write_batch_of

_JOINED: Final = 16 * 2**10
"""Up to here a head and a body are joined for one write; beyond it copying costs more than a vectored write."""
_REMEMBERED: Final = 64


class Origin:
    """An address requests go to; made once for each worker, not for each request."""

    __slots__ = (
        "_starts", "authority", "dial_at", "host", "idle", "link", "plain", "port", "prefix", "redial_s", "tell_at",
        "tls", "url",
    )  # fmt: skip

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url}: give a URL such as http://10.0.0.7:8000")
        self.url = url
        self.host = parts.hostname
        self.tls = parts.scheme == "https"
        self.port = parts.port or (443 if self.tls else 80)
        self.authority = authority(self.host, self.port)
        self.prefix = parts.path.rstrip("/")
        self.idle: list[UpstreamConnection] = []
        """Its connections that wait for a request, the one that was used last at the end."""
        self.plain = WholeResponseReader()
        self.link: Link | None = None
        """What carries connections to it, if it lets anything."""
        self.dial_at = 0.0
        """From when on another link may be tried."""
        self.tell_at = 0.0
        """When the next log line about an unproven peer at this address is due."""
        self.redial_s = 0.0
        """How long after the next try that is, at least."""
        self._starts: dict[str, bytes] = {}

    def request(
        self, method: str, path: str, payload: bytes = b"", lines: str = "", tail: bytes = b""
    ) -> tuple[bytes, bytes]:
        """Return a request's bytes in one or two parts; a short body is joined to the head.

        It has these ``lines`` of headers, as header_lines writes them. The body ends with ``tail``, which is the second
        part, uncopied, where it is long.

        Raises:
            ValueError: the path has spaces, line breaks or characters beyond ASCII.
        """
        start = self._starts.get(path) if method == "POST" else None
        if start is None:
            start = self._start(method, path)
        if method == "GET":
            return b"%b%b\r\n" % (start, encoded(lines)), b""
        size = len(payload) + len(tail)
        fields, length = encoded(lines), str(size).encode("ascii")
        if size <= _JOINED:
            return b"%b%bContent-Length: %b\r\n\r\n%b%b" % (start, fields, length, payload, tail), b""
        head = b"%b%bContent-Length: %b\r\n\r\n" % (start, fields, length)
        return (head + payload, tail) if tail else (head, payload)

    def _start(self, method: str, path: str) -> bytes:
        lines = f"{method} {self.prefix}{path} HTTP/1.1\r\nHost: {self.authority}\r\n"
        if method == "POST":
            lines += "Content-Type: application/json\r\n"
        if not lines.isascii() or lines.count("\n") != lines.count("\r\n") or lines.split("\r\n", 1)[0].count(" ") != 2:
            raise ValueError(f"{path!r}: must be a path without spaces or line breaks")
        start = lines.encode("ascii")
        if method == "POST" and len(self._starts) < _REMEMBERED:
            self._starts[path] = start
        return start


class UpstreamConnectionOwner(RequestSender):
    """Who sends requests, and keeps connections between them."""

    @abstractmethod
    def give_back(self, connection: "UpstreamConnection") -> None:
        """Keep a connection for the next request."""

    @abstractmethod
    def closed(self, connection: "UpstreamConnection") -> None:
        """Forget a kept connection that its server closed."""


class UpstreamConnection:
    """One connection to an origin: an ``asyncio.Protocol`` by its methods, not by its base, which is not compiled."""

    __slots__ = ("_pool", "_reader", "_request", "_transport", "_write_batch", "idle_since", "kept", "linked", "origin")

    def __init__(self, pool: UpstreamConnectionOwner, origin: Origin, *, linked: bool = False) -> None:
        self._pool = pool
        self.origin = origin
        self._reader = ResponseReader(origin.plain)
        self._transport: asyncio.Transport | None = None
        self._request: UpstreamRequest | None = None
        self.idle_since = 0.0
        self.kept = False
        """Whether it waits for its next request."""
        self.linked = linked
        """Whether it is a stream of a link."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._write_batch = write_batch_of(asyncio.get_running_loop())

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def eof_received(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        request, self._request = self._request, None
        if request is not None:
            if exc is None and self._reader.eof():
                request.finish()
            else:
                request.fail("cut-short" if request.answered else "disconnected", str(exc or ""))
        if self.kept:
            self._pool.closed(self)
        self._reader.close()

    def data_received(self, data: bytes) -> None:
        request = self._request
        if request is None:
            self.drop()  # nobody asked
            return
        request.answered = request.fresh = True
        reader = self._reader
        try:
            reader.feed(data)
        except BadResponseError as wrong:
            request.fail("protocol", str(wrong))
            return
        except Exception as error:  # noqa: BLE001 - whatever a taker says of the answer ends this request and no other
            request.fail(getattr(error, "reason", "engine-error"), repr(error))
            return
        if reader.complete and self._request is request:
            self._answered(request)

    def send(self, request: UpstreamRequest, taker: ResponseHandler, head: bytes, payload: bytes) -> None:
        """Begin a request, given as Origin.request returns it."""
        transport = self._transport
        if transport is None:
            request.fail("disconnected")
            return
        self._request = request
        self._reader.expect(taker)
        request.attach(self)
        self._write_batch.put(transport, head, payload)

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
        self._request = None
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    @property
    def usable(self) -> bool:
        """Return whether it is connected."""
        return self._transport is not None and not self._transport.is_closing()

    def _answered(self, request: UpstreamRequest) -> None:
        """Finish the request; keep the connection if it has no unread bytes."""
        self._request = None
        reader = self._reader
        reader.taker = None  # which holds the answer
        transport = self._transport
        if reader.keeps and transport is not None and not transport.get_write_buffer_size():
            if request.paused:
                transport.resume_reading()
            self._pool.give_back(self)
        else:
            self.drop()
        request.finish()
