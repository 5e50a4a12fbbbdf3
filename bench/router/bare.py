"""A bare P/D proxy of one process, an upper bound for routers in Python: ``python bare.py PORT PREFILLS DECODES``.

asyncio.Protocol with httptools and orjson on uvloop: prefill call, then decode call, whose bytes go to the client as
they come. It has no duties: no sessions, policy, limits, keys, metrics, time-outs, retries or back-pressure.
"""

import asyncio
import sys
from collections.abc import Callable
from itertools import cycle
from typing import cast

import httptools
import orjson
import uvloop

NO_REMOTE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
)
HEALTHY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
FAILED = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"


class Upstream(asyncio.Protocol):
    """One connection to an engine, used for one request at a time."""

    def __init__(self, home: "list[Upstream]") -> None:
        self._home = home
        self._body: list[bytes] = []
        self._relay: asyncio.Transport | None = None
        self._done: Callable[[bytes], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, body: bytes, done: Callable[[bytes], None], relay: asyncio.Transport | None) -> None:
        """Send a request; its answer goes to ``relay`` as it comes, or to ``done`` as a whole."""
        self._parser = httptools.HttpResponseParser(self)
        self._body.clear()
        self._done, self._relay = done, relay
        self._transport.write(HEAD % len(body) + body)

    def data_received(self, data: bytes) -> None:
        if self._relay is not None:
            self._relay.write(data)
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        """Keep a piece of an answer that is wanted whole."""
        if self._relay is None:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """Hand the answer over; the connection is free for another request."""
        done, self._done = self._done, None
        self._home.append(self)
        if done is not None:
            done(b"".join(self._body))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        if self in self._home:
            self._home.remove(self)
        if self._done is not None:
            self._done(b"")


class Pool:
    """Idle connections of some engines, which take turns."""

    def __init__(self, ports: list[int]) -> None:
        self._turns = cycle((port, list[Upstream]()) for port in ports)

    def ask(self, body: bytes, done: Callable[[bytes], None], relay: asyncio.Transport | None = None) -> None:
        """Send a request to the next engine."""
        port, idle = next(self._turns)
        if idle:
            idle.pop().ask(body, done, relay)
            return

        def opened(opening: "asyncio.Task[tuple[asyncio.Transport, Upstream]]") -> None:
            opening.result()[1].ask(body, done, relay)

        loop = asyncio.get_running_loop()
        loop.create_task(loop.create_connection(lambda: Upstream(idle), "127.0.0.1", port)).add_done_callback(opened)


class Front(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, prefill: Pool, decode: Pool) -> None:
        self._prefill, self._decode = prefill, decode
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the request."""
        self._body.append(data)

    def on_message_complete(self) -> None:
        """Send the prefill call."""
        raw = b"".join(self._body)
        self._body.clear()
        if self._parser.get_method() == b"GET":
            self._transport.write(HEALTHY)
            return
        self._request = orjson.loads(raw)
        leg = {**self._request, "stream": False, "max_tokens": 1, "kv_transfer_params": NO_REMOTE}
        leg.pop("stream_options", None)
        self._prefill.ask(orjson.dumps(leg), self._prefilled)

    def _prefilled(self, raw: bytes) -> None:
        if not raw:
            self._transport.write(FAILED)
            return
        self._request["kv_transfer_params"] = orjson.loads(raw)["kv_transfer_params"]
        self._decode.ask(orjson.dumps(self._request), lambda _: None, self._transport)


async def serve(port: int, prefill: list[int], decode: list[int]) -> None:
    """Serve until cancelled."""
    there, here = Pool(prefill), Pool(decode)
    server = await asyncio.get_running_loop().create_server(lambda: Front(there, here), "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    _, at, *ports = sys.argv
    engines = [[int(port) for port in some.split(",")] for some in ports]
    uvloop.run(serve(int(at), engines[0], engines[1]))
