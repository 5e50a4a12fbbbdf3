"""The way from a gateway to the coordinators of a service: a request goes on as it came, and so does its answer."""

import asyncio
import logging
from time import time
from typing import TYPE_CHECKING, Final, cast

from weft_router.auth.principal import Principal
from weft_router.errors import SHUTTING_DOWN, ApiError, UnavailableError, UpstreamFailedError, stream_error
from weft_router.gateway.served_service import ServedService
from weft_router.http.exchange import Exchange
from weft_router.http.header_lines import header_lines
from weft_router.http.pool import ConnectionPool
from weft_router.http.sse import EventSplitter
from weft_router.http.upstream_request import BufferedResponse, UpstreamRequest
from weft_router.openai.answers import MESSAGES
from weft_router.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from weft_router.gateway.hop_token import HopTokens  # whose library takes memory that not every gateway needs

log = logging.getLogger(__name__)

SERVICE_HEADER: Final = "x-weft-service"
TRIES: Final = 3
"""Of a request to which nobody connected: while coordinators are replaced, an address may lead nowhere for a moment."""
RETRY_S: Final = 0.1
_OF_CONNECTIONS: Final = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", "content-length", "content-type",
    }
)  # fmt: skip
"""Headers that hold for one connection, and those that are written for each."""
_OF_REQUESTS: Final = _OF_CONNECTIONS | {
    "host", "expect", "content-encoding", "accept-encoding", "origin", SERVICE_HEADER,
    "x-weft-authority", "x-weft-nonce", "x-weft-proof",
}  # fmt: skip
"""Headers of requests that end here: bodies are decoded, and browsers are answered here."""
_OF_ANSWERS: Final = _OF_CONNECTIONS | {"server", "date"}
_CREDENTIALS: Final = frozenset({"authorization", "x-api-key"})


class GatewayRelay:
    """Passes requests on. Without ``tokens`` services get their clients' own credentials."""

    def __init__(self, pool: ConnectionPool, *, tokens: "HopTokens | None", metrics: Metrics) -> None:
        self._pool = pool
        self._tokens = tokens
        self._metrics = metrics

    async def serve(self, exchange: Exchange, service: ServedService) -> None:
        """Have a request answered by a service.

        Raises:
            ApiError: nothing of an answer came.
        """
        path = f"{exchange.path}?{exchange.query}" if exchange.query else exchange.path
        lines = self.lines(exchange, service)
        exchange.facts["service"] = service.key
        for attempt in range(TRIES):
            leg = UpstreamRequest(first_s=service.total_s)
            answer = GatewayAnswer(exchange, leg, accepted=self._tokens is not None)
            exchange.source = leg
            self._pool.send(
                leg, self._pool.origin(service.url), path, exchange.body, answer, lines=lines, resend=True,
                method=exchange.method,
            )  # fmt: skip
            failure = await _failure_of(leg)
            exchange.source = None
            if failure is None or failure.reason != "connect" or attempt + 1 == TRIES:
                break
            await asyncio.sleep(RETRY_S)
        try:
            if failure is not None:
                self.count_failure(service, failure.reason)
                answer.fail(failure, service)
            elif answer.refused:
                self.count_failure(service, "refused")
                raise _not_accepted(service)
            else:
                answer.finish()
        except ApiError as error:
            self._count(service, error.status)
            raise
        self._count(service, exchange.status)

    async def ask(self, exchange: Exchange, service: ServedService, *, seconds: float) -> int:
        """Return the status of a service's answer to a request without a body; 0 where none came."""
        leg = UpstreamRequest(first_s=seconds)
        whole = BufferedResponse(leg, 2**16)
        origin, lines = self._pool.origin(service.url), self.lines(exchange, service)
        self._pool.send(leg, origin, exchange.path, b"", whole, lines=lines, resend=True, method=exchange.method)
        failure = await _failure_of(leg)
        if failure is not None:
            self.count_failure(service, failure.reason)
            return 0
        self._count(service, whole.status)
        return whole.status

    def count_failure(self, service: ServedService, reason: str) -> None:
        """Count and log that a service gave no good answer."""
        self._metrics.gateway.failures.labels(service.key, reason).inc()
        log.warning("service_failed", extra={"service": service.key, "reason": reason})

    def lines(self, exchange: Exchange, service: ServedService) -> str:
        """Return the header lines of a request that go on, with a credential that the service accepts."""
        headers = exchange.headers
        named = {name.strip().lower() for name in headers.get("connection", "").split(",")}
        passed = {name: value for name, value in headers.items() if name not in _OF_REQUESTS and name not in named}
        if self._tokens is not None:
            passed = {name: value for name, value in passed.items() if name not in _CREDENTIALS}
            principal = cast(Principal, exchange.admitted)
            passed["authorization"] = f"Bearer {self._tokens.of(principal, service.key, time())}"
        return header_lines(passed)

    def _count(self, service: ServedService, status: int) -> None:
        self._metrics.gateway.requests.labels(service.key, str(status or 499)).inc()


class GatewayAnswer:
    """A service's answer on its way to the client: streams by whole events, everything else as it comes."""

    def __init__(self, exchange: Exchange, leg: UpstreamRequest, *, accepted: bool) -> None:
        """With ``accepted`` the client is known here, and the service's 401 is about the gateway."""
        self._exchange = exchange
        self._leg = leg
        self._accepted = accepted
        self._splitter = EventSplitter()
        self._status = 0
        self._headers: dict[str, str] = {}
        self._streams = False
        self._first: bytes | None = None
        """The first piece of an answer that may be all of it: then its length can be said."""
        self.refused = False
        """Whether the service did not accept the gateway."""

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Take the head: from now on the request is not sent again, and nothing of it is kept."""
        self._status = status
        self._headers = headers
        self._streams = status == 200 and headers.get("content-type", "").startswith("text/event-stream")
        self.refused = self._accepted and status == 401
        exchange = self._exchange
        if "x-request-id" in headers:
            exchange.facts["request_id"] = headers["x-request-id"]
        if not self.refused:
            self._leg.again = None
            exchange.forget()

    def data(self, chunk: bytes) -> None:
        """Pass a piece on."""
        if self.refused:
            return
        exchange = self._exchange
        if self._streams:
            if self._splitter.partial or not chunk.endswith(b"\n\n"):
                chunk = b"".join(self._splitter.feed(chunk))
            if chunk:
                self._begin()
                exchange.write(chunk)
        elif exchange.headers_sent:
            exchange.write(chunk)
        elif self._first is None:
            self._first = chunk
        else:
            self._begin()
            exchange.write(self._first)
            exchange.write(chunk)

    def finish(self) -> None:
        """End the answer, all of which came."""
        exchange = self._exchange
        if self._streams:
            self._begin()
            exchange.end(stream_end(exchange, "cut-short") if self._splitter.partial else b"")
        elif exchange.headers_sent:
            exchange.end()
        else:
            kind = "" if self._status == 204 else self._headers.get("content-type", "")
            exchange.reply(self._status, self._first or b"", content_type=kind, lines=self._lines())

    def fail(self, failure: UpstreamFailedError, service: ServedService) -> None:
        """End an answer that broke off.

        Raises:
            ApiError: nothing of it was passed on.
        """
        exchange = self._exchange
        if not exchange.headers_sent:
            raise _no_answer(failure, service)
        if self._streams:
            exchange.end(stream_end(exchange, failure.reason))
        else:
            exchange.abort()

    def _begin(self) -> None:
        if not self._exchange.headers_sent:
            kind = self._headers.get("content-type", "")
            self._exchange.begin(self._status, content_type=kind, lines=self._lines())

    def _lines(self) -> str:
        """Return the lines of the headers that go on, with the names as people write them."""
        headers = self._headers
        named = {name.strip().lower() for name in headers.get("connection", "").split(",")}
        return header_lines(
            {name.title(): value for name, value in headers.items() if name not in _OF_ANSWERS and name not in named}
        )


async def _failure_of(leg: UpstreamRequest) -> UpstreamFailedError | None:
    """Wait for the end of a request; return why there is no whole answer, None where there is."""
    try:
        await leg
    except UpstreamFailedError as error:
        return error
    return None


def stream_end(exchange: Exchange, reason: str) -> bytes:
    """Return the event that ends a broken stream, in the form of the API that was asked."""
    error = stream_error(reason)
    if exchange.path.startswith(MESSAGES):
        return b"event: error\ndata: %b\n\n" % error.message_body()
    return error.event()


def _no_answer(failure: UpstreamFailedError, service: ServedService) -> ApiError:
    if failure.reason == "timeout":
        return ApiError(
            f"the service {service.key} did not answer within {service.total_s:.0f} s", status=504, kind="server_error"
        )
    if failure.reason == SHUTTING_DOWN:
        return UnavailableError("this gateway is shutting down; send the request again")
    return UnavailableError(
        f"the service {service.key} does not answer ({failure.reason}); try again in 2 s, or see `kubectl -n "
        f"{service.namespace} describe dis {service.name}`",
        retry_after_s=2,
    )


def _not_accepted(service: ServedService) -> ApiError:
    return ApiError(
        f"the service {service.key} does not accept this gateway; whoever runs it has to name the gateway in "
        "spec.coordinator.auth.jwt",
        status=502, kind="server_error", code="gateway_not_accepted",
    )  # fmt: skip
