"""Where an answer goes: to the client of an exchange, whole or as a stream."""

from typing import Final

from weft_router.http.exchange import Exchange, PausableSource
from weft_router.http.header_lines import checked
from weft_router.limits.admission import AdmissionPermit

_OF_STREAMS: Final = "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"


class ResponseWriter:
    """The client's side of a round; ``shown`` are header lines that every answer carries.

    ``admitted`` is told when a stream begins: nobody waits for its first byte any longer.
    """

    __slots__ = ("_admitted", "begun", "exchange", "shown", "used")

    def __init__(self, exchange: Exchange, shown: str, admitted: AdmissionPermit | None = None) -> None:
        self.exchange = exchange
        self.shown = shown
        self._admitted = admitted
        self.begun = False
        """Whether the client got anything of a stream yet."""
        self.used = (0, 0)
        """Tokens of prompt and answer, known from the answer's end on; of what broke off, as far as it came."""

    def whole(self, status: int, body: bytes, lines: str, *, content_type: str = "application/json") -> None:
        """Answer in one piece, with these header lines, too."""
        self.exchange.reply(status, body, content_type=content_type, lines=self.shown + lines)

    def begin(self, lines: str) -> None:
        """Begin a stream of events, with these header lines, too."""
        self.begun = True
        if self._admitted is not None:
            self._admitted.first_byte()
        self.exchange.begin(
            200, content_type="text/event-stream; charset=utf-8", lines=f"{_OF_STREAMS}{self.shown}{lines}"
        )

    def write(self, data: bytes) -> None:
        """Send whole events."""
        self.exchange.write(data)

    def end(self, data: bytes = b"") -> None:
        """End the stream, with its last events."""
        self.exchange.end(data)

    def set_source(self, source: PausableSource | None) -> None:
        """Name who is told to wait while the client does not read."""
        self.exchange.source = source


def request_header_lines(request_id: str, session: str) -> str:
    """Return the header lines that every answer of a round carries: its id, and its session as its client knows it."""
    return f"X-Request-Id: {checked(request_id)}\r\nX-Weft-Session: {checked(session)}\r\n"
