"""Read the request heads of one connection; lines that equal those of the previous head are not parsed again.

Clients reuse connections and send the same header lines with every request, except for a length, an id or a trace
context. The result is always that of ``read_head``; a property test and ``make fuzz`` compare the two.
"""

from weft_router.http.head import CREDENTIALS, CredentialCache, Request, length_of, read_head, variable_name
from weft_router.http.limits import HttpLimits

_MAX_CACHED = 4096
"""Largest head in bytes that is cached; ten thousand connections may each cache one."""
_MAX_GROWTH = 64
"""How many bytes longer than the cached head the next one may be and still be compared with it."""
_STABLE_HEADERS = frozenset(
    {
        "authorization", "x-api-key", "x-weft-path", "x-weft-tenant", "x-weft-class", "x-weft-priority",
        "x-weft-ttft-slo", "x-weft-kv-handle",
    }
)  # fmt: skip
"""Headers with one value on most connections. On a connection on which a gateway or a sidecar sends requests of many
clients they vary; then they are added to ``_variable_names``."""
_UNCACHED_HEADERS = frozenset({"transfer-encoding", "expect"})
"""Heads with these headers are never cached."""


class HeadReader:
    """Reads the heads of one connection."""

    __slots__ = (
        "_body_length",
        "_credential_cache",
        "_headers",
        "_length_text",
        "_max_length",
        "_previous",
        "_reused",
        "_suffix",
        "_variable_fields",
        "_variable_names",
    )  # fmt: skip

    def __init__(self) -> None:
        self._previous: Request | None = None
        self._headers: dict[str, str] = {}
        self._variable_fields: list[tuple[bytes, str]] = []
        """Headers of the cached head whose values may differ in the next one: the bytes before each value, and its
        name."""
        self._suffix = b""
        """The bytes after the last of them."""
        self._max_length = 0
        self._length_text: str | None = None
        self._body_length = 0
        self._reused = False
        """Whether the connection had a request before: one that carries a single long stream need not cache its
        head."""
        self._variable_names: set[str] = set()
        """The stable headers whose values changed on this connection."""
        self._credential_cache: CredentialCache | None = None

    def read_like_previous(self, data: bytes, at: int, limits: HttpLimits) -> tuple[Request, int, int] | None:
        """Return (request, body length, body offset) for a head like the previous one; None for any other.

        The head begins at ``at`` of ``data``; its lines equal the cached ones except for values that may vary.

        Raises:
            FramingError: its content length is not acceptable.
        """
        previous = self._previous
        if previous is None:
            return None
        limit = min(len(data), at + self._max_length)
        headers = self._headers.copy()
        stop = at
        for before, name in self._variable_fields:
            start = stop + len(before)
            if data[stop:start] != before:
                return None
            stop = start
            while stop < limit and 0x20 <= data[stop] <= 0x7E:  # compiled, this costs less than one call of a method
                stop += 1
            headers[name] = data[start:stop].decode("ascii").strip(" ")
        end = stop + len(self._suffix)
        if end > limit or data[stop:end] != self._suffix:
            return None
        length_text = headers.get("content-length")
        size = self._body_length if length_text == self._length_text else length_of(length_text or "", limits.max_body)
        request = Request(
            previous.method,
            previous.path,
            previous.query,
            headers,
            b"",
            previous.http10,
            previous.keep_alive,
            self._credential_cache,
        )
        return request, size, end

    def read(self, head: bytes, limits: HttpLimits) -> tuple[Request, int]:
        """Return (request, length of its body or CHUNKED) of a head without the empty line that ends it, and cache it.

        Raises:
            FramingError: it is not acceptable.
        """
        lines = head.decode("latin-1").split("\r\n")
        request, size = read_head(lines, len(head), limits)
        before_this, self._reused = self._reused, True
        headers = request.headers
        plain = len(headers) == len(lines) - 1 and _UNCACHED_HEADERS.isdisjoint(headers)
        if before_this and plain and len(head) <= _MAX_CACHED and len(head) <= limits.max_line:
            self._cache_head(request, size, lines)
            self._max_length = min(len(head) + _MAX_GROWTH, _MAX_CACHED, limits.max_line) + len("\r\n\r\n")
        return request, size

    def _cache_head(self, request: Request, size: int, lines: list[str]) -> None:
        headers = request.headers
        if self._previous is not None:
            for name in _STABLE_HEADERS:
                if headers.get(name) != self._headers.get(name):
                    self._variable_names.add(name)
        # A copy: the caller fills in the body of the request that it gets.
        self._previous = Request(
            request.method, request.path, request.query, {}, b"", request.http10, request.keep_alive
        )
        self._headers, self._length_text, self._body_length = headers.copy(), headers.get("content-length"), size
        self._variable_fields = []
        before = ""
        for line in lines:
            name, at = variable_name(line)
            if name and (name not in _STABLE_HEADERS or name in self._variable_names):
                self._variable_fields.append(((before + line[:at]).encode("latin-1"), name))
                before = "\r\n"
            else:
                before += line + "\r\n"
        self._suffix = (before + "\r\n").encode("latin-1")
        self._credential_cache = (
            CredentialCache() if all(name not in CREDENTIALS for _, name in self._variable_fields) else None
        )
