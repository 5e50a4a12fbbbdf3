"""Hops prove themselves once per connection: impostors and relays get no request, strangers no answer."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import pytest

from weft_core.heartbeat import WorkerRecord
from weft_core.keys import derive
from weft_router.ask import ask
from weft_router.auth.hops import HANDSHAKE
from weft_router.errors import UpstreamFailedError
from weft_router.http.handshake import (
    AUTHORITY_HEADER,
    HELLO_PATH,
    NONCE_HEADER,
    PROOF_HEADER,
    PROVE_PATH,
    UnauthenticatedPeerError,
    fresh_nonce,
    proof_of,
)
from weft_router.http.pool import ConnectionPool
from weft_router.http.upstream_request import UpstreamRequest
from weft_router.state.readiness_probe import probe
from weft_router.state.store import MemoryStore
from weft_router_tests.stack import TOKEN, Stack, is_so, prove_self, proven, until

pytestmark = pytest.mark.component

PROMPT = "a prompt that nobody else may read"
HELLO: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
OPEN = {"/healthz", "/readyz", "/metrics", "/instance-id", "/engine/livez", "/engine/metrics", "/engine/prestop"}
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[object, object, None]]


def key(token: str = TOKEN) -> bytes:
    return derive(token.encode(), "hop")


def pool(*, hop_key: bytes | None = None, links: bool = False) -> ConnectionPool:
    return ConnectionPool(connect_s=2.0, keepalive_s=30.0, hop_key=hop_key or key(), links=links)


async def call(made: ConnectionPool, url: str, path: str = "/v1/models", method: str = "GET") -> int:
    answer = await made.call(UpstreamRequest(first_s=10), made.origin(url), path, limit=2**20, method=method)
    return answer.status


@dataclass
class Tap:
    """A way to a router process that notes all bytes of both directions."""

    port: int
    url: str = ""
    sent: bytearray = field(default_factory=bytearray)
    connections: int = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Tap"]:
        async with listening(self._serve) as self.url:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.port)

        async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(2**16):
                    self.sent += data
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(carry(reader, there_writer), carry(there_reader, writer))


@asynccontextmanager
async def listening(serve: Serve, port: int = 0) -> AsyncIterator[str]:
    """Listen on a port, or a free one; give its URL."""
    writers: set[asyncio.StreamWriter] = set()

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()
        writers.discard(writer)

    server = await asyncio.start_server(closing, "127.0.0.1", port)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await until(lambda: is_so(not writers))


async def test_connections_prove_themselves_once_and_serve_from_then_on(sidecars: Stack) -> None:
    await sidecars.up()
    made, running = pool(), sidecars.processes["d0"]
    for _ in range(3):
        assert await call(made, running.url) == 200
    assert made.idle == 1
    await made.close()


async def test_an_impostor_at_a_workers_address_gets_no_prompt_and_no_token(sidecars: Stack) -> None:
    await sidecars.up(decode=1, prefill=1)
    seen: list[bytes] = []

    async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer everything by 200, as a server that tries it on."""
        while data := await reader.read(2**16):
            seen.append(data)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nready\n")

    gone = sidecars.processes["d0"]
    record = sidecars.worker_of("d0").record(10**6)
    await sidecars.kill("d0")
    store = sidecars.store
    assert isinstance(store, MemoryStore)
    async with listening(collect, gone.settings.port):
        # The node crashed, so its record is still there, and its address was given to somebody else.
        await store.heartbeat(replace(record, ready=True, draining=False))
        for k in range(4):
            answer = await sidecars.chat(HELLO, session=f"s{k}")
            assert answer.status in (502, 503)
        await until(lambda: is_so(bool(seen) and sidecars.registry("c0").get("d0") is None))
    raw = b"".join(seen)
    assert PROMPT.encode() not in raw
    assert TOKEN.encode() not in raw
    assert key().hex().encode() not in raw
    asked = {data.split(b" ")[1] for data in seen}
    assert asked == {HELLO_PATH.encode()}, "nothing but hellos"


async def test_a_reused_address_that_answers_ready_is_a_dead_worker(sidecars: Stack) -> None:
    async def ready(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(2**16):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nready\n")

    await sidecars.up(prefill=0)
    made = pool()
    async with listening(ready) as url:
        assert await probe(made, url) == "dead"
    assert await probe(made, sidecars.processes["d0"].url) == "ready"
    await made.close()


async def test_an_impostor_is_told_of_once_a_minute_and_not_dialled_in_a_tight_loop(
    sidecars: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    dialled = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialled
        dialled += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\nx-weft-nonce: 00\r\nx-weft-proof: 00\r\n\r\n")
        writer.close()

    await sidecars.up(decode=1, prefill=0)
    async with listening(refuse) as url:
        store = sidecars.store
        forged = WorkerRecord("d9", "decode", url, 1, 10**9, instance_id="i", seq=1, ready=True)
        began = time.monotonic()
        while time.monotonic() - began < 3.0:
            await store.heartbeat(forged)
            forged = replace(forged, seq=forged.seq + 1)
            for k in range(5):
                assert (await sidecars.chat(HELLO, session=f"{forged.seq}-{k}")).headers["X-Weft-Worker"] == "d0"
            await asyncio.sleep(0.1)
        waited = time.monotonic() - began
    # Each of the two processes that watch probes it once a second.
    assert 0 < dialled <= 2 * (waited + 2) + 3
    told = [record for record in caplog.records if record.getMessage() == "worker_unproven"]
    assert 1 <= len(told) <= 2, "once by each process"


@pytest.mark.parametrize("name", ["d0", "p0"])
async def test_a_relay_at_another_address_is_refused(sidecars: Stack, name: str) -> None:
    await sidecars.up()
    async with Tap(sidecars.processes[name].settings.port).open() as relay:
        made = pool()
        with pytest.raises(UpstreamFailedError):
            await call(made, relay.url)
        assert relay.connections == 1
        assert PROVE_PATH.encode() not in relay.sent
        assert b"421" in relay.sent, "the worker says that it is at another address"
        await made.close()


async def test_the_proof_for_one_address_serves_no_other(sidecars: Stack) -> None:
    """Who stands between changes the address in the hello to the worker's own: the proof is for that one then."""
    await sidecars.up(prefill=0)
    port = sidecars.processes["d0"].settings.port
    seen = bytearray()

    async def rewrite(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        own = writer.get_extra_info("sockname")[1]
        hello = (await reader.readuntil(b"\r\n\r\n")).replace(b":%d" % own, b":%d" % port)
        there_writer.write(hello)
        writer.write(await there_reader.readuntil(b"\r\n\r\n"))
        with contextlib.suppress(ConnectionError):
            seen.extend(await reader.read())
        writer.close()
        there_writer.close()

    async with listening(rewrite) as url:
        made = pool()
        with pytest.raises(UpstreamFailedError):
            await call(made, url)
        assert seen == b"", "the client proves nothing, and asks nothing"
        await made.close()


@pytest.mark.parametrize("links", [False, True])
async def test_what_goes_over_a_hop_holds_no_token_and_no_key(sidecars: Stack, links: bool) -> None:
    await sidecars.up()
    running = sidecars.processes["d0"]
    async with Tap(running.settings.port).open() as sse_filter:
        # The address in its record is the tap's, as that of a pod is its own: both ends take it for the worker's.
        guard: Any = running.server._routes[HELLO_PATH]["GET"]
        guard.__self__._own = sse_filter.url.removeprefix("http://")
        made = pool(links=links)
        for _ in range(3):
            assert list(await asyncio.gather(*(call(made, sse_filter.url) for _ in range(4)))) == [200] * 4
            await asyncio.sleep(0.05)
        if links:
            await until(lambda: is_so(made.links == 1))
            assert await call(made, sse_filter.url) == 200
        sent = bytes(sse_filter.sent)
        assert sent.count(b"GET /v1/models") >= 12
        for secret in (TOKEN.encode(), key(), key().hex().encode(), b"weft-token"):
            assert secret.lower() not in sent.lower()
        assert sent.count(HELLO_PATH.encode()) == sse_filter.connections, "one for each connection, none for a request"
        await made.close()


def routes_of(stack: Stack, name: str) -> list[tuple[str, str]]:
    """Return method and path of everything that a process serves, names below a path by one of them."""
    routes = stack.processes[name].server._routes
    return [(method, path + "x" if path.endswith("/") else path) for path, ways in routes.items() for method in ways]


async def test_strangers_are_refused_on_every_internal_route(sidecars: Stack) -> None:
    await sidecars.up()
    refused = 0
    for name in ("d0", "p0", "c0"):
        front = name == "c0"
        for method, path in routes_of(sidecars, name):
            internal = path in ("/drain",) or path.startswith("/debug/") or not front
            if path in OPEN or path in HANDSHAKE or not internal:
                continue
            headers = {"Connection": "Upgrade", "Upgrade": "weft-link/1"} if path == "/internal/link" else {}
            for more in ({}, {"X-Weft-Token": TOKEN}, {"Authorization": f"Bearer {TOKEN}"}, {"X-Weft-Proof": "0" * 64}):
                async with sidecars.http.request(
                    method, sidecars.processes[name].url + path, headers={**headers, **more}
                ) as answer:
                    assert answer.status == 401, (name, method, path)
            async with proven(sidecars.processes[name].url) as http:
                timeout = aiohttp.ClientTimeout(total=10)
                request = http.request(method, sidecars.processes[name].url + path, headers=headers, timeout=timeout)
                if path not in ("/internal/link", "/drain"):
                    async with request as answer:
                        assert answer.status != 401, (name, method, path)
                else:
                    request.close()
            refused += 1
    assert refused >= 12


async def test_a_large_body_of_a_stranger_is_refused_before_it_is_read(sidecars: Stack) -> None:
    await sidecars.up()
    reader, writer = await asyncio.open_connection("127.0.0.1", sidecars.processes["p0"].settings.port)
    writer.write(b"POST /internal/prefill HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n{")
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).startswith(b"HTTP/1.1 401 ")
    writer.close()


async def hello(http: aiohttp.ClientSession, url: str, **changes: str) -> tuple[int, str, str]:
    """Say hello; return the status, the client's proof and the server's."""
    asked, dialled = changes.get("nonce", fresh_nonce()), changes.get("authority", url.removeprefix("http://"))
    async with http.get(url + HELLO_PATH, headers={AUTHORITY_HEADER: dialled, NONCE_HEADER: asked}) as answer:
        answered = answer.headers.get(NONCE_HEADER, "")
        mine = proof_of(key(changes.get("token", TOKEN)), "client", dialled, asked, answered)
        return answer.status, mine, answer.headers.get(PROOF_HEADER, "")


async def prove(http: aiohttp.ClientSession, url: str, proof: str) -> int:
    async with http.get(url + PROVE_PATH, headers={PROOF_HEADER: proof}) as answer:
        return answer.status


async def served(http: aiohttp.ClientSession, url: str) -> int:
    async with http.get(url + "/v1/models") as answer:
        return answer.status


@asynccontextmanager
async def one_connection() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as http:
        yield http


async def test_no_other_proof_is_taken(sidecars: Stack) -> None:
    await sidecars.up()
    url, other = sidecars.processes["d0"].url, sidecars.processes["p0"].url
    async with one_connection() as http, one_connection() as second:
        assert await prove(http, url, "0" * 64) == 401, "without a hello"
        _, mine, theirs = await hello(http, url)
        assert await prove(http, url, theirs) == 401, "the server's own, sent back"
        assert await prove(http, url, mine) == 401, "one hello is good for one try"
        _, mine, _ = await hello(http, url, token="another service's token")
        assert await prove(http, url, mine) == 401
        _, mine, _ = await hello(http, url)
        assert await prove(second, url, mine) == 401, "on another connection"
        _, elsewhere, _ = await hello(second, other)
        await hello(http, url)
        assert await prove(http, url, elsewhere) == 401, "for another worker"
        for proof in ("", "ü", "0" * 63):
            await hello(http, url)
            assert await prove(http, url, proof) == 401
        assert await served(http, url) == 401
        _, mine, _ = await hello(http, url)
        assert await prove(http, url, mine) == 204
        assert await served(http, url) == 200
        assert await served(second, url) == 401, "another connection has to prove itself"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"nonce": ""}, 400), ({"nonce": "00"}, 400), ({"nonce": "G" * 64}, 400), ({"nonce": "0" * 65}, 400),
        ({"authority": ""}, 400), ({"authority": "10.0.0.9:8080"}, 421), ({"authority": "localhost:1"}, 421),
        ({"authority": "127.0.0.1"}, 421), ({"authority": "[::ffff:127.0.0.1]:1"}, 421),
    ],
)  # fmt: skip
async def test_a_hello_that_is_none_is_refused(sidecars: Stack, changes: dict[str, str], status: int) -> None:
    await sidecars.router("coordinator", "c0")
    async with one_connection() as http:
        assert (await hello(http, sidecars.front, **changes))[0] == status


async def test_a_draining_worker_still_proves_itself_and_serves_its_last_requests(sidecars: Stack) -> None:
    await sidecars.up()
    running = sidecars.processes["d0"]
    running.server.drain.begin()
    made = pool()
    for _ in range(3):
        assert await call(made, running.url) == 200
    assert made.idle == 0, "each connection ends with its answer"
    await made.close()


async def test_a_worker_behind_a_name_is_reached_by_it(sidecars: Stack) -> None:
    """The address in its record is what both ends go by; what it resolves to is not compared."""
    await sidecars.up(prefill=0)
    running = sidecars.processes["d0"]
    url = f"http://localhost:{running.settings.port}"
    made = pool()
    with pytest.raises(UpstreamFailedError):
        await call(made, url)
    guard: Any = running.server._routes[HELLO_PATH]["GET"]
    guard.__self__._own = f"localhost:{running.settings.port}"
    assert await call(made, url) == 200
    await made.close()


async def test_a_service_with_another_token_is_not_served_and_asks_nothing(sidecars: Stack) -> None:
    await sidecars.up()
    url = sidecars.processes["d0"].url
    made = pool(hop_key=key("the token of another service"))
    with pytest.raises(UpstreamFailedError):
        await call(made, url)
    await made.close()
    with pytest.raises(UnauthenticatedPeerError):
        await asyncio.to_thread(ask, url + "/debug/decisions", token=b"the token of another service")
    status, page = await asyncio.to_thread(ask, url + "/debug/decisions", token=TOKEN.encode())
    assert (status, page[-15:]) == (200, b'"decisions":[]}')


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n", b"junk", b"\xff" * 20_000,
        b"HTTP/1.1 204 No Content\r\nx-weft-nonce: " + b"0" * 64 + b"\r\nx-weft-proof: " + b"0" * 64 + b"\r\n\r\n",
        b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\nx-weft-nonce: \xff\r\nx-weft-proof: \xff\r\n\r\n",
    ],
    ids=["nothing", "200", "empty", "junk", "long", "wrong", "401", "503", "binary"],
)  # fmt: skip
@pytest.mark.parametrize("links", [False, True])
async def test_whatever_an_impostor_answers_ends_the_leg_alone(answer: bytes, links: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    made = pool(links=links)
    async with listening(serve) as url:
        for _ in range(2):
            with pytest.raises(UpstreamFailedError):
                await call(made, url)
        assert (made.requests, made.idle, made.links) == (0, 0, 0)
    await made.close()


async def test_a_server_that_speaks_unasked_after_its_proof_is_no_worker() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await prove_self(reader, writer)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno")
        await reader.read()

    made = pool()
    async with listening(serve) as url:
        await until(lambda: is_so(True))
        with pytest.raises(UpstreamFailedError):
            await call(made, url, "/x")
    await made.close()


async def test_an_end_that_does_not_answer_the_hello_costs_the_time_for_a_connection() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    made = ConnectionPool(connect_s=0.2, keepalive_s=1.0, hop_key=key())
    async with listening(silent) as url:
        with pytest.raises(UpstreamFailedError, match="connect"):
            await call(made, url)
    await made.close()
