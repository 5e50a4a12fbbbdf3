"""Read one HTTP/1.1 response after the other from the bytes of an upstream connection."""

from collections.abc import Callable
from typing import Any, Protocol

import httptools

from weft_router.http.whole_chunks import read_chunk
from weft_router.http.whole_response import WholeResponseReader

MAX_HEAD = 64 * 2**10
_REMEMBERED = 256
_LONGEST_REMEMBERED = 128
_names: dict[bytes, str] = {}


class BadResponseError(Exception):
    """Report bytes that are no HTTP/1.1 response."""


class ResponseHandler(Protocol):
    """Who takes a response as it comes."""

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Take the status and the headers, names in lower case.

        They are to be left as they are, for the next response may have the same; the body's length may not be among
        them.
        """

    def data(self, chunk: bytes) -> None:
        """Take a piece of the body."""


class ResponseReader:
    """Parser for the responses of one connection; each goes to the taker that was set before its bytes arrive.

    ``plain`` knows the heads of its origin.
    """

    __slots__ = ("_between", "_head_size", "_headers", "_in_head", "_interim", "_more", "_parser", "_parts", "_plain",
                 "_untouched", "complete", "keeps", "on_body", "taker")  # fmt: skip

    def __init__(self, plain: WholeResponseReader) -> None:
        self._plain = plain
        self._parts: list[bytes] = []
        self.on_body: Callable[[bytes], None] = self._parts.append
        self._parser: Any = httptools.HttpResponseParser(self)
        self.taker: ResponseHandler | None = None
        self.complete = False
        """Whether the response under way has come whole."""
        self.keeps = False
        """Whether another request may follow: both ends keep the connection, and nothing followed unasked."""
        self._more = False
        self._untouched = True
        """Whether nothing came of the response yet."""
        self._between = False
        """Whether the parser has seen some whole chunks and nothing after them."""
        self._in_head = True
        self._interim = False
        self._headers: dict[str, str] = {}
        self._head_size = 0

    def expect(self, taker: ResponseHandler) -> None:
        """Begin a response."""
        self.taker = taker
        self.complete = self._between = False
        self._untouched = self._in_head = True

    def feed(self, data: bytes) -> None:
        """Take bytes; what they hold of the body goes to the taker in one piece.

        Raises:
            BadResponseError: they are no response, or no request is waiting for one.
        """
        taker = self.taker
        if self.complete or taker is None:
            raise BadResponseError("bytes after the end of the response")
        if self._untouched:
            self._untouched = False
            plain = self._plain.read(data)
            if plain is not None:
                taker.head(plain[0], plain[1])
                self.complete = self.keeps = True
                if plain[2]:
                    taker.data(plain[2])
                return
            self._headers = {}
            self._head_size = 0
        if self._between:
            body = read_chunk(data)
            if body:
                taker.data(body)
                return
        self._parse(data, taker)

    def close(self) -> None:
        """Drop the parser, whose callbacks form a reference cycle."""
        self.taker = None
        self._parts.clear()
        self._parser = None

    def eof(self) -> bool:
        """Return whether the peer's close ends the response properly: it had neither a length nor chunks."""
        unframed = "content-length" not in self._headers and "transfer-encoding" not in self._headers
        return not self._in_head and unframed

    def _parse(self, data: bytes, taker: ResponseHandler) -> None:
        if self._in_head:
            self._head_size += len(data)
        failure: Exception | None = None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            failure = error
        # A line of which only some bytes came ends otherwise, and a whole one has told that a chunk begins.
        self._between = self._between and data.endswith(b"\r\n")
        parts = self._parts
        if parts:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            taker.data(body)
        if failure is not None and not self._followed():
            if isinstance(failure, httptools.HttpParserCallbackError) and failure.__context__ is not None:
                raise failure.__context__ from None
            raise BadResponseError(str(failure)) from failure
        if self._in_head and self._head_size > MAX_HEAD:
            raise BadResponseError("the head is too long")
        if self._more:
            self.keeps = False

    def _followed(self) -> bool:
        """Return whether the response was complete before an error, which then only ends the connection."""
        self._more = self._more or self.complete
        return self.complete

    # What follows is called by the parser.

    def on_message_begin(self) -> None:
        if self.complete:
            self._more = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer
        known = _names.get(name) or _known(name)
        headers = self._headers
        text = value.decode("latin-1")
        headers[known] = text if known not in headers else f"{headers[known]}, {text}"

    def on_headers_complete(self) -> None:
        if self._more:
            raise BadResponseError("a second response")
        status = self._parser.get_status_code()
        self._interim = status < 200
        if self._interim:
            self._headers = {}
            return
        self._in_head = False
        if self.taker is not None:
            self.taker.head(status, self._headers)

    def on_chunk_header(self) -> None:
        self._between = False

    def on_chunk_complete(self) -> None:
        self._between = True

    def on_message_complete(self) -> None:
        if not self._interim:
            self.complete = True
            self.keeps = self._parser.should_keep_alive()


def _known(name: bytes) -> str:
    known = name.lower().decode("latin-1")
    if len(_names) < _REMEMBERED and len(name) <= _LONGEST_REMEMBERED:
        _names[name] = known
    return known
