"""Read the response that engines usually send without a parser's callbacks: whole in one read, with a length.

What is not plainly that is left to llhttp, so this may refuse whatever it likes but must not read anything otherwise
than llhttp would (a property test and ``make fuzz`` hold it to that).
"""

import re

Response = tuple[int, dict[str, str], bytes]

_STATUS = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9])(?: [A-Za-z][A-Za-z -]*)?")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+): ([!-~](?:[ -~]*[!-~])?)")
_LENGTH = (b"content-length: ", b"Content-Length: ", b"Content-length: ", b"content-Length: ")
_BODILESS = (204, 304)
_FRAMING = frozenset({"transfer-encoding", "connection", "proxy-connection", "upgrade", "trailer"})
"""Headers that may say that the body's length, or the connection, is another matter."""
_REMEMBERED = 64
_LONGEST_REMEMBERED = 1024
_heads: dict[bytes, tuple[int, dict[str, str]] | None] = {}
"""What heads say, without the length's digits: an engine's are alike, but for the second of their date."""


def read_plain(data: bytes) -> Response | None:
    """Return the status, headers and body of exactly one whole response; None for anything else."""
    end = data.find(b"\r\n\r\n")
    at = data.find(b"ontent-length: ", 0, end)
    if at < 0:
        at = data.find(b"ontent-Length: ", 0, end)
        if at < 0:
            return None
    at += 15
    stop = data.find(b"\r", at)
    body = data[end + 4 :]
    length = str(len(body))
    if data[at:stop] != length.encode():
        return None
    head = data[:at] + data[stop:end]
    known = _heads[head] if head in _heads else _read(head)
    if known is None:
        return None
    headers = known[1].copy()
    headers["content-length"] = length
    return known[0], headers, body


def _read(head: bytes) -> tuple[int, dict[str, str]] | None:
    """Read a head without the digits of its length, and remember what came of it."""
    known = _parse(head.split(b"\r\n"))
    if len(head) <= _LONGEST_REMEMBERED:
        if len(_heads) >= _REMEMBERED:
            _heads.clear()
        _heads[head] = known
    return known


def _parse(lines: list[bytes]) -> tuple[int, dict[str, str]] | None:
    first = _STATUS.fullmatch(lines[0])
    if first is None or int(first[1]) in _BODILESS:
        return None
    headers: dict[str, str] = {}
    for line in lines[1:]:
        if line in _LENGTH:
            name, value = "content-length", ""
        else:
            field = _FIELD.fullmatch(line)
            if field is None:
                return None
            name, value = field[1].decode().lower(), field[2].decode()
        if name in headers or name in _FRAMING:
            return None
        headers[name] = value
    return (int(first[1]), headers) if "content-length" in headers else None
