"""Pass a client's request on to the coordinators: a gateway whose endpoint picker does not answer chose any worker."""

import logging
from typing import Final

from weft_router.config import RouterConfig
from weft_router.errors import SHUTTING_DOWN, ApiError, UpstreamFailedError, stream_error
from weft_router.http.exchange import Exchange
from weft_router.http.header_lines import header_lines
from weft_router.http.pool import ConnectionPool
from weft_router.http.sse import EventSplitter
from weft_router.http.upstream_request import BufferedResponse, UpstreamRequest

log = logging.getLogger(__name__)

KEEPALIVE_S: Final = 30.0
_HOP: Final = frozenset(
    {
        "connection", "content-length", "content-type", "expect", "host", "keep-alive", "te", "transfer-encoding",
        "upgrade",
    }
)  # fmt: skip
"""Headers of one connection, and that of the body, which is JSON."""
_ANSWER_HOP: Final = frozenset({*_HOP, "server"})


class Detour:
    """The way from a sidecar to the coordinators of its service; closed unless the live configuration opens it."""

    def __init__(self, config: RouterConfig) -> None:
        timeouts = config.timeouts
        self._first_s, self._idle_s, self._total_s = timeouts.first_byte, timeouts.idle, timeouts.total
        self._most_bytes = config.limits.max_reply_bytes
        self._pool = ConnectionPool(connect_s=timeouts.connect, keepalive_s=KEEPALIVE_S)
        self.reload(config)

    def reload(self, config: RouterConfig) -> None:
        """Follow another configuration; requests in progress keep theirs."""
        self._url = config.routing.fail_open_url

    @property
    def is_open(self) -> bool:
        """Return whether requests are passed on."""
        return bool(self._url)

    async def serve(self, exchange: Exchange) -> None:
        """Answer with the coordinator's answer, which authenticates the client and does all else.

        Raises:
            ApiError: no coordinator answered.
        """
        leg = UpstreamRequest(first_s=self._total_s, idle_s=self._idle_s, total_s=self._total_s)
        answer = DetourResponse(exchange, leg, self._most_bytes)
        lines = header_lines({name: value for name, value in exchange.headers.items() if name not in _HOP})
        path = f"{exchange.path}?{exchange.query}" if exchange.query else exchange.path
        exchange.facts["detour"] = True
        exchange.source = leg
        broken = ""
        try:
            self._pool.send(
                leg, self._pool.origin(self._url), path, exchange.body, answer, lines=lines, method=exchange.method
            )
            exchange.let_go()
            await leg
            answer.finish()
        except UpstreamFailedError as error:
            broken = error.reason
        finally:
            exchange.source = None
        if not broken:
            return
        log.warning("detour_failed", extra={"reason": broken})
        if exchange.headers_sent:
            exchange.end(stream_error(broken).event())
            return
        raise ApiError(
            f"neither an endpoint picker nor a coordinator answered ({broken}); try again", status=502,
            kind="server_error",
        )  # fmt: skip

    def terminate(self) -> None:
        """End the requests under way: this process shuts down."""
        self._pool.terminate(SHUTTING_DOWN)

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()


class DetourResponse:
    """A coordinator's answer on its way to the client."""

    def __init__(self, exchange: Exchange, leg: UpstreamRequest, limit: int) -> None:
        self._exchange = exchange
        self._whole = BufferedResponse(leg, limit)
        self._splitter = EventSplitter()
        self._streams = False

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Take the head."""
        self._whole.head(status, headers)
        self._streams = status == 200 and headers.get("content-type", "").startswith("text/event-stream")
        if self._streams:
            self._exchange.begin(status, content_type=headers["content-type"], lines=_lines(headers))

    def data(self, chunk: bytes) -> None:
        """Pass whole events on, so that an error event can follow a broken stream."""
        if not self._streams:
            self._whole.data(chunk)
            return
        events = self._splitter.feed(chunk)
        if events:
            self._exchange.write(b"".join(events))

    def finish(self) -> None:
        """End the answer, which has come whole.

        Raises:
            UpstreamFailedError: a stream ended within an event.
        """
        whole = self._whole
        if not self._streams:
            kind = whole.headers.get("content-type", "")
            self._exchange.reply(whole.status, whole.body, content_type=kind, lines=_lines(whole.headers))
        elif self._splitter.partial:
            raise UpstreamFailedError("cut-short")
        else:
            self._exchange.end()


def _lines(headers: dict[str, str]) -> str:
    return header_lines({name: value for name, value in headers.items() if name not in _ANSWER_HOP})
