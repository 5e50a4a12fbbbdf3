"""One request as an external processor sees it: whole bodies, refusals, what goes to the worker, what comes back."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_router.config import TimeoutsConfig
from weft_router.errors import ApiError, UnauthorizedError, UpstreamFailedError
from weft_router.http.budget import Budget
from weft_router.http.exchange import Exchange
from weft_router.http.head import Peer, Request
from weft_router.http.limits import HttpLimits
from weft_router.http.upstream_request import UpstreamRequest
from weft_router.openai.answers import reply_error
from weft_router.picker.messages import (
    Abort,
    BodyPart,
    BodyReply,
    Fields,
    HeadersPart,
    HeadersReply,
    ImmediateReply,
    Modes,
    Received,
    Reply,
    TrailersPart,
    TrailersReply,
    WholeBodyReply,
)
from weft_router.picker.proxy_request import ProxyRequest, ProxyRequests

HEAD: Fields = ((":method", "POST"), (":path", "/v1/chat/completions"), ("authorization", "Bearer k"))
DUPLEX = Modes()
BUFFERED = Modes("buffered", "full-duplex")
WORKER = "10.0.0.7:8080"
MOST = 1000
SENT: Fields = (("x-weft-session", "s"),)
STREAM: Fields = ((":status", "200"), ("content-type", "text/event-stream"), ("server", "weft"), ("x-weft-tokens", "1"))


class Relayed:
    """Takes a worker's answer, and passes it on as it is."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.leg = UpstreamRequest(first_s=60)
        self.status = 0

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.exchange.begin(status, content_type=headers.get("content-type", ""), headers={"X-Request-Id": "weft-1"})

    def data(self, chunk: bytes) -> None:
        if chunk == b"too long":
            self.leg.fail("reply-too-large")
        elif chunk == b"nonsense":
            raise ValueError("an event that is none")
        else:
            self.exchange.write(chunk)


class Host:
    """A server that does with a request what a test says."""

    def __init__(self, handler: Callable[[Exchange], Awaitable[None]]) -> None:
        self.budget = Budget(100_000)
        self.wire = HttpLimits(max_body=MOST, body_s=TimeoutsConfig().body)
        self.refusal: ApiError | None = None
        self.seen: list[bytes] = []
        self.cancelled = False
        self._handler = handler

    def gate_public(self, request: Request, peer: Peer, *, body: bool) -> ApiError | None:
        del request, peer, body
        return self.refusal

    async def serve(self, exchange: Exchange) -> None:
        self.seen.append(exchange.body)
        try:
            await self._handler(exchange)
        except ApiError as error:
            reply_error(exchange, error)
        except asyncio.CancelledError:
            self.cancelled = True
            if not exchange.gone:
                raise

    def refused(self, exchange: Exchange, error: ApiError) -> None:
        reply_error(exchange, error)


class Proxy:
    """A proxy's side of one request."""

    def __init__(self, handler: Callable[["Proxy", Exchange], Awaitable[None]], modes: Modes = DUPLEX) -> None:
        self.replies: list[Reply] = []
        self.host = Host(lambda exchange: handler(self, exchange))
        self.requests: ProxyRequests = {}
        self.request = ProxyRequest(self.host, requests=self.requests, emit=self.replies.append)
        self.modes: Modes | None = modes

    def give(self, part: HeadersPart | BodyPart | TrailersPart, subset: frozenset[str] | None = None) -> None:
        modes, self.modes = self.modes, None
        self.request.receive(Received(part, modes, subset))

    async def ask(self, *body: bytes, head: Fields = HEAD) -> None:
        """Send a whole request, and let what it starts run."""
        self.give(HeadersPart("request", head))
        for piece in body[:-1]:
            self.give(BodyPart("request", piece))
        self.give(BodyPart("request", body[-1], end=True))
        await turns()

    async def answer(self, fields: Fields, *body: bytes) -> None:
        """Show a worker's answer."""
        self.give(HeadersPart("response", fields))
        for piece in body[:-1]:
            self.give(BodyPart("response", piece))
        self.give(BodyPart("response", body[-1], end=True))
        await turns()

    def body(self, side: str) -> bytes:
        return b"".join(reply.data for reply in self.replies if isinstance(reply, BodyReply) and reply.side == side)

    @property
    def immediate(self) -> ImmediateReply:
        (found,) = [reply for reply in self.replies if isinstance(reply, ImmediateReply)]
        return found


async def turns() -> None:
    """Let all that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def carried(proxy: Proxy, exchange: Exchange) -> None:
    """Have the proxy send a request, and pass the worker's answer on."""
    relayed: Any = Relayed(exchange)
    proxy.request.send(WORKER, SENT, b'{"changed":1}', relayed)
    try:
        await relayed.leg
    except UpstreamFailedError as error:
        raise ApiError(error.reason, status=502) from error
    exchange.end(b"last")


async def unused(proxy: Proxy, exchange: Exchange) -> None:
    raise AssertionError("not to be served")


async def test_a_request_goes_to_the_worker_with_other_headers_and_another_body() -> None:
    proxy = Proxy(carried)
    await proxy.ask(b'{"a"', b":1}")
    assert proxy.host.seen == [b'{"a":1}']
    head, *rest = proxy.replies
    assert isinstance(head, HeadersReply)
    assert head.mutation.endpoint == WORKER
    assert head.mutation.fields == (*SENT, ("x-gateway-destination-endpoint", WORKER))
    assert head.mutation.removed == ("authorization",)
    assert rest == [BodyReply("request", b'{"changed":1}', end=True)]
    assert proxy.host.budget.used > 0


async def test_a_buffered_request_goes_on_with_its_length() -> None:
    proxy = Proxy(carried, BUFFERED)
    proxy.give(HeadersPart("request", HEAD))
    assert proxy.replies == [HeadersReply("request")]
    proxy.give(BodyPart("request", b"{}", end=True))
    await turns()
    whole = proxy.replies[1]
    assert isinstance(whole, WholeBodyReply)
    assert whole.data == b'{"changed":1}'
    assert dict(whole.mutation.fields)["content-length"] == "13"
    assert whole.mutation.endpoint == WORKER


async def test_trailers_of_a_request_go_on_after_its_body() -> None:
    proxy = Proxy(carried)
    proxy.give(HeadersPart("request", HEAD))
    proxy.give(BodyPart("request", b"{}"))
    assert not proxy.host.seen
    proxy.give(TrailersPart("request"))
    await turns()
    assert proxy.replies[1:] == [BodyReply("request", b'{"changed":1}'), TrailersReply("request")]


async def test_the_answer_takes_the_place_of_the_workers() -> None:
    proxy = Proxy(carried)
    await proxy.ask(b"{}")
    await proxy.answer(STREAM, b"data: 1\n\n", b"data: 2\n\n")
    head = proxy.replies[2]
    assert isinstance(head, HeadersReply)
    assert dict(head.mutation.fields) == {
        ":status": "200", "content-type": "text/event-stream", "x-request-id": "weft-1",
    }  # fmt: skip
    assert head.mutation.removed == ("x-weft-tokens",)
    assert proxy.body("response") == b"data: 1\n\ndata: 2\n\nlast"
    assert proxy.replies[-1] == BodyReply("response", b"", end=True)
    assert proxy.host.budget.used == 0
    assert not proxy.requests


async def test_an_answer_with_trailers_ends_with_trailers() -> None:
    proxy = Proxy(carried)
    await proxy.ask(b"{}")
    proxy.give(HeadersPart("response", STREAM))
    proxy.give(BodyPart("response", b"data: 1\n\n"))
    proxy.give(TrailersPart("response"))
    await turns()
    assert proxy.replies[-1] == TrailersReply("response")


async def test_a_refusal_by_the_headers_is_answered_at_once() -> None:
    proxy = Proxy(unused)
    proxy.host.refusal = UnauthorizedError("no key")
    proxy.give(HeadersPart("request", HEAD))
    reply = proxy.immediate
    assert reply.status == 401
    assert orjson.loads(reply.body)["error"]["message"] == "no key"
    assert dict(reply.fields)["content-type"] == "application/json"
    proxy.give(BodyPart("request", b"{}", end=True))
    await turns()
    assert len(proxy.replies) == 1


async def test_an_answer_without_a_worker_is_immediate() -> None:
    async def answered(proxy: Proxy, exchange: Exchange) -> None:
        exchange.begin(200, content_type="text/plain")
        exchange.write(b"a")
        exchange.end(b"b")

    proxy = Proxy(answered)
    proxy.give(HeadersPart("request", ((":method", "GET"), (":path", "/v1/models")), end=True))
    await turns()
    assert (proxy.immediate.status, proxy.immediate.body) == (200, b"ab")


async def test_a_body_that_is_too_long_is_refused_before_its_end() -> None:
    proxy = Proxy(unused)
    proxy.give(HeadersPart("request", HEAD))
    proxy.give(BodyPart("request", b"x" * (MOST + 1)))
    assert proxy.immediate.status == 413
    assert proxy.host.budget.used == 0


async def test_a_body_without_room_is_refused() -> None:
    proxy = Proxy(unused)
    proxy.host.budget.limit = 100
    proxy.give(HeadersPart("request", HEAD))
    proxy.give(BodyPart("request", b"x" * 200))
    assert proxy.immediate.status == 503
    assert proxy.host.budget.used == 0


async def test_a_proxy_that_keeps_the_answer_to_itself_cannot_be_served() -> None:
    proxy = Proxy(unused, Modes("full-duplex", "none"))
    proxy.give(HeadersPart("request", HEAD))
    assert proxy.immediate.status == 500
    assert b"response_body_mode" in proxy.immediate.body


@pytest.mark.parametrize(("status", "reason"), [("503", b"disconnected"), ("504", b"timeout")])
async def test_an_error_of_the_proxy_itself_is_a_failure_of_the_attempt(status: str, reason: bytes) -> None:
    proxy = Proxy(carried)
    await proxy.ask(b"{}")
    await proxy.answer(((":status", status), ("content-type", "text/plain")), b"upstream connect error")
    head = next(reply for reply in proxy.replies if isinstance(reply, HeadersReply) and reply.side == "response")
    assert dict(head.mutation.fields)[":status"] == "502"
    assert reason in proxy.body("response")
    assert b"upstream connect error" not in proxy.body("response")


@pytest.mark.parametrize("piece", [b"too long", b"nonsense"])
async def test_an_answer_that_cannot_be_taken_fails_alone(piece: bytes) -> None:
    proxy = Proxy(carried)
    await proxy.ask(b"{}")
    proxy.give(HeadersPart("response", STREAM))
    proxy.give(BodyPart("response", piece))
    await turns()
    proxy.give(BodyPart("response", b"data: 2\n\n", end=True))
    await turns()
    assert b"data: 2" not in proxy.body("response")
    assert isinstance(proxy.replies[-1], Abort), "the head was sent, so no error can replace it"


async def test_an_error_without_a_body_is_answered_at_once() -> None:
    proxy = Proxy(carried)
    await proxy.ask(b"{}")
    proxy.give(HeadersPart("response", ((":status", "503"),), end=True))
    await turns()
    assert proxy.immediate.status == 502


async def test_a_client_that_goes_away_ends_its_request() -> None:
    proxy = Proxy(carried)
    await proxy.ask(b"{}")
    proxy.request.lost()
    await turns()
    assert proxy.host.cancelled
    assert proxy.host.budget.used == 0
    assert not proxy.requests


async def test_a_proxy_that_goes_away_within_a_body_leaves_nothing() -> None:
    proxy = Proxy(unused)
    proxy.give(HeadersPart("request", HEAD))
    proxy.give(BodyPart("request", b"{}"))
    proxy.request.lost()
    await turns()
    assert proxy.host.budget.used == 0


async def test_reading_waits_while_the_client_does_not_read() -> None:
    proxy = Proxy(carried)
    await proxy.ask(b"{}")
    exchange = next(iter(proxy.requests))
    relayed: Any = Relayed(exchange)
    relayed.leg.attach(proxy.request.attempt)
    exchange.source = relayed.leg
    proxy.request.pause_answer(full=True)
    assert not proxy.request.attempt.may_read.is_set()
    proxy.request.pause_answer(full=False)
    assert proxy.request.attempt.may_read.is_set()


async def test_a_subset_limits_the_endpoints() -> None:
    proxy = Proxy(unused)
    proxy.give(HeadersPart("request", HEAD), frozenset({WORKER}))
    assert proxy.request.takes(WORKER)
    assert not proxy.request.takes("10.0.0.8:8080")


PARTS = st.one_of(
    st.builds(
        HeadersPart,
        st.sampled_from(["request", "response"]),
        st.sampled_from([HEAD, STREAM, (), ((":status", "503"),), ((":method", "GET"), (":path", "/x"))]),
        st.booleans(),
    ),
    st.builds(BodyPart, st.sampled_from(["request", "response"]), st.binary(max_size=2 * MOST), st.booleans()),
    st.builds(TrailersPart, st.sampled_from(["request", "response"])),
)


@given(
    st.lists(PARTS, max_size=12),
    st.sampled_from([DUPLEX, BUFFERED, Modes("streamed", "none"), Modes("full-duplex", "buffered")]),
)
async def test_messages_in_any_order_leave_nothing_behind(parts: list[Any], modes: Modes) -> None:
    proxy = Proxy(carried, modes)
    for part in parts:
        proxy.give(part)
        await asyncio.sleep(0)
    await turns()
    proxy.request.lost()
    await turns()
    assert proxy.host.budget.used == 0
    assert not proxy.requests
    assert sum(isinstance(reply, ImmediateReply | Abort) for reply in proxy.replies) <= 2
