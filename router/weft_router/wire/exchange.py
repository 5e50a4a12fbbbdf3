"""One request and its answer: what a handler reads, and how it replies, at once or as a stream."""

from collections.abc import Mapping
from http import HTTPStatus
from time import monotonic
from typing import Protocol

from weft_router.wire.request import Request

_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Source(Protocol):
    """Where a streamed answer comes from: told to wait while the client does not read."""

    def pause(self) -> None:
        """Deliver nothing more for now."""

    def resume(self) -> None:
        """Deliver again."""


class Outgoing(Protocol):
    """The connection an answer goes to."""

    closing: bool
    """Whether the connection ends with this answer."""

    def put(self, *parts: bytes) -> None:
        """Write bytes."""

    def finished(self, *, keep: bool) -> None:
        """The answer is whole: serve the next request, or close."""

    def abort(self) -> None:
        """Close at once, dropping what was not sent."""


class Exchange:
    """A request under way; ``facts`` collects what the access line says of it."""

    __slots__ = (
        "_connection", "_framed", "_keep", "body", "ended", "facts", "gone", "headers", "method", "path", "query",
        "source", "stalled", "started", "status",
    )  # fmt: skip

    def __init__(self, connection: Outgoing, request: Request) -> None:
        self._connection = connection
        self._keep = request.keep_alive
        self._framed = not request.http10
        self.method = request.method
        self.path = request.path
        self.query = request.query
        self.headers = request.headers
        self.body = request.body
        self.facts: dict[str, object] = {}
        self.started = monotonic()
        self.status = 0
        """The status sent; 0 while nothing was."""
        self.ended = False
        self.gone = False
        """Whether the client went away."""
        self.stalled = False
        """Whether it was cut off because it did not read."""
        self.source: Source | None = None

    @property
    def begun(self) -> bool:
        """Tell whether anything was sent."""
        return self.status != 0

    def reply(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer in one piece."""
        self.status = status
        head = self._head(status, content_type, headers, b"Content-Length: %d\r\n" % len(body))
        if self.method == "HEAD":
            self._connection.put(head)
        else:
            self._connection.put(head, body)
        self._finish()

    def begin(self, status: int, *, content_type: str, headers: Mapping[str, str] | None = None) -> None:
        """Begin an answer that comes in pieces."""
        self.status = status
        framing = b"Transfer-Encoding: chunked\r\n" if self._framed else b""
        self._keep = self._keep and self._framed
        self._connection.put(self._head(status, content_type, headers, framing))

    def write(self, data: bytes) -> None:
        """Send a piece of a begun answer; the source is told when the client does not keep up."""
        if self._framed:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._connection.put(data)

    def end(self) -> None:
        """End a begun answer."""
        if self._framed:
            self._connection.put(b"0\r\n\r\n")
        self._finish()

    def abort(self) -> None:
        """Cut the client off: it does not read what it asked for, or the answer cannot be ended properly."""
        self.ended = True
        self._connection.abort()

    def _finish(self) -> None:
        self.ended = True
        self.source = None
        self._connection.finished(keep=self._keep)

    def _head(self, status: int, content_type: str, headers: Mapping[str, str] | None, framing: bytes) -> bytes:
        keep = self._keep and (self._framed or b"Length" in framing) and not self._connection.closing
        self._keep = keep
        lines = "" if not headers else "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if headers and lines.count("\n") != len(headers):
            raise ValueError("a header's value holds a line break")
        ending = b"\r\n" if keep and self._framed else b"Connection: keep-alive\r\n\r\n" if keep else _CLOSE
        kind = (
            f"Server: weft\r\nContent-Type: {content_type}\r\n{lines}" if content_type else f"Server: weft\r\n{lines}"
        )
        return b"".join((_LINES[status], kind.encode("latin-1", "replace"), framing, ending))


_CLOSE = b"Connection: close\r\n\r\n"
