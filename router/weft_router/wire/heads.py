"""Read one head after the other of a connection: what is as in the head before is not read again.

Clients keep their connections and send the same lines with every request, but for a length, an id or a trace. What is
read is what read_head reads; a property test and ``make fuzz`` hold it to that.
"""

from weft_router.wire.head import Request, length_of, own_name, read_head
from weft_router.wire.limits import WireLimits

_LONGEST = 4096
"""The bytes of a head that is kept; ten thousand connections may each keep one."""
_MATTER = frozenset({"transfer-encoding", "expect"})
"""Heads with these are read anew each time."""


class HeadReader:
    """The heads of one connection."""

    __slots__ = ("_fields", "_headers", "_last", "_size", "_told", "_used")

    def __init__(self) -> None:
        self._last: Request | None = None
        self._fields: list[tuple[str, str, int]] = []
        """Each line of the last head, the name of its header if it may say another thing next time, and where."""
        self._headers: dict[str, str] = {}
        self._told: str | None = None
        self._size = 0
        self._used = False
        """Whether there was a request before: a connection that has one long stream need not keep its head."""

    def read(self, head: bytes, limits: WireLimits) -> tuple[Request, int]:
        """Return the request of a head, given without the empty line that ends it, and its body's length or CHUNKED.

        Raises:
            FramingError: it is not acceptable.
        """
        lines = head.decode("latin-1").split("\r\n")
        last = self._last
        plain = len(head) <= _LONGEST and len(head) <= limits.max_line
        if plain and last is not None and len(lines) == len(self._fields):
            headers = self._headers.copy()
            for line, (before, name, at) in zip(lines, self._fields):  # noqa: B905 - of one length
                if line != before:
                    value = line[at:]
                    if not name or line[:at] != before[:at] or not (value.isascii() and value.isprintable()):
                        break
                    headers[name] = value.strip()
            else:
                told = headers.get("content-length")
                size = self._size if told == self._told else length_of(told or "", limits.max_body)
                return Request(last.method, last.path, last.query, headers, b"", last.http10, last.keep_alive), size
        request, size = read_head(lines, len(head), limits)
        headers = request.headers
        before_this, self._used = self._used, True
        if before_this and plain and len(headers) == len(lines) - 1 and _MATTER.isdisjoint(headers):
            # Not what is given away, which gets a body.
            self._last = Request(
                request.method, request.path, request.query, {}, b"", request.http10, request.keep_alive
            )
            self._headers, self._told, self._size = headers.copy(), headers.get("content-length"), size
            self._fields = [(line, *own_name(line)) for line in lines]
        return request, size
