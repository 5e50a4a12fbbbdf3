"""Read HTTP/1.1 requests from bytes, strictly: what two parsers could read in two ways is refused.

llhttp does the framing in its strict form; this adds bounds on lines, headers and bodies, and refuses what it lets
pass but nobody needs: repeated singletons, absolute targets, codings other than ``chunked``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import httptools

from weft_router.errors import ApiError, TooLargeError

MAX_LINE = 8 * 2**10
MAX_HEAD = 32 * 2**10
MAX_HEADERS = 100
SINGLETONS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "authorization", "x-session-id", "x-weft-token"}
)
"""Headers that may come once: two of them would let two readers choose differently."""
_KNOWN = {
    name.encode(): name.lower()
    for known in (
        "Host", "User-Agent", "Accept", "Accept-Encoding", "Connection", "Content-Type", "Content-Length",
        "Authorization", "X-Session-Id", "Transfer-Encoding", "X-Weft-Token", "X-Weft-Session", "X-Weft-Tenant",
        "X-Weft-Path", "X-Weft-History", "X-Weft-Increment", "X-Request-Id", "Traceparent",
    )
    for name in (known, known.lower())
}  # fmt: skip


class FramingError(Exception):
    """Report bytes that are no acceptable HTTP request; the answer is ``error`` and the connection's end."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def _bad(message: str, status: int = 400) -> FramingError:
    return FramingError(ApiError(message, status=status))


@dataclass(slots=True)
class Request:
    """One whole request; header names are lower case, ``query`` is what follows the question mark."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    http10: bool
    keep_alive: bool


Gate = Callable[[Request], ApiError | None]
"""Looks at a request's head before its body is read; an error refuses it there."""


class RequestReader:
    """Requests of one connection, as their bytes come."""

    def __init__(self, *, max_body: int, gate: Gate | None = None) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._max_body = max_body
        self._gate = gate
        self._done: list[Request] = []
        self._failure: FramingError | None = None
        self._upgraded = False
        self._reset()
        self.wants_continue = False
        """Set when a client waits for a word before it sends its body; the connection says it and clears this."""

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._count = 0
        self._size = 0
        self._parts: list[bytes] = []
        self._received = 0
        self._request: Request | None = None
        self._begun = False

    @property
    def idle(self) -> bool:
        """Tell whether no request has begun that is not whole yet."""
        return not self._begun

    @property
    def broken(self) -> bool:
        """Tell whether what came after the requests returned so far cannot be read."""
        return self._failure is not None

    @property
    def in_body(self) -> bool:
        """Tell whether a head was read whose body is not whole yet."""
        return self._request is not None

    @property
    def received(self) -> int:
        """Return the bytes of the body so far."""
        return self._received

    def feed(self, data: bytes) -> list[Request]:
        """Take bytes; return the requests they complete.

        Raises:
            FramingError: the bytes cannot be accepted; nothing more can be read from this connection.
        """
        if self._failure is not None:
            raise self._failure
        if self._upgraded:
            return []
        if self._request is None:
            self._size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request asked for another protocol; HTTP/1.1 answers it, and what follows is not ours to read.
            self._upgraded = True
            if self._done:
                self._done[-1].keep_alive = False
        except httptools.HttpParserError as error:
            if self._failure is None:
                self._failure = _bad("the request is no valid HTTP; nothing of it was served")
            if not self._done:
                raise self._failure from error
        if self._begun and self._request is None and self._size > MAX_HEAD:
            self._failure = _bad(f"the request's headers exceed {MAX_HEAD} bytes; send less", 431)
            if not self._done:
                raise self._failure
        done, self._done = self._done, []
        return done

    # What follows is called by the parser.

    def on_message_begin(self) -> None:
        self._begun = True

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > MAX_LINE:
            self._fail(_bad(f"the request line exceeds {MAX_LINE} bytes; send a shorter one", 414))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count += 1
        if self._count > MAX_HEADERS:
            self._fail(_bad(f"the request has more than {MAX_HEADERS} headers; send fewer", 431))
        if len(name) + len(value) > MAX_LINE:
            self._fail(_bad(f"a header exceeds {MAX_LINE} bytes; send a shorter one", 431))
        known = _KNOWN.get(name)
        if known is None:
            known = name.lower().decode("latin-1")
        text = value.decode("latin-1")
        if known in self._headers:
            if known in SINGLETONS:
                self._fail(_bad(f"{known}: may be given only once"))
            text = f"{self._headers[known]}, {text}"
        self._headers[known] = text

    def on_headers_complete(self) -> None:
        method = self._parser.get_method().decode("ascii")
        version = self._parser.get_http_version()
        headers = self._headers
        if version not in ("1.1", "1.0"):
            self._fail(_bad(f"HTTP/{version} is not spoken here; use HTTP/1.1", 505))
        if not self._url.startswith(b"/") or not self._url.isascii():
            self._fail(_bad("the request's target must be a path that begins with '/'"))
        if version == "1.1" and "host" not in headers:
            self._fail(_bad("host: a request needs this header"))
        coding = headers.get("transfer-encoding")
        if coding is not None and (coding.lower() != "chunked" or "content-length" in headers or version == "1.0"):
            self._fail(_bad("transfer-encoding: only 'chunked', and not together with content-length"))
        length = headers.get("content-length")
        if length is not None:
            if not (length.isascii() and length.isdigit()):
                self._fail(_bad("content-length: must be a plain number"))
            if int(length) > self._max_body:
                self._fail(FramingError(TooLargeError(self._max_body)))
        path, _, query = self._url.decode("ascii").partition("?")
        keep = self._parser.should_keep_alive()
        request = self._request = Request(method, path, query, headers, b"", version == "1.0", keep)
        if self._gate is not None and (refused := self._gate(request)) is not None:
            self._fail(FramingError(refused))
        expect = headers.get("expect")
        if expect is not None:
            if expect.lower() != "100-continue":
                self._fail(_bad("expect: only '100-continue' is known here", 417))
            self.wants_continue = True

    def on_body(self, part: bytes) -> None:
        self._received += len(part)
        if self._received > self._max_body:
            self._fail(FramingError(TooLargeError(self._max_body)))
        self._parts.append(part)

    def on_message_complete(self) -> None:
        request = self._request
        if request is not None:
            parts = self._parts
            request.body = parts[0] if len(parts) == 1 else b"".join(parts)
            self._done.append(request)
        self.wants_continue = False
        self._reset()

    def _fail(self, failure: FramingError) -> None:
        if self._failure is None:
            self._failure = failure
        raise failure
