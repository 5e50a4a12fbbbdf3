"""Read one HTTP/1.1 response after the other from the bytes of an upstream connection."""

from typing import Protocol

import httptools

MAX_HEAD = 64 * 2**10
_KNOWN: dict[bytes, str] = {}
_MOST_KNOWN = 256


class BadResponseError(Exception):
    """Report bytes that are no HTTP/1.1 response."""


class Taker(Protocol):
    """Who takes a response as it comes."""

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Take the status and the headers, names in lower case."""

    def data(self, chunk: bytes) -> None:
        """Take a piece of the body."""


class ResponseReader:
    """Responses of one connection; each goes to the taker given before its bytes come."""

    __slots__ = ("_head_size", "_headers", "_in_head", "_interim", "_parser", "complete", "keep_alive", "taker")

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.taker: Taker | None = None
        self.complete = False
        """Whether the response under way has come whole."""
        self.keep_alive = False
        self._in_head = True
        self._interim = False
        self._headers: dict[str, str] = {}
        self._head_size = 0

    def expect(self, taker: Taker) -> None:
        """Begin a response."""
        self.taker = taker
        self.complete = False
        self._in_head = True
        self._headers = {}
        self._head_size = 0

    def feed(self, data: bytes) -> None:
        """Take bytes.

        Raises:
            BadResponseError: they are no response, or belong to none that was asked for.
        """
        if self.complete or self.taker is None:
            raise BadResponseError("bytes after the end of the response")
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD and len(self._headers) == 0:
                raise BadResponseError("the head is too long")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise (error.__context__ or error) from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise BadResponseError(str(error)) from error

    def eof(self) -> bool:
        """Tell whether the peer's close ends the response properly: it had neither a length nor chunks."""
        unframed = "content-length" not in self._headers and "transfer-encoding" not in self._headers
        return not self._in_head and unframed

    # What follows is called by the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        known = _KNOWN.get(name)
        if known is None:
            known = name.lower().decode("latin-1")
            if len(_KNOWN) < _MOST_KNOWN:
                _KNOWN[name] = known
        self._headers[known] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._interim = status < 200
        if self._interim:
            self._headers = {}
            return
        self._in_head = False
        if self.taker is not None:
            self.taker.head(status, self._headers)

    def on_body(self, chunk: bytes) -> None:
        if self.taker is not None:
            self.taker.data(chunk)

    def on_message_complete(self) -> None:
        if not self._interim:
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()
