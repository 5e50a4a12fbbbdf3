"""Measure what it costs that hops prove themselves: once per connection, and nothing per request.

A pool and a listener of the router in one process on loopback. Each row is the median of rounds that take turns, in
microseconds of wall-clock time for both ends together: to open a connection with and without the handshake, and to
send a request over an open one with and without. For comparison: what a MAC over each request's body would take.
"""

import argparse
import hmac
import secrets
import statistics
import time
from collections.abc import Awaitable, Callable

import uvloop

from weft_router.auth.hops import HANDSHAKE, HopAuthenticator, require_proven
from weft_router.errors import ApiError
from weft_router.http.exchange import Exchange
from weft_router.http.handshake import HELLO_PATH, connect
from weft_router.http.limits import HttpLimits
from weft_router.http.listener import Listener
from weft_router.http.pool import ConnectionPool
from weft_router.http.upstream_request import UpstreamRequest

HOST = "127.0.0.1"
KEY = secrets.token_bytes(32)
BATCH = 50


async def per_call(call: Callable[[], Awaitable[object]]) -> float:
    """Return the microseconds that one call takes, of a batch."""
    begin = time.perf_counter()
    for _ in range(BATCH):
        await call()
    return (time.perf_counter() - begin) / BATCH * 1e6


async def measure(rounds: int) -> dict[str, float]:
    """Return the medians of all rows."""
    guard = HopAuthenticator(KEY, "")

    async def serve(exchange: Exchange) -> None:
        if exchange.path in HANDSHAKE:
            await (guard.hello if exchange.path == HELLO_PATH else guard.prove)(exchange)
            return
        if exchange.path == "/proven":
            require_proven(exchange.peer)
        exchange.reply(200, b"{}")

    def refused(exchange: Exchange, error: ApiError) -> None:
        exchange.reply(error.status, error.body())

    listener = Listener(serve, refused=refused, limits=HttpLimits())
    await listener.start(HOST, 0)
    url = f"http://{HOST}:{listener.port}"
    plain, proven = (ConnectionPool(connect_s=5.0, keepalive_s=60.0, hop_key=key) for key in (None, KEY))

    async def opened(key: bytes | None) -> None:
        transport, _ = await connect(plain.origin(url), key)
        transport.abort()

    async def asked(pool: ConnectionPool, path: str) -> None:
        answer = await pool.call(UpstreamRequest(first_s=10), pool.origin(url), path, b"{}", limit=100)
        if answer.status != 200:
            raise RuntimeError(f"{path} was answered by {answer.status}")

    rows: dict[str, Callable[[], Awaitable[object]]] = {
        "open a connection": lambda: opened(None),
        "open a connection, both ends proved": lambda: opened(KEY),
        "request over an open connection": lambda: asked(plain, "/plain"),
        "request over one that was proved": lambda: asked(proven, "/proven"),
    }
    found: dict[str, list[float]] = {name: [] for name in rows}
    for number in range(rounds + 1):
        for name, call in rows.items():
            took = await per_call(call)
            if number:
                found[name].append(took)
    await plain.close()
    await proven.close()
    await listener.close()
    return {name: statistics.median(took) for name, took in found.items()}


def mac_us(size: int) -> float:
    """Return the microseconds of a MAC over a body of so many bytes, made and verified."""
    body, count = secrets.token_bytes(size), 2000
    begin = time.perf_counter()
    for _ in range(count):
        hmac.compare_digest(hmac.digest(KEY, body, "sha256"), hmac.digest(KEY, body, "sha256"))
    return (time.perf_counter() - begin) / count * 1e6


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rows = uvloop.run(measure(parser.parse_args().rounds))
    rows |= {f"a MAC over {size // 1024} KiB, made and verified": mac_us(size) for size in (4096, 65536, 2**20)}
    for name, took in rows.items():
        print(f"{name:<48}{took:10.1f} us")


if __name__ == "__main__":
    main()
