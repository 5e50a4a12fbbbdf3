"""One request and its answer: what a handler reads, and how it replies, at once or as a stream."""

from abc import ABC, abstractmethod
from http import HTTPStatus
from time import monotonic
from typing import Final, Protocol

from weft_router.errors import no_room
from weft_router.http.head import Peer, Request
from weft_router.http.header_lines import checked, encoded, header_lines
from weft_router.http.whole_chunks import chunk_of

_JOINED: Final = 16 * 2**10
"""Up to here a head and a body are joined for one write; beyond it copying costs more than a vectored write."""
_REMEMBERED: Final = 256
_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\nServer: weft\r\n" for status in HTTPStatus}
_starts: Final[dict[str, dict[int, bytes]]] = {}
"""The first lines of answers, by content type and status."""
_LAST: Final = b"0\r\n\r\n"
"""The last chunk of a body that comes in chunks."""
_END: Final = b"\r\n"
_KEEP: Final = b"Connection: keep-alive\r\n\r\n"
_CLOSE: Final = b"Connection: close\r\n\r\n"


class PausableSource(Protocol):
    """Where a streamed answer comes from: told to wait while the client does not read."""

    def pause(self) -> None:
        """Deliver nothing more for now."""

    def resume(self) -> None:
        """Deliver again."""


class ClientTransport(ABC):
    """The connection an answer goes to; a base and no protocol, whose methods compiled code would have to look up."""

    __slots__ = ("closing", "full", "peer")

    closing: bool
    """Whether the connection ends with this answer."""
    full: bool
    """Whether the client does not keep up."""
    peer: Peer
    """Who the client is, as far as that is proved."""

    @abstractmethod
    def sockname(self) -> object:
        """Return the address at which the client reached this process, as a socket tells it."""

    @abstractmethod
    def put(self, data: bytes) -> None:
        """Write bytes."""

    @abstractmethod
    def put_two(self, first: bytes, second: bytes) -> None:
        """Write bytes that are too many to be joined."""

    @abstractmethod
    def flush_soon(self) -> None:
        """Have the exchange flushed once the callback under way is over."""

    @abstractmethod
    def switch(self) -> None:
        """Carry streams from now on."""

    @abstractmethod
    def finished(self, *, keep: bool) -> None:
        """The answer is whole: serve the next request, or close."""

    @abstractmethod
    def abort(self) -> None:
        """Close at once, dropping what was not sent."""

    @abstractmethod
    def hold(self, size: int) -> bool:
        """Reserve bytes for the current request until it ends; False where the budget has no room."""

    @abstractmethod
    def release(self) -> None:
        """Count nothing any more for the request under way: nothing is kept of it."""

    @abstractmethod
    def shed(self) -> None:
        """Discard the unfinished request and free its memory, because others need it."""


class Exchange:
    """A request under way; ``facts`` collects what the access line says of it."""

    __slots__ = (
        "_connection",
        "_framed",
        "_held",
        "_keep",
        "_source",
        "admitted",
        "also",
        "body",
        "credential_cache",
        "ended",
        "facts",
        "gone",
        "headers",
        "method",
        "path",
        "query",
        "stalled",
        "started",
        "status",
        "stays",
    )  # fmt: skip

    def __init__(self, connection: ClientTransport, request: Request) -> None:
        self._connection = connection
        self._keep = request.keep_alive
        self._framed = not request.http10
        self._held = b""
        self._source: PausableSource | None = None
        self.method = request.method
        self.path = request.path
        self.query = request.query
        self.headers = request.headers
        self.body = request.body
        self.credential_cache = request.credential_cache
        self.admitted: object = None
        """Whom the server let in: what its application made of the headers."""
        self.also = b""
        """Header lines of whatever is answered, in addition."""
        self.facts: dict[str, object] = {}
        self.started = monotonic()
        self.status = 0
        """The status sent; 0 while nothing was."""
        self.ended = False
        self.gone = False
        """Whether the client went away."""
        self.stalled = False
        """Whether it was cut off because it did not read."""
        self.stays = False
        """Whether its answer leaves open also a connection that is to end with its next answer."""

    @property
    def headers_sent(self) -> bool:
        """Return whether anything was sent."""
        return self.status != 0

    @property
    def peer(self) -> Peer:
        """Return who the client is, as far as that is proved."""
        return self._connection.peer

    def sockname(self) -> object:
        """Return the address at which the client reached this process, as a socket tells it; None where it is lost."""
        return self._connection.sockname()

    @property
    def source(self) -> PausableSource | None:
        """Return the source that is paused while the client does not read."""
        return self._source

    @source.setter
    def source(self, source: PausableSource | None) -> None:
        self._source = source
        if source is not None and self._connection.full:
            source.pause()

    def reply(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
        lines: str = "",
    ) -> None:
        """Send a whole response, with ``headers`` or with ``lines`` from ``header_lines``.

        Raises:
            RuntimeError: an answer has started.
        """
        if headers is not None:
            lines = header_lines(headers)
        first, last = self._head(status, content_type)
        fields, size = encoded(lines), len(body)
        length = str(size).encode("ascii")
        if self.ended:
            return
        if status == 204:  # which has no length (RFC 9110)
            self._connection.put(b"%b%b%b" % (first, fields, last))
        elif size <= _JOINED and self.method != "HEAD":
            self._connection.put(b"%b%bContent-Length: %b\r\n%b%b" % (first, fields, length, last, body))
        else:
            head = b"%b%bContent-Length: %b\r\n%b" % (first, fields, length, last)
            if self.method == "HEAD":
                self._connection.put(head)
            else:
                self._connection.put_two(head, body)
        self._finish()

    def begin(self, status: int, *, content_type: str, headers: dict[str, str] | None = None, lines: str = "") -> None:
        """Begin a streamed response; its head is sent with the first piece, or soon after.

        Its headers are given as to ``reply``.

        Raises:
            RuntimeError: an answer has started.
        """
        framed = self._framed = self._framed and self.method != "HEAD"
        if not framed:
            self._keep = False
        framing = "Transfer-Encoding: chunked\r\n" if framed else ""
        if headers is not None:
            lines = header_lines(headers)
        first, last = self._head(status, content_type)
        if not self.ended:
            self._held = b"%b%b%b" % (first, encoded(f"{lines}{framing}"), last)
            self._connection.flush_soon()

    def write(self, data: bytes) -> None:
        """Send a part of a response; the source is paused when the client does not keep up."""
        if self.ended or not data or self.method == "HEAD":
            return
        if self._framed:
            data = chunk_of(data)
        if self._held:
            data = self._held + data
            self._held = b""
        self._connection.put(data)

    def end(self, data: bytes = b"") -> None:
        """End a streamed answer, with a last piece, if given."""
        if self.ended:
            return
        if self.method == "HEAD":
            data = b""
        elif self._framed:
            data = chunk_of(data) + _LAST if data else _LAST
        if self._held:
            data = self._held + data
            self._held = b""
        if data:
            self._connection.put(data)
        self._finish()

    def switch(self) -> None:
        """Switch the connection from requests to a link of streams (RFC 9110, section 7.8).

        Raises:
            RuntimeError: an answer has started.
        """
        if self.status:
            raise RuntimeError(f"{self.path}: answered twice, with {self.status} and 101")
        self.status = 101
        self.ended = True
        self._connection.switch()

    def hold(self, size: int) -> None:
        """Reserve bytes, besides those of the body, until the exchange ends.

        Raises:
            UnavailableError: there is no room for them now.
        """
        if not self._connection.hold(size):
            raise no_room()

    def let_go(self) -> None:
        """Keep nothing of what the client sent: it is read, and the answer may take long."""
        self.body = b""
        self.headers = {}

    def forget(self) -> None:
        """Discard it as ``let_go`` does, and stop counting its memory: no other object refers to it."""
        self.let_go()
        self._connection.release()

    def flush(self) -> None:
        """Send the head of an answer that nothing was written of yet."""
        if self._held and not self.ended:
            self._connection.put(self._held)
            self._held = b""

    def abort(self) -> None:
        """Abort the connection: the client does not read, or the response cannot be ended properly."""
        if not self.ended:
            self.ended = True
            self._source = None
            self._connection.abort()

    def _finish(self) -> None:
        self.ended = True
        self._source = None
        self._connection.finished(keep=self._keep)

    def _head(self, status: int, content_type: str) -> tuple[bytes, bytes]:
        """Begin the answer; return what its head begins with, and what it ends with."""
        if self.status:
            raise RuntimeError(f"{self.path}: answered twice, with {self.status} and {status}")
        known = _starts.get(content_type)
        start = known.get(status) if known is not None else None
        if start is None:
            start = _start(status, content_type)
        self.status = status
        if self.also:
            start += self.also
        keep = self._keep = self._keep and (self.stays or not self._connection.closing)
        return start, _END if keep and self._framed else _KEEP if keep else _CLOSE


def _start(status: int, content_type: str) -> bytes:
    line = _LINES.get(status)
    if line is None:
        if not 100 <= status <= 999:
            raise ValueError(f"{status} is no HTTP status")
        line = (
            f"HTTP/1.1 {status} \r\nServer: weft\r\n"  # such as an engine's 499 or 529: no phrase, as RFC 9112 allows
        )
    start = encoded(f"{line}Content-Type: {checked(content_type)}\r\n" if content_type else line)
    if len(_starts) >= _REMEMBERED:
        _starts.clear()
    _starts.setdefault(content_type, {})[status] = start
    return start
