"""Parse a request's head strictly: whatever two parsers could read differently is refused.

No socket, no state: bytes in, a request out. The grammar is RFC 9112's without its leniencies: CR LF ends every line,
single spaces separate the parts of the request line, no folded lines, no space before a colon, only paths as targets.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from weft_router.errors import ApiError, TooLargeError
from weft_router.http.limits import HttpLimits

CHUNKED = -1
"""Stands for the length of a body with chunked transfer coding."""
SINGLETONS = frozenset(
    {
        "host", "content-length", "content-type", "content-encoding", "transfer-encoding", "authorization", "expect",
        "x-api-key", "x-session-id", "x-weft-authority", "x-weft-nonce", "x-weft-proof",
    }
)  # fmt: skip
"""Headers that may occur once: with two of them, two parsers could choose differently."""
CREDENTIALS = frozenset({"authorization", "x-api-key"})
"""Headers that say who asks."""
_KNOWN = frozenset(
    {
        "host", "user-agent", "accept", "accept-encoding", "accept-language", "connection", "content-type",
        "transfer-encoding", "cache-control", "x-stainless-lang", "x-stainless-package-version", "x-stainless-os",
        "x-stainless-arch", "x-stainless-runtime", "x-stainless-runtime-version", "x-stainless-async",
        "x-stainless-retry-count", "x-stainless-timeout",
    }
)  # fmt: skip
"""Headers without secrets whose lines repeat in request after request: parsed lines are cached."""
_METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE")
_REMEMBERED = 512
_LONGEST_REMEMBERED = 256
_FIRST = re.compile(r"([A-Z]{1,20}) (/[!-\"$-~]*) HTTP/1\.([01])")
_OTHER_VERSION = re.compile(r"[A-Z]{1,20} [!-~]+ HTTP/[0-9]\.[0-9]")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_HOST = re.compile(r"[A-Za-z0-9._~%:\[\]-]*")
_LONGEST_NUMBER = 18

First = tuple[str, str, str, bool]
_firsts: dict[str, First] = {}
_fields: dict[str, tuple[str, str]] = {}
_names: dict[str, str] = {}


class FramingError(Exception):
    """Report bytes that are no acceptable HTTP request; ``error`` is sent and the connection closed."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def bad_request(message: str, status: int = 400) -> FramingError:
    """Return the error for a request that violates the grammar or a limit."""
    return FramingError(ApiError(message, status=status))


class CredentialCache:
    """The principal of those requests of a connection that have the same credentials."""

    __slots__ = ("by", "principal")

    def __init__(self) -> None:
        self.by: object = None
        """The version of the keys with which it was authenticated; with another one it is authenticated again."""
        self.principal: object = None


class Peer:
    """The other end of a connection, and whether it proved to be a router process."""

    __slots__ = ("expected", "proven")

    def __init__(self, *, proven: bool = False) -> None:
        self.proven = proven
        """Whether it is a router process of this service."""
        self.expected = b""
        """The proof that it must send after the handshake's first message."""


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
    credential_cache: CredentialCache | None = None
    """Shared by the requests of its connection with the same credentials; None where credentials were not compared."""
    refusal: ApiError | None = None
    """The error of the gate that refused it by its head; its body and headers were dropped."""
    held: int = 0
    """Bytes that are charged for it."""
    head: int = 0
    """Bytes of its head as received."""


Gate = Callable[[Request, Peer], ApiError | None]
"""Checks a request's head before a long body is read; an error refuses the request."""


def read_head(lines: list[str], length: int, limits: HttpLimits) -> tuple[Request, int]:
    """Return (request, length of its body or CHUNKED) of a head's lines; ``length`` is the head's size in bytes.

    Raises:
        FramingError: it is not acceptable.
    """
    if length > limits.max_line:
        _bound(lines, length, limits)
    if len(lines) > limits.max_headers + 1:
        raise bad_request(f"the request has more than {limits.max_headers} headers; send fewer", 431)
    method, path, query, http10 = _firsts.get(lines[0]) or _first(lines[0])
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, value = _fields.get(line) or field(line)
        if name in headers:
            if name in SINGLETONS:
                raise bad_request(f"{name}: may be given only once")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    if "host" not in headers and not http10:
        raise bad_request("host: a request needs this header")
    connection = headers.get("connection")
    keep = not http10 if connection is None else connection == "keep-alive" or _keeps(connection, http10=http10)
    declared = headers.get("content-length")
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked" or declared is not None or http10:
            raise bad_request("transfer-encoding: only 'chunked', and not together with content-length")
        size = CHUNKED
    elif declared is None:
        size = 0
    else:
        size = length_of(declared, limits.max_body)
    if "expect" in headers and headers["expect"].lower() != "100-continue":
        raise bad_request("expect: only '100-continue' is known here", 417)
    return Request(method, path, query, headers, b"", http10, keep), size


def field(line: str) -> tuple[str, str]:
    """Return a header line's name, in lower case, and its value.

    Raises:
        FramingError: it is no header line.
    """
    raw, colon, value = line.partition(":")
    name = _names.get(raw) or _name(raw)
    if not colon:
        raise bad_request("the request has a line that is no header")
    value = value.strip(" \t")
    if not (value.isascii() and value.isprintable()) and not _VALUE.fullmatch(value):
        raise bad_request("the request has a header with control characters")
    if name in _KNOWN:
        if name == "host" and not _HOST.fullmatch(value):
            raise bad_request("host: must be a name or an address, with or without a port")
        if len(line) <= _LONGEST_REMEMBERED:
            if len(_fields) >= _REMEMBERED:
                _fields.clear()
            _fields[line] = (name, value)
    return name, value


def variable_name(line: str) -> tuple[str, int]:
    """Return (name, where the value begins) of a header line whose value may differ in each request.

    The name is empty for any other line.
    """
    raw, colon, _ = line.partition(": ")
    name = _names.get(raw)
    return ("", 0) if name is None or name in _KNOWN or not colon else (name, len(raw) + 2)


def _name(raw: str) -> str:
    if not _NAME.fullmatch(raw):
        raise bad_request("the request has a line that is no header")
    name = raw.lower()
    if len(raw) <= _LONGEST_REMEMBERED:
        if len(_names) >= _REMEMBERED:
            _names.clear()
        _names[raw] = name
    return name


def _first(line: str) -> First:
    match = _FIRST.fullmatch(line)
    if match is None:
        if _OTHER_VERSION.fullmatch(line) and line[-8:] not in ("HTTP/1.1", "HTTP/1.0"):
            raise bad_request(f"{line[-8:]} is not spoken here; use HTTP/1.1", 505)
        raise bad_request(
            "the request line must be a method, a path that begins with '/', and HTTP/1.1, one space between"
        )
    if match[1] not in _METHODS:
        raise bad_request(f"{match[1]} is not known here; use one of {', '.join(_METHODS)}", 501)
    path, _, query = match[2].partition("?")
    first = (match[1], path, query, match[3] == "0")
    if len(line) <= _LONGEST_REMEMBERED and not query:
        if len(_firsts) >= _REMEMBERED:
            _firsts.clear()
        _firsts[line] = first
    return first


def _bound(lines: list[str], size: int, limits: HttpLimits) -> None:
    if len(lines[0]) > limits.max_line:
        raise bad_request(f"the request line exceeds {limits.max_line} bytes; send a shorter one", 414)
    if size > limits.max_head:
        raise bad_request(f"the request's headers exceed {limits.max_head} bytes; send less", 431)
    if any(len(line) > limits.max_line for line in lines):
        raise bad_request(f"a header exceeds {limits.max_line} bytes; send a shorter one", 431)


def _keeps(connection: str, *, http10: bool) -> bool:
    options = {option.strip().lower() for option in connection.split(",")}
    if "close" in options:
        return False
    return not http10 or "keep-alive" in options


def length_of(text: str, most: int) -> int:
    """Return the value of a content-length header.

    Raises:
        FramingError: it is no number, or more than ``most``.
    """
    if not (text.isascii() and text.isdigit()):
        raise bad_request("content-length: must be a plain number")
    size = int(text) if len(text) <= _LONGEST_NUMBER else most + 1
    if size > most:
        raise FramingError(TooLargeError(most))
    return size
