"""A server's connection as clients use and misuse it: keep-alive, pipelines, half closes, ends."""

import asyncio
import contextlib
import gc
import logging

import pytest

from weft_router.errors import ApiError
from weft_router.http.exchange import Exchange
from weft_router.http.head import Peer, Request
from weft_router.http.limits import HttpLimits
from weft_router_tests.http_kit import QUICK, Client, connected, echo, listening, on_uvloop, until

pytestmark = pytest.mark.component

GET = b"GET /x?y HTTP/1.1\r\nHost: a\r\n\r\n"


def post(body: bytes, more: bytes = b"") -> bytes:
    return b"POST /x HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n%b" % (more, len(body), body)


@on_uvloop
async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with listening(echo) as listener, connected(listener.port) as client:
        for n in range(5):
            await client.send(post(b"%d" % n))
            assert await client.response() == (200, b"POST /x  %d" % n)
        assert len(listener.connections) == 1


@on_uvloop
async def test_who_is_accepted_when_all_were_cut_off_is_cut_off_too() -> None:
    async with listening(echo) as listener:
        listener.connections.abort()
        async with connected(listener.port) as client:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(client.reader.read(), 3) == b"", "not only once it is idle for long"
        await until(lambda: len(listener.connections) == 0)


@on_uvloop
async def test_nothing_is_kept_of_a_request_that_was_answered() -> None:
    served: list[Exchange] = []

    async def serve(exchange: Exchange) -> None:
        served.append(exchange)
        await echo(exchange)

    async with listening(serve) as listener, connected(listener.port) as client:
        await client.send(post(b"x" * 1000))
        await client.response()
        assert [held is served for held in gc.get_referrers(served[0])] == [True]


@on_uvloop
async def test_a_request_may_come_a_byte_at_a_time() -> None:
    async with listening(echo) as listener, connected(listener.port) as client:
        for byte in post(b"hello") + GET:
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert await client.response() == (200, b"POST /x  hello")
        assert await client.response() == (200, b"GET /x y ")


@on_uvloop
async def test_pipelined_requests_are_answered_in_order() -> None:
    async with listening(echo) as listener, connected(listener.port) as client:
        await client.send(b"".join(post(b"%d" % n) for n in range(8)) + GET[:10])
        for n in range(8):
            assert await client.response() == (200, b"POST /x  %d" % n)
        await client.send(GET[10:])
        assert await client.response() == (200, b"GET /x y ")


@on_uvloop
async def test_a_client_that_floods_is_answered_once_and_ended() -> None:
    gate = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await gate.wait()
        await echo(exchange)

    async with listening(slow, HttpLimits(max_pipelined=4)) as listener, connected(listener.port) as client:
        await client.send(post(b"0") * 6)
        await client.send(post(b"1") * 100)
        gate.set()
        status, headers = await client.head()
        assert (status, headers["connection"]) == (200, "close")
        assert b"HTTP/1.1" not in await client.rest()


@on_uvloop
async def test_bodies_that_wait_are_bounded_together() -> None:
    gate = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await gate.wait()
        await echo(exchange)

    async with listening(slow, HttpLimits(max_body=10_000)) as listener, connected(listener.port) as client:
        await client.send(post(b"0"))
        await client.send(post(b"x" * 9_000) * 3)
        gate.set()
        status, headers = await client.head()
        assert (status, headers["connection"]) == (200, "close")


@on_uvloop
async def test_a_handler_ends_when_its_client_goes() -> None:
    ended: list[bool] = []

    async def slow(exchange: Exchange) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(exchange.gone)

    async with listening(slow) as listener:
        for leave in (Client.close, Client.abort, lambda client: client.writer.write_eof()):
            async with connected(listener.port) as client:
                await client.send(GET)
                await until(lambda: any(c.busy for c in listener.connections._live))
                leave(client)
                await until(lambda: not listener.connections._live, 0.5)
        assert ended == [True] * 3


@on_uvloop
async def test_a_client_that_goes_while_much_waits_for_it_or_behind_it_is_missed() -> None:
    ended: list[bool] = []

    async def endless(exchange: Exchange) -> None:
        exchange.begin(200, content_type="text/plain")
        try:
            while True:
                exchange.write(b"x" * 65536)
                await asyncio.sleep(0.001)
        finally:
            ended.append(exchange.gone)

    async with listening(endless, HttpLimits(max_pipelined=2)) as listener, connected(listener.port) as client:
        await client.send(GET * 50)
        await until(lambda: any(c.full for c in listener.connections._live))
        client.close()
        await until(lambda: ended == [True], 0.5)


@on_uvloop
async def test_a_source_that_comes_when_the_client_is_behind_waits_at_once() -> None:
    told: list[str] = []

    class Noted:
        def pause(self) -> None:
            told.append("pause")

        def resume(self) -> None:
            told.append("resume")

    async def late(exchange: Exchange) -> None:
        exchange.begin(200, content_type="text/plain")
        exchange.write(b"x" * 8_000_000)
        exchange.source = Noted()
        await until(lambda: told == ["pause", "resume"])
        exchange.end()

    async with listening(late) as listener, connected(listener.port) as client:
        await client.send(GET)
        await until(lambda: bool(told))
        assert told == ["pause"]
        status, body = await client.response()
        assert (status, len(body), told) == (200, 8_000_000, ["pause", "resume"])


@on_uvloop
async def test_what_was_answered_reaches_a_client_that_ended_its_side() -> None:
    async def big(exchange: Exchange) -> None:
        exchange.reply(200, b"x" * 4_000_000)

    async with listening(big) as listener, connected(listener.port) as client:
        await client.send(GET)
        await until(lambda: any(c.full or not c.busy for c in listener.connections._live))
        client.writer.write_eof()
        status, body = await client.response()
        assert (status, len(body)) == (200, 4_000_000)


@on_uvloop
async def test_a_body_is_asked_for_when_its_client_waits() -> None:
    async with listening(echo) as listener, connected(listener.port) as client:
        await client.send(post(b"hello", b"Expect: 100-continue\r\n")[:-5])
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"hello")
        assert await client.response() == (200, b"POST /x  hello")


@on_uvloop
async def test_a_waiting_body_is_asked_for_after_the_answer_before_it() -> None:
    gate = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await gate.wait()
        await echo(exchange)

    async with listening(slow) as listener, connected(listener.port) as client:
        await client.send(post(b"one") + post(b"two", b"Expect: 100-continue\r\n")[:-3])
        gate.set()
        assert await client.response() == (200, b"POST /x  one")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"two")
        assert await client.response() == (200, b"POST /x  two")


@on_uvloop
async def test_a_gate_refuses_before_the_body_and_the_client_reads_why() -> None:
    def gate(request: Request, _: Peer) -> ApiError | None:
        return ApiError("no", status=401) if request.headers.get("authorization") is None else None

    async with listening(echo, QUICK, gate=gate) as listener:
        async with connected(listener.port) as client:
            await client.send(post(b"hello", b"Expect: 100-continue\r\n")[:-5])
            status, headers = await client.head()
            assert (status, headers["connection"]) == (401, "close")
        async with connected(listener.port) as client:
            client.writer.write(post(b"x" * 60_000))
            assert (await client.response())[0] == 401
            assert await client.rest() == b""


@on_uvloop
async def test_a_refused_upload_is_read_on_so_that_its_client_hears_of_it() -> None:
    async with listening(echo, HttpLimits(max_body=1000)) as listener, connected(listener.port) as client:
        await client.send(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n")
        for _ in range(20):
            await client.send(b"x" * 1_000_000)
        status, body = await client.response()
        assert status == 413
        assert b"1000 bytes" in body


@on_uvloop
async def test_http10_is_answered_as_it_asks() -> None:
    async with listening(echo) as listener:
        async with connected(listener.port) as client:
            await client.send(b"GET /x HTTP/1.0\r\n\r\n")
            raw = await client.rest()
            assert raw.startswith(b"HTTP/1.1 200 ")
            assert b"Connection: close\r\n" in raw
        async with connected(listener.port) as client:
            for _ in range(2):
                await client.send(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
                status, headers = await client.head()
                assert (status, headers["connection"]) == (200, "keep-alive")
                await client.reader.readexactly(int(headers["content-length"]))


@on_uvloop
async def test_a_stream_to_http10_ends_with_the_connection_and_head_gets_no_body() -> None:
    async def stream(exchange: Exchange) -> None:
        exchange.begin(200, content_type="text/plain")
        exchange.write(b"one ")
        exchange.end(b"two")

    async with listening(stream) as listener:
        async with connected(listener.port) as client:
            await client.send(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert (await client.rest()).endswith(b"Connection: close\r\n\r\none two")
        async with connected(listener.port) as client:
            await client.send(b"HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await client.rest()).endswith(b"Connection: close\r\n\r\n")
        async with connected(listener.port) as client:
            await client.send(GET * 2)
            assert await client.response() == (200, b"one two")
            assert await client.response() == (200, b"one two")


@on_uvloop
async def test_head_gets_the_length_alone() -> None:
    async with listening(echo) as listener, connected(listener.port) as client:
        await client.send(b"HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n" + GET)
        assert (await client.head())[1]["content-length"] == "9"
        assert await client.response() == (200, b"GET /x y ")


@on_uvloop
async def test_an_offer_of_another_protocol_is_passed_over() -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    async with listening(echo) as listener, connected(listener.port) as client:
        await client.send(post(b"hello", offer))
        assert await client.response() == (200, b"POST /x  hello")
        await client.send(GET)
        assert await client.response() == (200, b"GET /x y ")


@on_uvloop
async def test_what_follows_a_last_request_is_dropped() -> None:
    async with listening(echo) as listener, connected(listener.port) as client:
        await client.send(b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" + GET)
        assert (await client.rest()).count(b"HTTP/1.1 200") == 1


@on_uvloop
async def test_good_requests_before_a_bad_one_are_answered_and_end_the_connection() -> None:
    async with listening(echo) as listener, connected(listener.port) as client:
        await client.send(GET + b"BAD\r\n\r\n" + GET)
        status, headers = await client.head()
        assert (status, headers["connection"]) == (200, "close")
        assert b"HTTP/1.1" not in await client.rest()


@on_uvloop
async def test_a_handler_that_breaks_ends_its_connection_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(exchange: Exchange) -> None:
        if exchange.method == "GET":
            raise KeyError("x")
        if exchange.body == b"silent":
            return
        await echo(exchange)

    async with listening(broken) as listener, connected(listener.port) as other:
        for request in (GET, post(b"silent")):
            async with connected(listener.port) as client:
                await client.send(request)
                assert await client.rest() in (b"", b"RST")
        await other.send(post(b"fine"))
        assert (await other.response())[0] == 200
    assert [r.message for r in caplog.records if r.levelno >= logging.ERROR] == ["handler_failed"]


@on_uvloop
async def test_an_answer_is_given_once_and_writes_after_it_are_dropped() -> None:
    caught: list[str] = []

    async def twice(exchange: Exchange) -> None:
        exchange.reply(200, b"one")
        exchange.write(b"more")
        exchange.end()
        exchange.abort()
        with pytest.raises(RuntimeError, match="answered twice"):
            exchange.reply(200, b"two")
        with pytest.raises(RuntimeError, match="answered twice"):
            exchange.begin(200, content_type="text/plain")
        caught.append(exchange.path)

    async with listening(twice) as listener, connected(listener.port) as client:
        await client.send(GET)
        assert await client.response() == (200, b"one")
        await client.send(GET)
        assert await client.response() == (200, b"one")
        await until(lambda: len(caught) == 2)


@on_uvloop
async def test_an_empty_piece_does_not_end_a_stream() -> None:
    async def stream(exchange: Exchange) -> None:
        exchange.begin(200, content_type="text/plain")
        exchange.write(b"")
        exchange.write(b"one")
        exchange.write(b"")
        exchange.write(b"two")
        exchange.end()

    async with listening(stream) as listener, connected(listener.port) as client:
        await client.send(GET)
        assert await client.response() == (200, b"onetwo")


@on_uvloop
async def test_a_head_goes_out_without_waiting_for_the_first_piece() -> None:
    gate = asyncio.Event()

    async def stream(exchange: Exchange) -> None:
        exchange.begin(200, content_type="text/plain")
        await gate.wait()
        exchange.end(b"x")

    async with listening(stream) as listener, connected(listener.port) as client:
        await client.send(GET)
        assert (await client.head())[0] == 200
        gate.set()
        assert await client.chunk() == b"x"


@pytest.mark.parametrize("value", ["a\r\nX: b", "a\nX: b", "a\rX: b"])
@on_uvloop
async def test_a_header_cannot_carry_another(value: str) -> None:
    async def inject(exchange: Exchange) -> None:
        with pytest.raises(ValueError, match="line break"):
            exchange.reply(200, b"", headers={"X-A": value})
        with pytest.raises(ValueError, match="line break"):
            exchange.reply(200, b"", content_type=value)
        exchange.reply(200, b"clean")

    async with listening(inject) as listener, connected(listener.port) as client:
        await client.send(GET)
        assert await client.response() == (200, b"clean")


@on_uvloop
async def test_a_drain_lets_answers_end_and_idle_connections_close() -> None:
    gate = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await gate.wait()
        await echo(exchange)

    async with (
        listening(slow) as listener,
        connected(listener.port) as busy,
        connected(listener.port) as idle,
        connected(listener.port) as half,
    ):
        await busy.send(GET)
        await half.send(GET[:10])
        await until(lambda: len(listener.connections) == 3)
        await until(lambda: sum(c.busy for c in listener.connections._live) == 2)
        listener.connections.close_after_replies(idle=True)
        assert await idle.rest() == b""
        gate.set()
        await half.send(GET[10:])
        for client in (busy, half):
            status, headers = await client.head()
            assert (status, headers["connection"]) == (200, "close")
            await client.rest()


@on_uvloop
async def test_a_stream_that_began_before_a_drain_leaves_its_connection_for_one_more_request() -> None:
    """Its head said that the connection is kept: a client that sends on it at once must not find it closed."""
    gate = asyncio.Event()

    async def stream(exchange: Exchange) -> None:
        exchange.begin(200, content_type="text/plain")
        exchange.write(b"one ")
        await gate.wait()
        exchange.write(b"two")
        exchange.end()

    async with listening(stream) as listener, connected(listener.port) as client:
        await client.send(GET)
        status, headers = await client.head()
        assert (status, headers.get("connection")) == (200, None)
        assert await client.chunk() == b"one "
        listener.connections.close_after_replies(idle=False)
        gate.set()
        assert [await client.chunk(), await client.chunk()] == [b"two", b""]
        await client.send(GET)
        status, headers = await client.head()
        assert (status, headers["connection"]) == (200, "close")
        assert await client.rest() == b"4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n"


@on_uvloop
async def test_clients_beyond_the_places_are_told_and_leave_them_to_the_others() -> None:
    async with listening(echo, HttpLimits(max_connections=3, linger_s=0.2, sweep_s=0.05)) as listener:
        async with connected(listener.port) as a, connected(listener.port) as b, connected(listener.port) as c:
            for client in (a, b, c):
                await client.send(GET)
                assert (await client.response())[0] == 200
            async with connected(listener.port) as over:
                over.writer.write(GET)
                status, headers = await over.head()
                assert (status, headers["retry-after"]) == (503, "1")
                assert len(await over.rest()) == int(headers["content-length"])
            await a.send(GET)
            assert (await a.response())[0] == 200
            assert listener.connections.cut["too many"] == 1
        await until(lambda: len(listener.connections) == 0)
        async with connected(listener.port) as client:
            await client.send(GET)
            assert (await client.response())[0] == 200
