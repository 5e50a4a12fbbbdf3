"""Where an answer goes: to the client of an exchange, whole or as a stream."""

from collections.abc import Callable, Mapping

from weft_router.wire.exchange import Exchange, Source

STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Outlet:
    """The client's side of a round; ``shown`` are headers that every answer carries.

    ``on_first`` is told when an answer begins, so that whoever waits for its first byte is counted no longer.
    """

    __slots__ = ("_on_first", "begun", "exchange", "shown", "used")

    def __init__(
        self, exchange: Exchange, shown: Mapping[str, str], on_first: Callable[[], None] | None = None
    ) -> None:
        self.exchange = exchange
        self.shown = shown
        self._on_first = on_first
        self.begun = False
        """Whether the client got anything of a stream yet."""
        self.used = (0, 0)
        """Tokens of prompt and answer, known from the answer's end on; of what broke off, as far as it came."""

    def whole(
        self, status: int, body: bytes, headers: Mapping[str, str], *, content_type: str = "application/json"
    ) -> None:
        """Answer in one piece."""
        self.exchange.reply(status, body, content_type=content_type, headers={**self.shown, **headers})

    def begin(self, headers: Mapping[str, str]) -> None:
        """Begin a stream of events."""
        self.begun = True
        if self._on_first is not None:
            self._on_first()
        self.exchange.begin(
            200,
            content_type="text/event-stream; charset=utf-8",
            headers={**STREAM_HEADERS, **self.shown, **headers},
        )

    def write(self, data: bytes) -> None:
        """Send whole events."""
        self.exchange.write(data)

    def end(self, data: bytes = b"") -> None:
        """End the stream, with its last events."""
        self.exchange.end(data)

    def fed_by(self, source: Source | None) -> None:
        """Name who is told to wait while the client does not read."""
        self.exchange.source = source
