"""Cut a byte stream into whole server-sent events, without touching their bytes."""

from typing import Final

CR: Final = 0x0D
MAX_EVENT = 32 * 2**20
"""The first event of a stream may carry the ids of a whole prompt: 7 bytes a token and a million tokens fit."""


class EventTooLargeError(ValueError):
    """Report an event above MAX_EVENT; the stream cannot be trusted any more."""


class EventSplitter:
    """Collect bytes and return whole events, each with the blank line that ends it.

    Every byte is looked at once and copied a few times, however small the pieces are that an event comes in.
    """

    def __init__(self) -> None:
        self._kept = bytearray()

    @property
    def partial(self) -> bool:
        """Return whether bytes came that make no whole event yet."""
        return bool(self._kept)

    @property
    def rest(self) -> bytes:
        """Return a copy of the bytes after the last whole event."""
        return bytes(self._kept)

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes; return the events they complete.

        Raises:
            EventTooLargeError: an event grows beyond MAX_EVENT.
        """
        kept = self._kept
        buffer, start = data, 0
        if kept:
            known = len(kept)
            # A boundary is at most 3 bytes long, so the last 2 bytes before these may be the start of one.
            tail = bytes(kept[-2:])
            if _boundary(tail + data, 0)[0] < 0:
                kept += data
                self._bound()
                return []
            buffer, start = bytes(kept) + data, known - len(tail)
            kept.clear()
        events: list[bytes] = []
        begin, plain = 0, -2
        while True:
            end, plain = _boundary(buffer, start, plain)
            if end < 0:
                break
            events.append(buffer[begin:end])
            begin = start = end
        if begin < len(buffer):
            kept += memoryview(buffer)[begin:]
            self._bound()
        return events

    def _bound(self) -> None:
        if len(self._kept) > MAX_EVENT:
            raise EventTooLargeError(f"a server-sent event exceeds {MAX_EVENT} bytes")


def ends_event(kept: bytearray, data: bytes) -> bool:
    """Return whether an event with plain line breaks ends in ``data``, which follows ``kept``."""
    return data.find(b"\n\n") >= 0 or (data.startswith(b"\n") and kept.endswith(b"\n"))


def _boundary(buffer: bytes, start: int, plain: int = -2) -> tuple[int, int]:
    """Return the index after the first blank line at or after ``start``, and where the next two LF are; -1 for none.

    Lines end with LF or CR LF, also mixed; nobody sends CR alone. ``plain`` is what the call before returned for the
    same buffer, so that no byte is looked at for each event.
    """
    if plain != -1 and plain < start:
        plain = buffer.find(b"\n\n", start)
    crlf = buffer.find(b"\n\r\n", start, plain + 1 if plain >= 0 else len(buffer))
    if crlf >= 0:
        return crlf + 3, plain
    return (plain + 2 if plain >= 0 else -1), plain


def payload(event: bytes) -> bytes | None:
    """Return the data of an event (several data lines joined), or None for comments and fields without data."""
    if event.startswith(b"data: ") and event.find(b"\n", 6, -2) < 0:
        return event[6:].rstrip(b"\r\n")
    lines = [line for line in event.replace(b"\r\n", b"\n").split(b"\n") if line.startswith(b"data:")]
    if not lines:
        return None
    return b"\n".join(line[6:] if line.startswith(b"data: ") else line[5:] for line in lines)
