"""Write a round's response to the client, whole or as a stream."""

from collections.abc import Callable
from typing import Final

from weft_router.http.exchange import Exchange, PausableSource
from weft_router.http.header_lines import checked
from weft_router.limits.admission import AdmissionPermit

_OF_STREAMS: Final = "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"


class ResponseWriter:
    """Writes the response of a round; ``shown`` are header lines of every response.

    ``admitted`` is notified when a stream begins, because then the client does not wait for its first byte any more.
    """

    __slots__ = ("_admitted", "exchange", "headers_sent", "shown", "used")

    def __init__(self, exchange: Exchange, shown: str, admitted: AdmissionPermit | None = None) -> None:
        self.exchange = exchange
        self.shown = shown
        self._admitted = admitted
        self.headers_sent = False
        """Whether a streamed response has started."""
        self.used = (0, 0)
        """Tokens of prompt and answer, set when the answer ends; of a broken stream, those that were sent."""

    def whole(self, status: int, body: bytes, lines: str, *, content_type: str = "application/json") -> None:
        """Write a whole response, with additional header lines."""
        self.exchange.reply(status, body, content_type=content_type, lines=self.shown + lines)

    def begin(self, lines: str) -> None:
        """Begin a stream of events, with additional header lines."""
        self.headers_sent = True
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
        """Set the source that is paused while the client does not read."""
        self.exchange.source = source


WriterType = Callable[[Exchange, str, AdmissionPermit | None], ResponseWriter]
"""Makes the writer of a request's API; its arguments are those of ``ResponseWriter``."""


def request_header_lines(request_id: str, session: str, cap: int | None = None) -> str:
    """Return the header lines of every response of a round: its id, and its session as the client knows it.

    ``cap`` is the most tokens that the answer may have because of its class: an answer that ends there has the finish
    reason ``length``, as one that the client limited.
    """
    lines = f"X-Request-Id: {checked(request_id)}\r\nX-Weft-Session: {checked(session)}\r\n"
    return lines if cap is None else f"{lines}X-Weft-Output-Cap: {cap}\r\n"
