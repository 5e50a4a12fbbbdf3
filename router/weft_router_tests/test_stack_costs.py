"""What one request may cost a router: no step of it holds the others up, and nothing takes three times its limit."""

import asyncio
import gzip
import zlib
from asyncio import events
from collections.abc import Callable
from pathlib import Path
from time import process_time

import orjson
import pytest
import zstandard

from weft_router.http.head import Peer
from weft_router_tests.cpu_time import reference_seconds
from weft_router_tests.stack import MODEL, Stack, is_so, router_json, until
from weft_router_tests.test_http_budget import Wire

pytestmark = [pytest.mark.component, pytest.mark.alone]

MIB = 2**20
LIMIT = 32 * MIB
READ = 256 * 2**10
ZSTD = zstandard.ZstdCompressor()
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"


def sized(body: bytes, more: bytes = b"") -> bytes:
    return POST + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


def prompt(content: str) -> bytes:
    return orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}]})


def chunked(body: bytes) -> bytes:
    pieces = (body[at : at + 65536] for at in range(0, len(body), 65536))
    return POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces)


HOSTILE: dict[str, tuple[Callable[[], bytes], int]] = {
    "a line of 1 MiB": (lambda: b"GET /" + b"x" * MIB + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    "a header of 1 MiB": (lambda: POST + b"X: " + b"x" * MIB + b"\r\n\r\n", 431),
    "10,000 headers": (lambda: POST + b"X: y\r\n" * 10_000 + b"\r\n", 431),
    "a body above its limit": (lambda: sized(b"x" * (LIMIT + 1)), 413),
    "chunks above the limit": (lambda: chunked(b"x" * (LIMIT + 1)), 413),
    "a gzip bomb": (lambda: sized(gzip.compress(bytes(LIMIT * 4)), b"Content-Encoding: gzip\r\n"), 413),
    "a deflate bomb": (lambda: sized(zlib.compress(bytes(LIMIT * 4)), b"Content-Encoding: deflate\r\n"), 413),
    "a zstd bomb": (lambda: sized(ZSTD.compress(bytes(LIMIT * 4)), b"Content-Encoding: zstd\r\n"), 413),
    "a packed text of 10 MB": (
        lambda: sized(gzip.compress(prompt("word, " * (10_000_000 // 6))), b"Content-Encoding: gzip\r\n"),
        400,
    ),
    "10,000 levels": (lambda: sized(b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}"), 400),
    "levels up to the limit": (lambda: sized(b"[" * (LIMIT // 4)), 413),
    "objects up to the limit": (lambda: sized(b'{"documents":[' + b"{}," * (LIMIT // 3 - 10) + b"{}]}"), 413),
    "objects in 256 KiB": (lambda: sized(b'{"documents":[' + b"{}," * (MIB // 12 - 20) + b"{}]}"), 413),
    "a text of 10 MB": (lambda: sized(prompt("word, " * (10_000_000 // 6))), 400),
    "a wide text of 10 MB": (lambda: sized(prompt("word, " * (10_000_000 // 6) + "\U0001f600")), 400),
}


def memory(name: str) -> int:
    """Return what the kernel counts of this process under a name; bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def begin_peak() -> None:
    """Have the kernel begin the peak of this process's memory anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give the processor seconds of the longest callback of the loop so far."""
    found = [0.0]
    run = events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = process_time()
        run(handle)
        found[0] = max(found[0], process_time() - began)

    monkeypatch.setattr(events.Handle, "_run", timed)
    return found


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_request_holds_nobody_up_and_takes_less_than_three_times_the_limit(
    sidecars: Stack, longest: list[float], kind: str
) -> None:
    sidecars.config = router_json(limits={"maxBodyBytes": LIMIT})
    await sidecars.up(prefill=0)
    server = sidecars.processes["c0"].server
    make, status = HOSTILE[kind]
    raw = make()

    async def send() -> None:
        await until(lambda: is_so(bool(sidecars.registry("c0").ready("decode"))))
        accept = server.listener.connections.accept
        assert accept is not None
        wire, connection = Wire(), accept(Peer())
        wire.lost = lambda: connection.connection_lost(None)
        connection.connection_made(wire)
        for at in range(0, len(raw), READ):
            piece = raw[at : at + READ]
            asyncio.get_running_loop().call_soon(connection.data_received, piece)
            await asyncio.sleep(0)
        await until(lambda: is_so(wire.sent != b""))
        assert wire.sent.startswith(b"HTTP/1.1 %d" % status), wire.sent[:300]
        wire.abort()
        await asyncio.sleep(0)
        assert server.budget.used == 0

    lags = []
    for _ in range(3):
        longest[0] = 0.0
        await send()
        lags.append(longest[0])
    assert min(lags) < 2 * reference_seconds()
    before = memory("VmRSS")
    begin_peak()
    await send()
    assert memory("VmHWM") - before < 3 * LIMIT
