"""Have another service, usually one with a smaller model, serve what this one refuses because it is overloaded."""

import logging
from typing import Final

from weft_router.config import RouterConfig
from weft_router.errors import SHUTTING_DOWN, UpstreamFailedError, stream_error
from weft_router.http.exchange import Exchange
from weft_router.http.header_lines import checked, header_lines
from weft_router.http.pool import ConnectionPool
from weft_router.http.sse import EventSplitter, EventTooLargeError
from weft_router.http.upstream_request import BufferedResponse, UpstreamRequest
from weft_router.openai.inference import RESPONSES, Inference
from weft_router.rounds.response_writer import ResponseWriter, WriterType
from weft_router.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

HEADER: Final = "x-weft-fallback"
"""In a request: the service that refused it; whoever gets it serves its own model and refuses without a fallback.
In an answer: the service that gave it."""
KEEPALIVE_S: Final = 30.0
_REQUEST_HEADERS: Final = ("authorization", "x-api-key", "x-session-id", "traceparent")
_ANSWER_HEADERS: Final = (
    "x-request-id", "x-weft-session", "x-weft-route", "x-weft-reason", "x-weft-worker", "x-weft-prefill-worker",
    "x-weft-output-cap",
)  # fmt: skip


class FallbackService:
    """The other service, as the live configuration names it; there may be none."""

    def __init__(self, config: RouterConfig, metrics: Metrics) -> None:
        self.service = config.service
        self.timeouts = config.timeouts
        self.most_bytes = config.limits.max_reply_bytes
        self.metrics = metrics
        self.pool = ConnectionPool(connect_s=config.timeouts.connect, keepalive_s=KEEPALIVE_S)
        self.reload(config)

    def reload(self, config: RouterConfig) -> None:
        """Follow another configuration; requests in progress keep theirs."""
        self._fallback = config.qos.fallback

    @property
    def is_configured(self) -> bool:
        """Return whether the configuration names another service."""
        return self._fallback is not None

    def request(self, exchange: Exchange, inference: Inference, form: WriterType) -> "FallbackRequest | None":
        """Return what the other service would be sent; None where it may not be asked. ``form`` writes its answer.

        It is not asked for what another service refused before, nor for the Responses API, whose earlier responses are
        with the service that gave them.
        """
        fallback, headers = self._fallback, exchange.headers
        if fallback is None or HEADER in headers or exchange.path == RESPONSES:
            return None
        sent: dict[str, str] = {name: headers[name] for name in _REQUEST_HEADERS if name in headers}
        return FallbackRequest(self, fallback.service, fallback.url, sent, exchange, inference, form)

    def terminate(self) -> None:
        """End the requests under way: this process shuts down."""
        self.pool.terminate(SHUTTING_DOWN)

    async def close(self) -> None:
        """Close the connections."""
        await self.pool.close()


class FallbackRequest:
    """One request that another service may serve."""

    def __init__(
        self, service: FallbackService, name: str, url: str, headers: dict[str, str], exchange: Exchange,
        inference: Inference, form: WriterType,
    ) -> None:  # fmt: skip
        self._service = service
        self._name = name
        self._url = url
        self._lines = header_lines({**headers, HEADER: service.service})
        self._form = form
        self._exchange = exchange
        self._inference = inference

    async def serve(self) -> bool:
        """Return whether the client has the other service's answer; False where that gave none, or an error."""
        exchange, service = self._exchange, self._service
        if exchange.headers_sent or exchange.ended:
            return False
        timeouts = service.timeouts
        if self._inference.stream:
            leg = UpstreamRequest(first_s=timeouts.first_byte, idle_s=timeouts.idle, total_s=timeouts.total)
        else:
            leg = UpstreamRequest(first_s=timeouts.total)
        writer = self._form(exchange, f"X-Weft-Fallback: {checked(self._name)}\r\n", None)
        answer = FallbackResponse(leg, writer, service.most_bytes)
        exchange.facts["fallback"] = self._name
        writer.set_source(leg)
        try:
            service.pool.send(
                leg,
                service.pool.origin(self._url),
                self._inference.path,
                self._inference.whole(),
                answer,
                lines=self._lines,
            )
            await leg
            status = answer.finish()
        except UpstreamFailedError as error:
            if not writer.headers_sent:
                self._failed("failed", error.reason)
                return False
            service.metrics.broken_streams.labels("fallback").inc()
            writer.write(stream_error(error.reason).event())
            writer.end()
            self._failed("failed", error.reason)
            return True
        finally:
            writer.set_source(None)
        if status != 200:
            self._failed("refused", f"status {status}")
            return False
        service.metrics.fallbacks.labels("served").inc()
        return True

    def _failed(self, result: str, reason: str) -> None:
        self._service.metrics.fallbacks.labels(result).inc()
        log.warning("fallback_failed", extra={"service": self._name, "reason": reason})


class FallbackResponse:
    """The other service's answer on its way to the client; an error is kept back."""

    def __init__(self, leg: UpstreamRequest, writer: ResponseWriter, limit: int) -> None:
        self._leg = leg
        self._writer = writer
        self._splitter = EventSplitter()
        self._whole = BufferedResponse(leg, limit)
        self._streams = False

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Take the head."""
        self._whole.head(status, headers)
        self._streams = status == 200 and headers.get("content-type", "").startswith("text/event-stream")

    def data(self, chunk: bytes) -> None:
        """Pass whole events on, so that a broken stream never ends within one."""
        if not self._streams:
            self._whole.data(chunk)
            return
        try:
            events = self._splitter.feed(chunk)
        except EventTooLargeError as error:
            self._leg.fail("reply-too-large", str(error))
            return
        if not events:
            return
        if not self._writer.headers_sent:
            self._writer.begin(self._shown())
        self._writer.write(b"".join(events))

    def finish(self) -> int:
        """End the client's answer if it is a good one; return its status.

        Raises:
            UpstreamFailedError: a stream ended early.
        """
        status, body = self._whole.status, self._whole.body
        if self._streams:
            if self._splitter.partial or not self._writer.headers_sent:
                raise UpstreamFailedError("cut-short")
            self._writer.end()
        elif status == 200:
            kind = self._whole.headers.get("content-type", "application/json")
            self._writer.whole(status, body, self._shown(), content_type=kind)
        return status

    def _shown(self) -> str:
        """Return the lines of its headers that are the client's, too."""
        headers = self._whole.headers
        return header_lines({name: headers[name] for name in _ANSWER_HEADERS if name in headers})
