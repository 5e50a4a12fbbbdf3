"""What must hold for any bytes: of requests, read as two other parsers read them; of events, not a byte lost.

The property tests and the fuzz targets (router/fuzz) share these.
"""

import contextlib

import h11
import httptools

from weft_router.wire.head import FramingError, Request
from weft_router.wire.limits import WireLimits
from weft_router.wire.request import RequestReader
from weft_router.wire.sse import EventSplitter, payload

LIMITS = WireLimits(max_body=2**20)


def read(raw: bytes, *, step: int = 0) -> tuple[list[Request], int]:
    """Read bytes, whole or some at a time; return the requests, and the status of a refusal."""
    reader = RequestReader(LIMITS)
    requests: list[Request] = []
    try:
        step = step or len(raw) or 1
        for at in range(0, len(raw), step):
            requests += reader.feed(raw[at : at + step])
    except FramingError as error:
        return requests, error.error.status
    return requests, reader.failure.error.status if reader.failure is not None else 0


class LlHttp:
    """The requests as llhttp reads them."""

    def __init__(self, raw: bytes) -> None:
        self.requests: list[tuple[str, bytes, bytes]] = []
        self._url = b""
        self._body = b""
        self._parser = httptools.HttpRequestParser(self)
        with contextlib.suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._parser.feed_data(raw)

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self._url += url

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Note a request."""
        self.requests.append((self._parser.get_method().decode(), self._url, self._body))
        self._url = self._body = b""


def by_h11(raw: bytes) -> tuple[str, bytes, bytes] | None:
    """Return the first request as h11 reads it; None when it refuses it."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=2**20)
    connection.receive_data(raw)
    method, target, body = "", b"", b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                method, target = event.method.decode(), event.target
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return method, target, body
            else:
                return None
    except h11.RemoteProtocolError:
        return None


def target(request: Request) -> bytes:
    """Return a request's target as it was sent, bar an empty query."""
    return (request.path + ("?" + request.query if request.query else "")).encode()


def requests_are_read_alike(raw: bytes, *, step: int) -> None:
    """Check that cuts change nothing, and that llhttp and h11 see the requests that we see, or refuse them.

    Raises:
        AssertionError: a difference.
    """
    requests, status = read(raw)
    assert read(raw, step=step or 1)[0] == requests
    if not requests or any("upgrade" in request.headers for request in requests):
        return  # llhttp reads no body after an offer of another protocol, which we pass over
    ours = [(request.method, target(request), request.body) for request in requests]
    theirs = LlHttp(raw).requests
    assert theirs[: len(ours)] == ours[: len(theirs)]
    assert by_h11(raw) in (ours[0], None)
    assert len(theirs) <= len(ours) or status or not requests[-1].keep_alive


def events_are_cut_alike(raw: bytes, *, step: int) -> list[bytes]:
    """Check that no byte of a stream is lost or moved, however it comes; return its whole events.

    Raises:
        AssertionError: a byte or an event is not the same.
    """
    splitter = EventSplitter()
    events = splitter.feed(raw)
    assert b"".join(events) + splitter.rest == raw
    pieces = EventSplitter()
    step = step or 1
    cut = [event for at in range(0, len(raw), step) for event in pieces.feed(raw[at : at + step])]
    assert (cut, pieces.rest) == (events, splitter.rest)
    for event in events:
        assert event.endswith((b"\n\n", b"\n\r\n"))
        assert b"\n\n" not in event[:-2]
        assert b"\n\r\n" not in event[:-3]
        payload(event)
    return events
