"""Split a server-sent event stream into the data of its events, whatever the chunk boundaries.

Only what completions need: ``data:`` lines are joined per event, comments and other fields are ignored.
"""


class EventSplitter:
    """Collect bytes and hand out the data of each finished event (a blank line ends an event)."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        """Start with nothing buffered."""
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of every event that ``chunk`` finishes, in order."""
        buffer = self._rest + chunk if self._rest else chunk
        if b"\r" in buffer:
            # A lone CR at the end may be half of a CRLF: keep it back until the next byte is known.
            held = b"\r" if buffer.endswith(b"\r") else b""
            buffer = buffer[: len(buffer) - len(held)].replace(b"\r\n", b"\n") + held
        events = buffer.split(b"\n\n")
        self._rest = events.pop()
        return [data for event in events if (data := _data(event)) is not None]

    @property
    def unfinished(self) -> bool:
        """Return whether bytes of an event without its end are held."""
        return bool(self._rest.strip())


def _data(event: bytes) -> bytes | None:
    if event.startswith(b"data: ") and b"\n" not in event:  # the common case: one line
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
