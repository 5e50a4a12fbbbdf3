"""Decode a request body that comes in chunks, strictly; trailers are read and dropped."""

import re

from weft_router.errors import TooLargeError
from weft_router.http.head import FramingError, bad_request, field

MAX_LINE = 256
"""Largest size line of a chunk, with its extensions."""
MAX_TRAILERS = 4096
FREE_CHUNKS = 1024
LEAST_CHUNK = 16
"""So many bytes has a chunk on average beyond the first FREE_CHUNKS: smaller ones only cost time."""
_SIZE = re.compile(
    rb"([0-9A-Fa-f]{1,8})"
    rb"(?:;[!#$%&'*+\-.^_`|~0-9A-Za-z]+(?:=(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+|\"[\t \x21\x23-\x5b\x5d-\x7e]*\"))?)*"
)


class ChunkDecoder:
    """One body's chunks; ``body`` grows as they come."""

    __slots__ = ("_count", "_known", "_left", "_limit", "_line", "_size", "_trailers", "body", "done")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._line = bytearray()
        self._known = b""
        """The size line of the chunk before, with its end: most chunks of a body have the same size."""
        self._size = 0
        """The size that it gives."""
        self._left = -1
        """Bytes of the chunk's data that are to come; -1 in its size line, 0 before the line break after it."""
        self._trailers = -1
        """Bytes of trailers so far; -1 before the last chunk."""
        self.body = bytearray()
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return those after the body's end.

        Raises:
            FramingError: the chunks are malformed, or the body is too large.
        """
        at = 0
        size = len(data)
        while at < size and not self.done:
            between = self._left < 0 and self._trailers < 0 and not self._line
            if between and self._known and data.startswith(self._known, at):
                start = at + len(self._known)
                end = start + self._size
                if data.startswith(b"\r\n", end) and len(self.body) + self._size <= self._limit:
                    self._counted()
                    self.body += data[start:end]
                    at = end + 2
                    continue
            if self._left > 0:
                part = data[at : at + self._left]
                self.body += part
                self._left -= len(part)
                at += len(part)
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at:]
                self._partial()
                return b""
            line = data[at : end + 1]
            if self._line:
                line = bytes(self._line) + line
                self._line.clear()
            at = end + 1
            if not line.endswith(b"\r\n"):
                raise bad_request("a line of the chunked body ends without CR LF")
            self._take(line[:-2])
        return data[at:]

    def _partial(self) -> None:
        """Refuse an incomplete line as soon as no further byte can make it valid."""
        length = len(self._line.removesuffix(b"\r"))
        if self._left == 0:
            if self._line != b"\r":
                raise bad_request("a chunk is longer than it says")
        elif self._trailers >= 0:
            self._bound_trailers(length)
        elif length > MAX_LINE:
            raise bad_request("a chunk's size must be a hexadecimal number")

    def _take(self, line: bytes) -> None:
        if self._left == 0:
            if line:
                raise bad_request("a chunk is longer than it says")
            self._left = -1
        elif self._trailers >= 0:
            self._trailer(line)
        else:
            match = _SIZE.fullmatch(line) if len(line) <= MAX_LINE else None
            if match is None:
                raise bad_request("a chunk's size must be a hexadecimal number")
            size = int(match[1], 16)
            if len(self.body) + size > self._limit:
                raise FramingError(TooLargeError(self._limit))
            self._counted()
            if size:
                self._left = self._size = size
                self._known = line + b"\r\n"
            else:
                self._trailers = 0

    def _counted(self) -> None:
        self._count += 1
        if self._count > FREE_CHUNKS + len(self.body) // LEAST_CHUNK:
            raise bad_request("the body comes in too many small chunks; send larger ones")

    def _trailer(self, line: bytes) -> None:
        if not line:
            self.done = True
            return
        self._trailers += len(line) + 2
        self._bound_trailers(0)
        field(line.decode("latin-1"))

    def _bound_trailers(self, more: int) -> None:
        if self._trailers + more > MAX_TRAILERS:
            raise bad_request(f"the trailers exceed {MAX_TRAILERS} bytes; send less", 431)
