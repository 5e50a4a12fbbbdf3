"""Read the response that engines usually send without a parser's callbacks: whole in one read, with a length.

What is not plainly that is left to llhttp, so this may refuse whatever it likes but must not read anything otherwise
than llhttp would (a property test and ``make fuzz`` hold it to that).
"""

import re
from typing import Final

Response = tuple[int, dict[str, str], bytes]
"""Status, headers and body; the headers are those of more than one response, and without the body's length."""

_STATUS = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9])(?: [A-Za-z][A-Za-z -]*)?")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+): ([!-~](?:[ -~]*[!-~])?)")
_LENGTH = (b"content-length: ", b"Content-Length: ", b"Content-length: ", b"content-Length: ")
_DIGITS: Final = 15
_BODILESS = (204, 304)
_FRAMING = frozenset({"transfer-encoding", "connection", "proxy-connection", "upgrade", "trailer"})
"""Headers that may say that the body's length, or the connection, is another matter."""
_LONGEST = 1024
"""The bytes of a head that is kept; there may be ten thousand origins."""
_SHORT: Final = 128
_REMEMBERED: Final = 1024
_fields: Final[dict[bytes, tuple[str, str]]] = {}
"""What short lines say: most of a head's are those of heads before, though one of them may be another each time."""


class WholeResponseReader:
    """Reads the plain responses of one origin: their heads are alike, but for length and the second of their date."""

    __slots__ = ("_after", "_before", "_headers", "_status")

    def __init__(self) -> None:
        self._before = b""
        """The head of the last response up to the digits of its length."""
        self._after = b""
        """What followed them, up to the body."""
        self._status = 0
        """What that head says; 0 where it is not plain."""
        self._headers: dict[str, str] = {}

    def read(self, data: bytes) -> Response | None:
        """Return the status, headers and body of exactly one whole response; None for anything else."""
        before, after, size = self._before, self._after, len(data)
        at = end = len(before)
        most, length = min(size, at + _DIGITS), 0
        if data.startswith(before):
            while end < most:
                digit = data[end] - 48
                if digit < 0 or digit > 9:
                    break
                length = length * 10 + digit
                end += 1
        begin = end + len(after)
        if end == at or length != size - begin or (end > at + 1 and data[at] == 48) or data[end:begin] != after:
            return self._read(data)
        return (self._status, self._headers, data[begin:]) if self._status else None

    def _read(self, data: bytes) -> Response | None:
        """Read a response with another head than the one before."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return None
        at = data.find(b"ontent-length: ", 0, end)
        if at < 0:
            at = data.find(b"ontent-Length: ", 0, end)
            if at < 0:
                return None
        at += 15
        stop = data.find(b"\r", at)
        body = data[end + 4 :]
        if data[at:stop] != str(len(body)).encode():
            return None
        found = _parse((data[:at] + data[stop:end]).split(b"\r\n"))
        if end <= _LONGEST:
            self._before, self._after = data[:at], data[stop : end + 4]
            self._status, self._headers = found if found is not None else (0, {})
        return (found[0], found[1], body) if found is not None else None


def _parse(lines: list[bytes]) -> tuple[int, dict[str, str]] | None:
    first = _STATUS.fullmatch(lines[0])
    if first is None or int(first[1]) in _BODILESS:
        return None
    headers: dict[str, str] = {}
    for line in lines[1:]:
        if line in _LENGTH:
            name, value = "content-length", ""
        else:
            known = _fields.get(line)
            if known is None:
                field = _FIELD.fullmatch(line)
                if field is None:
                    return None
                known = field[1].decode().lower(), field[2].decode()
                if len(line) <= _SHORT:
                    if len(_fields) >= _REMEMBERED:
                        _fields.clear()
                    _fields[line] = known
            name, value = known
        if name in headers or name in _FRAMING:
            return None
        headers[name] = value
    return (int(first[1]), headers) if headers.pop("content-length", None) is not None else None
