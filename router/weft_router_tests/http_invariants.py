"""What must hold for any bytes: of requests, read as two other parsers read them; of events, not a byte lost.

The property tests and the fuzz targets (router/fuzz) share these.
"""

import contextlib

import h11
import httptools

from weft_router.http.head import FramingError, Request
from weft_router.http.head_cache import HeadReader
from weft_router.http.limits import HttpLimits
from weft_router.http.request import RequestReader
from weft_router.http.response import ResponseReader
from weft_router.http.sse import EventSplitter, payload
from weft_router.http.whole_response import WholeResponseReader

LIMITS = HttpLimits(max_body=2**20)


def read(raw: bytes, *, step: int = 0, forget: bool = False) -> tuple[list[Request], int]:
    """Read bytes, whole or some at a time; return the requests, and the status of a refusal.

    With ``forget`` and steps of one byte no request is read by what is known of the one before.
    """
    reader = RequestReader(LIMITS)
    requests: list[Request] = []
    try:
        step = step or len(raw) or 1
        for at in range(0, len(raw), step):
            found = reader.feed(raw[at : at + step])
            for request in found:
                request.credential_cache = None  # which say nothing of the request
            requests += found
            if found and forget:
                reader._heads = HeadReader()
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
        self.requests.append((self._parser.get_method().decode(), without_empty_query(self._url), self._body))
        self._url = self._body = b""


def by_h11(raw: bytes) -> tuple[str, bytes, bytes] | None:
    """Return the first request as h11 reads it; None when it refuses it."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=2**20)
    connection.receive_data(raw)
    method, url, body = "", b"", b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                method, url = event.method.decode(), without_empty_query(event.target)
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return method, url, body
            else:
                return None
    except h11.RemoteProtocolError:
        return None


def without_empty_query(url: bytes) -> bytes:
    """Return a target without the question mark that nothing follows."""
    return url[:-1] if url.find(b"?") == len(url) - 1 else url


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
    anew, refusal = read(raw, step=1, forget=True)
    # Of two faults the one that is found first is told, and cuts decide which that is.
    assert (anew, bool(refusal)) == (requests, bool(status))
    if not requests or any("upgrade" in request.headers for request in requests):
        return  # llhttp reads no body after an offer of another protocol, which we pass over
    ours = [(request.method, target(request), request.body) for request in requests]
    theirs = LlHttp(raw).requests
    assert theirs[: len(ours)] == ours[: len(theirs)]
    assert by_h11(raw) in (ours[0], None)
    assert len(theirs) <= len(ours) or status or not requests[-1].keep_alive


class Taken:
    """A response as llhttp reads it, or as it was read plainly."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Take the head."""
        self.status, self.headers = status, headers

    def data(self, chunk: bytes) -> None:
        """Take a piece of the body."""
        self.body += chunk


def responses_are_read_alike(raw: bytes) -> bool:
    """Check that a response that is read plainly is what llhttp and h11 read; tell whether it was.

    Raises:
        AssertionError: a difference.
    """
    plain_reader = WholeResponseReader()
    plain = plain_reader.read(raw)
    assert plain_reader.read(raw) == plain
    if plain is None:
        return False
    taken, reader = Taken(), ResponseReader(WholeResponseReader())
    reader.expect(taken)
    for byte in raw:  # so that llhttp reads it
        reader.feed(bytes([byte]))
    headers = {**plain[1], "content-length": str(len(plain[2]))}
    assert (taken.status, taken.headers, taken.body) == (plain[0], headers, plain[2])
    assert (reader.complete, reader.keeps) == (True, True)
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=2**20)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "a"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(raw)
    events = [connection.next_event() for _ in range(3 if plain[2] else 2)]
    first = events[0]
    assert isinstance(first, h11.Response)
    assert {name.decode(): value.decode() for name, value in first.headers} == headers
    assert b"".join(event.data for event in events if isinstance(event, h11.Data)) == plain[2]
    assert isinstance(events[-1], h11.EndOfMessage)
    return True


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
