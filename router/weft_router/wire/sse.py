"""Cut a byte stream into whole server-sent events, without touching their bytes."""

MAX_EVENT = 32 * 2**20
"""The first event of a stream may carry the ids of a whole prompt: 7 bytes a token and a million tokens fit."""


class EventTooLargeError(ValueError):
    """Report an event above MAX_EVENT; the stream cannot be trusted any more."""


class EventSplitter:
    """Collect bytes and give back whole events, each with the blank line that ends it."""

    def __init__(self) -> None:
        self._rest = b""
        self._scanned = 0

    @property
    def rest(self) -> bytes:
        """Return the bytes after the last whole event."""
        return self._rest

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes; return the events they complete.

        Raises:
            EventTooLargeError: an event grows beyond MAX_EVENT.
        """
        buffer = self._rest + data if self._rest else data
        events: list[bytes] = []
        start = 0
        search = self._scanned
        while True:
            end = _boundary(buffer, search)
            if end < 0:
                break
            events.append(buffer[start:end])
            start = search = end
        self._rest = buffer[start:]
        # A boundary is at most 3 bytes long, so the last 2 bytes may be the start of one.
        self._scanned = max(0, len(self._rest) - 2)
        if len(self._rest) > MAX_EVENT:
            raise EventTooLargeError(f"a server-sent event exceeds {MAX_EVENT} bytes")
        return events


def _boundary(buffer: bytes, start: int) -> int:
    """Return the index after the first blank line at or after ``start``; -1 when there is none.

    Lines end with LF or CR LF, also mixed; nobody sends CR alone.
    """
    plain = buffer.find(b"\n\n", start)
    crlf = buffer.find(b"\n\r\n", start, plain + 1 if plain >= 0 else len(buffer))
    if crlf >= 0:
        return crlf + 3
    return plain + 2 if plain >= 0 else -1


def payload(event: bytes) -> bytes | None:
    """Return the data of an event (several data lines joined), or None for comments and fields without data."""
    if event.startswith(b"data: ") and event.find(b"\n", 6, -2) < 0:
        return event[6:].rstrip(b"\r\n")
    lines = [line for line in event.replace(b"\r\n", b"\n").split(b"\n") if line.startswith(b"data:")]
    if not lines:
        return None
    return b"\n".join(line[6:] if line.startswith(b"data: ") else line[5:] for line in lines)
