"""One HTTP request of a proxy, from its headers to the end of its answer, as its external processor sees it.

No gRPC and no sockets: messages come in by ``receive`` and go out by ``emit``. The request becomes an exchange like any
other, which the server serves; ``send`` is called for the round that the proxy is to carry to a worker.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, MutableMapping
from time import monotonic
from typing import Protocol

from weft_router.errors import ApiError, TooLargeError, no_room
from weft_router.http.budget import COPIES, EACH, Budget
from weft_router.http.exchange import Exchange
from weft_router.http.head import FramingError, Peer, Request
from weft_router.http.limits import HttpLimits
from weft_router.picker.answer import AnswerWriter
from weft_router.picker.headers import DESTINATION, refused_request, removed_of_request, request_of
from weft_router.picker.messages import (
    BodyPart,
    BodyReply,
    Fields,
    HeadersPart,
    HeadersReply,
    Modes,
    Mutation,
    Received,
    Reply,
    TrailersPart,
    TrailersReply,
    WholeBodyReply,
    pieces,
)
from weft_router.picker.proxied_attempt import TICK_S, ProxiedAttempt
from weft_router.picker.transport import ProxyTransport
from weft_router.roles.relay import RelayedResponse

log = logging.getLogger(__name__)


ProxyRequests = MutableMapping[Exchange, "ProxyRequest"]


class RequestHost(Protocol):
    """The server, as far as a request needs it."""

    budget: Budget

    @property
    def wire(self) -> HttpLimits:
        """Return the bounds on requests."""

    def gate_public(self, request: Request, peer: Peer, *, body: bool) -> ApiError | None:
        """Return why a request is refused by its headers; None if it is not."""

    def serve(self, exchange: Exchange) -> Coroutine[None, None, None]:
        """Serve a request."""

    def refused(self, exchange: Exchange, error: ApiError) -> None:
        """Answer a request that is not served."""


class ProxyRequest:
    """The state of one request; ``requests`` has it while its round may be sent through the proxy."""

    def __init__(self, host: RequestHost, *, requests: ProxyRequests, emit: Callable[[Reply], None]) -> None:
        self._host = host
        self._requests = requests
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._answer = AnswerWriter(emit, most=host.wire.max_body)
        self._transport = ProxyTransport(self._answer, host.budget, shed=self._shed)
        self._modes = Modes()
        self.subset: frozenset[str] | None = None
        """The endpoints that the proxy allows; None where it allows all."""
        self._fields: Fields = ()
        self._request: Request | None = None
        """The request while it is not whole."""
        self._body: list[bytes] = []
        self._size = 0
        self._began = self._heard = monotonic()
        """When the request began, and when the last piece of its body came."""
        self._trailers = False
        """Whether the request has trailers."""
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.attempt = ProxiedAttempt()
        """What takes the worker's answer."""

    # The proxy's side.

    def receive(self, message: Received) -> None:
        """Take a message of the proxy."""
        part = message.part
        if message.modes is not None:
            self._modes = message.modes
        if message.subset is not None:
            self.subset = message.subset
        if part.side == "response":
            self._response(part)
        elif isinstance(part, HeadersPart):
            self._request_head(part)
        elif isinstance(part, BodyPart):
            self._request_body(part)
        elif self._request is not None:
            self._trailers = True
            self._serve()
        elif self._modes.request == "buffered":
            self._emit(TrailersReply("request"))

    def lost(self) -> None:
        """Handle the end of the proxy's stream; an unfinished request ends with it."""
        self._stop_timer()
        self._request = None
        exchange = self._exchange
        if exchange is not None and not exchange.ended:
            exchange.gone = True
            self._requests.pop(exchange, None)
            if self._task is not None:
                self._task.cancel()
        self._transport.give_all()

    def pause_answer(self, *, full: bool) -> None:
        """Have the answer wait while the proxy does not read, or go on."""
        self._transport.pause(full=full)

    # The worker's side.

    def takes(self, endpoint: str) -> bool:
        """Return whether the proxy can reach an endpoint."""
        return self.subset is None or endpoint in self.subset

    def send(self, endpoint: str, fields: Fields, body: bytes, relayed: RelayedResponse) -> None:
        """Have the proxy send a request to an endpoint; ``relayed`` takes the answer."""
        self.attempt.begin(relayed)
        fields = (*fields, (DESTINATION, endpoint))
        if self._modes.request == "buffered":
            fields = (*fields, ("content-length", str(len(body))))
            removed = removed_of_request(self._fields, fields)
            self._emit(WholeBodyReply(body, Mutation(fields, removed, endpoint)))
            return
        self._emit(HeadersReply("request", Mutation(fields, removed_of_request(self._fields, fields), endpoint)))
        parts = pieces(body)
        for part in parts[:-1]:
            self._emit(BodyReply("request", part))
        self._emit(BodyReply("request", parts[-1], end=not self._trailers))
        if self._trailers:
            self._emit(TrailersReply("request"))

    # Within: the request.

    def _request_head(self, part: HeadersPart) -> None:
        if self._fields or self._exchange is not None:
            return  # a stream has one request
        self._fields = part.fields
        obstacle = self._modes.obstacle()
        if obstacle is not None:
            log.error("proxy_misconfigured", extra={"reason": obstacle})
            error = ApiError(
                f"this gateway's endpoint picker cannot serve: {obstacle}", status=500, kind="server_error"
            )
            self._refuse(refused_request(part.fields), error)
            return
        try:
            request = request_of(part.fields, max_body=self._host.wire.max_body)
        except FramingError as framing:
            self._refuse(refused_request(part.fields), framing.error)
            return
        refusal = self._host.gate_public(request, self._transport.peer, body=not part.end)
        if refusal is not None:
            self._refuse(request, refusal)
            return
        self._request = request
        if part.end:
            self._serve()
            return
        self._timer = self._loop.call_later(TICK_S, self._check_body)
        if self._modes.request == "buffered":
            self._emit(HeadersReply("request"))

    def _request_body(self, part: BodyPart) -> None:
        request = self._request
        if request is None:
            return  # it was refused
        self._size += len(part.data)
        self._heard = monotonic()
        if self._size > self._host.wire.max_body:
            self._refuse(request, TooLargeError(self._host.wire.max_body))
            return
        if not self._transport.memory.keep(self._size, self._transport):
            self._refuse(request, no_room())
            return
        self._body.append(part.data)
        if part.end or self._modes.request == "buffered":
            self._serve()

    def _serve(self) -> None:
        """Serve the request, which has come whole."""
        self._stop_timer()
        request, self._request = self._request, None
        if request is None:
            return
        request.body = b"".join(self._body)
        self._body.clear()
        transport = self._transport
        if self._size:
            transport.memory.keep(0, transport)
        if not transport.hold(EACH + COPIES * len(request.body)):
            self._refuse(request, no_room())
            return
        exchange = self._exchange = self._open(request)
        self._requests[exchange] = self
        self._task = self._loop.create_task(self._run(exchange))

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._host.serve(exchange)
        except Exception:
            log.exception("handler_failed")
        finally:
            self._requests.pop(exchange, None)
            exchange.abort()  # unless it has ended

    def _refuse(self, request: Request, error: ApiError) -> None:
        self._stop_timer()
        self._request = None
        self._body.clear()
        exchange = self._exchange = self._open(request)
        self._host.refused(exchange, error)

    def _open(self, request: Request) -> Exchange:
        exchange = self._transport.exchange = Exchange(self._transport, request)
        return exchange

    def _shed(self) -> None:
        if self._request is not None:
            self._refuse(self._request, no_room())

    def _check_body(self) -> None:
        """Refuse a body that does not arrive fast enough."""
        request, wire = self._request, self._host.wire
        if request is None:
            return
        now = monotonic()
        rate = wire.min_body_rate
        slow = rate > 0 and now - self._began > wire.body_s + self._size / rate
        if slow or now - self._heard > wire.body_s:
            text = f"the request body did not arrive at {rate:g} bytes a second"
            self._refuse(request, ApiError(text, status=408))
            return
        self._timer = self._loop.call_later(TICK_S, self._check_body)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Within: the worker's answer.

    def _response(self, part: HeadersPart | BodyPart | TrailersPart) -> None:
        if isinstance(part, HeadersPart):
            self._answer.response_head(part.fields, end=part.end)
        self.attempt.take(part)
        if isinstance(part, TrailersPart):
            self._answer.response_end(trailers=True)
        elif isinstance(part, BodyPart) and part.end:
            self._answer.response_end(trailers=False)
