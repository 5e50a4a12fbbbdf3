"""Read HTTP/1.1 requests from bytes as they come: heads, bodies, and one request after the other."""

from weft_router.http.chunks import ChunkDecoder
from weft_router.http.head import CHUNKED, FramingError, Gate, Peer, Request, bad_request
from weft_router.http.head_cache import HeadReader
from weft_router.http.limits import HttpLimits

__all__ = ["FramingError", "Gate", "Request", "RequestReader"]


_PIECE = 4096
"""Pieces of a body from this size on are not copied before the last one came."""


class RequestReader:
    """Requests of one connection, as their bytes come."""

    __slots__ = (
        "_body", "_chunks", "_gate", "_head", "_heads", "_left", "_limits", "_peer", "_received", "_request",
        "_ungated", "ended", "failure", "wants_continue",
    )  # fmt: skip

    def __init__(self, limits: HttpLimits, *, gate: Gate | None = None, peer: Peer | None = None) -> None:
        """``gate`` is called with the ``peer``."""
        self._limits = limits
        self._peer = Peer() if peer is None else peer
        self._gate = gate
        self._ungated = limits.ungated
        self._heads = HeadReader()
        self._head: bytearray | None = None
        """The head so far, when it did not come in one piece."""
        self._request: Request | None = None
        self._body: list[memoryview | bytearray] | None = None
        """The body so far, as it came, if it came with a length."""
        self._left = 0
        self._received = 0
        self._chunks: ChunkDecoder | None = None
        self.failure: FramingError | None = None
        """Why what came after the requests returned so far cannot be read."""
        self.ended = False
        """Whether a request said that it is the connection's last; what follows it is dropped."""
        self.wants_continue = False
        """Set when a client waits for a word before it sends its body; the connection says it and clears this."""

    @property
    def idle(self) -> bool:
        """Return whether no request is partly received."""
        return self._request is None and self._head is None

    @property
    def in_body(self) -> bool:
        """Return whether a head was read whose body is not whole yet."""
        return self._request is not None

    @property
    def kept(self) -> int:
        """Return the bytes that are kept of the request that is not whole yet."""
        if self._head is not None:
            return len(self._head)
        request = self._request
        return request.head + self.received if request is not None and request.refusal is None else 0

    @property
    def received(self) -> int:
        """Return the bytes of the body so far."""
        if self._chunks is not None:
            return len(self._chunks.body)
        return self._received if self._body is not None else 0

    def feed(self, data: bytes) -> list[Request]:
        """Take bytes; return the requests they complete.

        Raises:
            FramingError: the bytes are invalid; nothing more can be read from this connection.
        """
        if self.failure is not None:
            raise self.failure
        done: list[Request] = []
        try:
            if self._head is not None:
                data = self._joined(self._head, data)
            at, end = 0, len(data)
            while at < end and not self.ended:
                at = self._body_bytes(data, at, done) if self._request is not None else self._head_bytes(data, at, done)
        except FramingError as error:
            self.failure = error
            self._head = self._body = self._chunks = self._request = None
            if not done:
                raise
        return done

    def drop(self) -> None:
        """Discard an incomplete request; ``feed`` must not be called any more."""
        self._head = self._body = self._chunks = self._request = None

    def _joined(self, head: bytearray, data: bytes) -> bytes:
        """Return the bytes of a complete head and what follows it; nothing while it is incomplete."""
        known = len(head)
        head += data
        if head.find(b"\r\n\r\n", max(0, known - 3)) < 0:
            self._partial(head, known)
            return b""
        self._head = None
        return bytes(head)

    def _head_bytes(self, data: bytes, at: int, done: list[Request]) -> int:
        """Take bytes of a head; return where those begin that are left."""
        start = at
        known = self._heads.read_like_previous(data, at, self._limits)
        if known is not None:
            request, length, end = known
        else:
            end = data.find(b"\r\n\r\n", at)
            if end < 0:
                self._partial(data[at:], 0)
                return len(data)
            # One empty line before a request is let pass: some clients send one after a body (RFC 9112, section 2.2).
            if data.startswith(b"\r\n", at):
                at += 2
                if end < at:
                    raise bad_request("the request begins with empty lines")
            request, length = self._heads.read(data[at:end], self._limits)
            end += 4
        request.head = end - start
        whole = len(data) - end >= length >= 0
        short = 0 <= length <= self._ungated
        # What came whole and is short is as soon served as looked at; nobody's bytes are kept before he is known.
        if not (whole and short) and self._gate is not None and (error := self._gate(request, self._peer)) is not None:
            if not short or "expect" in request.headers:
                raise FramingError(error)
            request.refusal = error
            request.headers = {}
        if whole:  # the usual case: the whole request came at once
            request.body = data[end : end + length]
            done.append(request)
            self.ended = not request.keep_alive
            return end + length
        if length == CHUNKED:
            self._chunks = ChunkDecoder(self._limits.max_body)
        else:
            self._body = []
            self._left = length
            self._received = 0
        self._request = request
        self.wants_continue = "expect" in request.headers and not request.http10
        return end

    def _partial(self, head: bytes | bytearray, known: int) -> None:
        """Keep an incomplete head unless it is already invalid; ``known`` bytes of it were checked before."""
        limits = self._limits
        since = max(0, known - 1)
        breaks = head.count(b"\r\n", since)
        if head.count(b"\n", known) != breaks or head.count(b"\r", since) != breaks + head.endswith(b"\r"):
            raise bad_request("the request has a line that does not end with CR LF")
        if not known and not 0x41 <= head[0] <= 0x5A and head[0] != 0x0D:
            raise bad_request("the request does not begin with a method")
        if len(head) > limits.max_line + 4 and head.find(b"\r\n", 2, limits.max_line + 4) < 0:
            raise bad_request(f"the request line exceeds {limits.max_line} bytes; send a shorter one", 414)
        if len(head) > limits.max_head + 4:
            raise bad_request(f"the request's headers exceed {limits.max_head} bytes; send less", 431)
        if self._head is None:
            self._head = bytearray(head)

    def _body_bytes(self, data: bytes, at: int, done: list[Request]) -> int:
        """Take bytes of a body; return where those begin that are left."""
        request = self._request
        if request is None:
            return at
        if self._chunks is not None:
            rest = self._chunks.feed(data[at:])
            if not self._chunks.done:
                return len(data)
            request.body = bytes(self._chunks.body)
            self._chunks = None
            at = len(data) - len(rest)
        elif self._body is not None:
            end = min(len(data), at + self._left)
            size = end - at
            if request.refusal is not None:
                pass
            elif size >= _PIECE:
                self._body.append(memoryview(data)[at:end])
            elif self._body and isinstance(last := self._body[-1], bytearray):
                last += data[at:end]  # or a client that sends byte by byte would take fifty times its body's room
            else:
                self._body.append(bytearray(data[at:end]))
            self._left -= size
            self._received += size
            at = end
            if self._left:
                return at
            request.body = b"".join(self._body)
            self._body = None
        self._request = None
        self.wants_continue = False
        self.ended = not request.keep_alive
        done.append(request)
        return at
