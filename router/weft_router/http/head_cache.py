"""Read one head after the other of a connection: lines that are as in the head before are not parsed again.

Clients keep their connections and send the same lines with every request, but for a length, an id or a trace. What is
read is what read_head reads; a property test and ``make fuzz`` hold it to that.
"""

from weft_router.http.head import CredentialCache, Request, length_of, own_name, read_head
from weft_router.http.limits import HttpLimits

_LONGEST = 4096
"""The bytes of a head that is kept; ten thousand connections may each keep one."""
_LONGER = 64
"""The bytes by which the next head may be longer and still be read by the one before."""
_STEADY = frozenset(
    {
        "authorization", "x-weft-path", "x-weft-tenant", "x-weft-class", "x-weft-priority",
        "x-weft-ttft-slo", "x-weft-kv-handle",
    }
)  # fmt: skip
"""Headers that say the same on most connections, though a gateway or a sidecar sends requests of many clients."""
_MATTER = frozenset({"transfer-encoding", "expect"})
"""Heads with these are read anew each time."""


class HeadReader:
    """The heads of one connection."""

    __slots__ = (
        "_changing", "_headers", "_last", "_notes", "_size", "_tail", "_told", "_used", "_varying", "_window",
    )  # fmt: skip

    def __init__(self) -> None:
        self._last: Request | None = None
        self._headers: dict[str, str] = {}
        self._varying: list[tuple[bytes, str]] = []
        """The headers of the last head that may say another thing next time, each after all that stands before it."""
        self._tail = b""
        """What followed the last of them."""
        self._window = 0
        self._told: str | None = None
        self._size = 0
        self._used = False
        """Whether there was a request before: a connection that has one long stream need not keep its head."""
        self._changing: set[str] = set()
        """The steady headers that were not so on this connection."""
        self._notes: CredentialCache | None = None

    def read_by_last(self, data: bytes, at: int, limits: HttpLimits) -> tuple[Request, int, int] | None:
        """Return the request of a head that says what the last one said but for what varies, its body's length, and
        where its body begins; None for any other head.

        Raises:
            FramingError: its length is not acceptable.
        """
        last = self._last
        if last is None:
            return None
        most = min(len(data), at + self._window)
        headers = self._headers.copy()
        stop = at
        for before, name in self._varying:
            start = stop + len(before)
            if data[stop:start] != before:
                return None
            stop = start
            while stop < most and 0x20 <= data[stop] <= 0x7E:  # compiled, this costs less than one call of a method
                stop += 1
            headers[name] = data[start:stop].decode("ascii").strip(" ")
        end = stop + len(self._tail)
        if end > most or data[stop:end] != self._tail:
            return None
        told = headers.get("content-length")
        size = self._size if told == self._told else length_of(told or "", limits.max_body)
        request = Request(last.method, last.path, last.query, headers, b"", last.http10, last.keep_alive, self._notes)
        return request, size, end

    def read(self, head: bytes, limits: HttpLimits) -> tuple[Request, int]:
        """Return the request of a head, given without the empty line that ends it, and its body's length or CHUNKED.

        Raises:
            FramingError: it is not acceptable.
        """
        lines = head.decode("latin-1").split("\r\n")
        request, size = read_head(lines, len(head), limits)
        before_this, self._used = self._used, True
        headers = request.headers
        plain = len(headers) == len(lines) - 1 and _MATTER.isdisjoint(headers)
        if before_this and plain and len(head) <= _LONGEST and len(head) <= limits.max_line:
            self._keep(request, size, lines)
            self._window = min(len(head) + _LONGER, _LONGEST, limits.max_line) + len("\r\n\r\n")
        return request, size

    def _keep(self, request: Request, size: int, lines: list[str]) -> None:
        headers = request.headers
        if self._last is not None:
            for name in _STEADY:
                if headers.get(name) != self._headers.get(name):
                    self._changing.add(name)
        # A copy: the caller fills in the body of the request that it gets.
        self._last = Request(request.method, request.path, request.query, {}, b"", request.http10, request.keep_alive)
        self._headers, self._told, self._size = headers.copy(), headers.get("content-length"), size
        self._varying = []
        before = ""
        for line in lines:
            name, at = own_name(line)
            if name and (name not in _STEADY or name in self._changing):
                self._varying.append(((before + line[:at]).encode("latin-1"), name))
                before = "\r\n"
            else:
                before += line + "\r\n"
        self._tail = (before + "\r\n").encode("latin-1")
        self._notes = CredentialCache() if all(name != "authorization" for _, name in self._varying) else None
