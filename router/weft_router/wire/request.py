"""Read HTTP/1.1 requests from bytes as they come: heads, bodies, and one request after the other."""

from weft_router.wire.chunks import ChunkDecoder
from weft_router.wire.head import CHUNKED, FramingError, Gate, Request, bad, read_head
from weft_router.wire.limits import WireLimits

__all__ = ["FramingError", "Gate", "Request", "RequestReader"]


class RequestReader:
    """Requests of one connection, as their bytes come."""

    __slots__ = ("_body", "_chunks", "_gate", "_head", "_left", "_limits", "_request", "ended", "failure",
                 "wants_continue")  # fmt: skip

    def __init__(self, limits: WireLimits, *, gate: Gate | None = None) -> None:
        self._limits = limits
        self._gate = gate
        self._head: bytearray | None = None
        """The head so far, when it did not come in one piece."""
        self._request: Request | None = None
        self._body: bytearray | None = None
        self._left = 0
        self._chunks: ChunkDecoder | None = None
        self.failure: FramingError | None = None
        """Why what came after the requests returned so far cannot be read."""
        self.ended = False
        """Whether a request said that it is the connection's last; what follows it is dropped."""
        self.wants_continue = False
        """Set when a client waits for a word before it sends its body; the connection says it and clears this."""

    @property
    def idle(self) -> bool:
        """Tell whether no request has begun that is not whole yet."""
        return self._request is None and self._head is None

    @property
    def in_body(self) -> bool:
        """Tell whether a head was read whose body is not whole yet."""
        return self._request is not None

    @property
    def received(self) -> int:
        """Return the bytes of the body so far."""
        if self._chunks is not None:
            return len(self._chunks.body)
        return len(self._body) if self._body is not None else 0

    def feed(self, data: bytes) -> list[Request]:
        """Take bytes; return the requests they complete.

        Raises:
            FramingError: the bytes cannot be accepted; nothing more can be read from this connection.
        """
        if self.failure is not None:
            raise self.failure
        done: list[Request] = []
        try:
            while data and not self.ended:
                data = self._body_bytes(data, done) if self._request is not None else self._head_bytes(data, done)
        except FramingError as error:
            self.failure = error
            self._head = self._body = self._chunks = self._request = None
            if not done:
                raise
        return done

    def _head_bytes(self, data: bytes, done: list[Request]) -> bytes:
        """Take bytes of a head; return what is left of them."""
        if self._head is None:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._partial(data, 0)
                return b""
        else:
            known = len(self._head)
            self._head += data
            end = self._head.find(b"\r\n\r\n", max(0, known - 3))
            if end < 0:
                self._partial(self._head, known)
                return b""
            data = bytes(self._head)
            self._head = None
        # One empty line before a request is let pass: some clients send one after a body (RFC 9112, section 2.2).
        start = 2 if data.startswith(b"\r\n") else 0
        if end < start:
            raise bad("the request begins with empty lines")
        request, length = read_head(data[start:end], self._limits)
        if self._gate is not None and (refused := self._gate(request)) is not None:
            raise FramingError(refused)
        end += 4
        if len(data) - end >= length >= 0:  # the usual case: the whole request came at once
            end += length
            request.body = data[end - length : end]
            done.append(request)
            self.ended = not request.keep_alive
            return data[end:] if end < len(data) else b""
        if length == CHUNKED:
            self._chunks = ChunkDecoder(self._limits.max_body)
        else:
            self._body = bytearray()
            self._left = length
        self._request = request
        self.wants_continue = "expect" in request.headers and not request.http10
        return data[end:]

    def _partial(self, head: bytes | bytearray, known: int) -> None:
        """Keep a head that is not whole, unless nothing can become of it; ``known`` bytes of it were looked at."""
        limits = self._limits
        since = max(0, known - 1)
        breaks = head.count(b"\r\n", since)
        if head.count(b"\n", known) != breaks or head.count(b"\r", since) != breaks + head.endswith(b"\r"):
            raise bad("the request has a line that does not end with CR LF")
        if not known and not 0x41 <= head[0] <= 0x5A and head[0] != 0x0D:
            raise bad("the request does not begin with a method")
        if len(head) > limits.max_line + 4 and head.find(b"\r\n", 2, limits.max_line + 4) < 0:
            raise bad(f"the request line exceeds {limits.max_line} bytes; send a shorter one", 414)
        if len(head) > limits.max_head + 4:
            raise bad(f"the request's headers exceed {limits.max_head} bytes; send less", 431)
        if self._head is None:
            self._head = bytearray(head)

    def _body_bytes(self, data: bytes, done: list[Request]) -> bytes:
        """Take bytes of a body; return what is left of them."""
        request = self._request
        if request is None:
            return data
        if self._chunks is not None:
            rest = self._chunks.feed(data)
            if not self._chunks.done:
                return b""
            request.body = bytes(self._chunks.body)
            self._chunks = None
        elif self._body is not None:
            part = data if len(data) <= self._left else data[: self._left]
            self._body += part
            self._left -= len(part)
            if self._left:
                return b""
            rest = data[len(part) :]
            request.body = bytes(self._body)
            self._body = None
        else:
            return data
        self._request = None
        self.wants_continue = False
        self.ended = not request.keep_alive
        done.append(request)
        return rest
