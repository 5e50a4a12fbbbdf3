"""Write to a client, who has the beginning of an answer, the rest of it from an engine that generates it again."""

from time import monotonic
from typing import Final

from weft_router.http.exchange import PausableSource
from weft_router.http.sse import EventSplitter
from weft_router.http.upstream_request import UpstreamRequest
from weft_router.openai.regeneration import Regeneration
from weft_router.openai.reply import Reply
from weft_router.rounds.response_relay import KEEP_ALIVE
from weft_router.rounds.response_writer import ResponseWriter

DIVERGED: Final = "diverged"
SILENCE_S: Final = 10.0
"""After so long without anything that the client lacks, it gets a comment, so that no proxy ends the stream."""


class RegenerationWriter(ResponseWriter):
    """The client's writer for further attempts: each is to it like a first one, and its response goes on."""

    __slots__ = ("_client", "_events", "_regeneration", "_source", "_wrote", "failure")

    def __init__(self, client: ResponseWriter, sent: Reply) -> None:
        super().__init__(client.exchange, client.shown)
        self._client = client
        self._regeneration = Regeneration(sent)
        self._events = EventSplitter()
        self._source: PausableSource | None = None
        self._wrote = monotonic()
        self.failure = ""
        """Why the answer cannot go on like this."""

    def restart(self) -> None:
        """Begin again, with another engine."""
        self.headers_sent = False
        self._regeneration.restart()
        self._events = EventSplitter()

    def whole(self, status: int, body: bytes, lines: str, *, content_type: str = "application/json") -> None:
        """Take a response that is no stream, which is none to go on with."""
        del status, body, lines, content_type
        self.failure = "engine-error"

    def begin(self, lines: str) -> None:
        """Begin; the client's stream began with the first attempt."""
        del lines
        self.headers_sent = True

    def write(self, data: bytes) -> None:
        """Send what the client does not have."""
        if self.failure:
            return
        fresh = b"".join([self._regeneration.filter(event) for event in self._events.feed(data)])
        now = monotonic()
        if not fresh and now - self._wrote > SILENCE_S:
            fresh = KEEP_ALIVE
        if fresh:
            self._wrote = now
            self._client.write(fresh)
        if self._regeneration.diverged:
            self.failure = DIVERGED
            if isinstance(self._source, UpstreamRequest):
                self._source.fail(DIVERGED)

    def end(self, data: bytes = b"") -> None:
        """End the stream, unless its end is an error."""
        self.write(data)
        if not self.failure:
            self._client.end()

    def set_source(self, source: PausableSource | None) -> None:
        """Set the source that is paused while the client does not read."""
        self._source = source
        self._client.set_source(source)
