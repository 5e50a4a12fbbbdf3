"""Routers without sockets: what clients and engines send is given to their connections as bytes."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import orjson

from weft_router.config import Flags, Role, Settings, load
from weft_router.engines.watch import Engine
from weft_router.http.connection import Connection
from weft_router.http.head import Peer
from weft_router.http.link import Link
from weft_router.http.pool import ConnectionPool
from weft_router.http.upstream_connection import UpstreamConnection
from weft_router.http.write_batch import write_batch_of
from weft_router.process import build, open_store
from weft_router.roles.app import App
from weft_router.roles.server import Server
from weft_router.roles.standalone import Standalone
from weft_router.state.store import MemoryStore

HANDLE = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "engine-1",
    "remote_block_ids": list(range(7)),
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "remote_request_id": "request-1",
    "tp_size": 1,
}
"""What a prefill engine says of where its KV is (vLLM's NIXL connector)."""


SPARE = 4
"""Connections to each engine beside one for every client: what a worker asks its engine for itself takes some."""


class Transport:
    """Keeps what is written and sends nothing."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Keep some bytes."""
        self.written.append(bytes(data))

    def writelines(self, parts: list[bytes]) -> None:
        """Keep several pieces."""
        self.written += map(bytes, parts)

    def taken(self) -> bytes:
        """Return what was written since the last time, in this turn of the loop, too."""
        write_batch_of(asyncio.get_running_loop()).flush()
        found = b"".join(self.written)
        self.written.clear()
        return found

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


def settings(
    folder: Path, role: Role, env: Mapping[str, str], *, port: int = 8080, engine: int = 0, degree: int = 1
) -> Settings:
    """Return those of a role by a folder's router.json and workers.json; ``engine`` is the port of its own engine."""
    flags = Flags(
        role=role, config=folder / "router.json", listen=f"127.0.0.1:{port}",
        engine_url=f"http://127.0.0.1:{engine}" if engine else "", advertise=None, drain_seconds=1.0,
        workers=folder / "workers.json" if role == "standalone" else None,
    )  # fmt: skip
    return load(flags, {**env, "WEFT_WORKER": f"{role}-0", "WEFT_DEGREE": str(degree)})


class Wire(Transport):
    """Gives what is written to the other end, in the loop's next turn."""

    def __init__(self) -> None:
        super().__init__()
        self.other: Link

    def write(self, data: bytes) -> None:
        """Send some bytes."""
        asyncio.get_running_loop().call_soon(self.other.data_received, bytes(data))

    def writelines(self, parts: list[bytes]) -> None:
        """Send several pieces."""
        self.write(b"".join(parts))


class Wired:
    """A router with clients, and connections to engines that are open and idle."""

    def __init__(self) -> None:
        self.clients: list[tuple[Connection, Transport]] = []
        self.legs: list[tuple[UpstreamConnection, Transport]] = []
        """Those to engines."""
        self._duties: list[App] = []

    async def start(self) -> None:
        """Begin, with engines that are all well."""
        Engine.poll = _well  # type: ignore[method-assign]
        for app in self._duties:
            await app.start()

    async def stop(self) -> None:
        """End."""
        for app in reversed(self._duties):
            await app.stop()

    def _engines(self, pool: ConnectionPool, urls: list[str], clients: int) -> None:
        self.legs += [
            (_leg(pool, url, transport := Transport()), transport) for url in urls for _ in range(clients + SPARE)
        ]

    def _front(self, server: Server, clients: int) -> None:
        self.clients += [(_connection(server, transport := Transport()), transport) for _ in range(clients)]


class Alone(Wired):
    """A standalone router."""

    def __init__(self, settings: Settings, *, clients: int) -> None:
        super().__init__()
        server, app = build(settings, open_store(settings))
        self.router = cast(Standalone, app)
        self._duties = [app]
        self._engines(self.router._engines, [worker.url for worker in settings.workers], clients)
        self._front(server, clients)


class Sidecars(Wired):
    """A coordinator with one decode and one prefill sidecar, which meet in a store in memory."""

    def __init__(self, coordinator: Settings, decode: Settings, prefill: Settings, *, clients: int) -> None:
        super().__init__()
        store = MemoryStore()
        found = [build(settings, store) for settings in (prefill, decode, coordinator)]
        self._duties = [app for _, app in found]
        (prefills, prefill_app), (decodes, decode_app), (front, front_app) = found
        for app, engine in ((prefill_app, prefill.engine_url), (decode_app, decode.engine_url)):
            self._engines(cast(Any, app)._engines, [engine], clients)
        for pool, url, server in (
            (cast(Any, decode_app)._peers, prefill.url, prefills),
            (cast(Any, front_app)._pool, decode.url, decodes),
        ):
            _link(pool, url, server)
        self._front(front, clients)


def _leg(pool: ConnectionPool, url: str, transport: Transport) -> UpstreamConnection:
    """Return a connection to an origin that waits in its pool."""
    pool._keepalive_s = 3600.0  # on a busy machine those that wait would be closed, and nobody takes new ones
    leg = UpstreamConnection(pool, pool.origin(url))
    leg.connection_made(cast(asyncio.Transport, transport))
    pool.give_back(leg)
    return leg


def _link(pool: ConnectionPool, url: str, server: Server) -> None:
    """Link a pool to a server."""
    there, back = Wire(), Wire()
    accept = partial(server.listener._accept, Peer(proven=True))
    near, far = (Link(accept=accepts, on_lost=_lost) for accepts in (None, accept))
    there.other, back.other = far, near
    for link, transport in ((near, there), (far, back)):
        link.connection_made(cast(asyncio.Transport, transport))
    pool.origin(url).link = near


def _lost(_: Link) -> None: ...


def _connection(server: Server, transport: Transport) -> Connection:
    """Return a connection of a client of a server."""
    listener = server.listener
    connection = Connection(listener.connections, listener._limits, gate=listener._gate)
    connection.connection_made(cast(asyncio.Transport, transport))
    return connection


async def _well(self: Engine) -> None:
    """Stand in for an engine's health and metrics."""
    self.healthy = True


def request(body: dict[str, Any], *, key: str, session: str = "") -> bytes:
    """Return a client's request."""
    content = orjson.dumps(body)
    named = f"x-session-id: {session}\r\n" if session else ""
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n{named}authorization: Bearer {key}\r\n\r\n"
    ).encode() + content


def reply(model: str, text: str, *, tokens: int, handle: dict[str, Any] | None) -> bytes:
    """Return an engine's answer in one piece."""
    content = orjson.dumps({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model,
        "choices": [{
            "index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length", "logprobs": None,
        }],
        "usage": {"prompt_tokens": 100, "completion_tokens": tokens, "total_tokens": 100 + tokens},
        "kv_transfer_params": handle,
    })  # fmt: skip
    head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n"
    return head % len(content) + content


def stream(model: str, words: list[str]) -> list[bytes]:
    """Return an engine's answer as a stream of events, piece by piece as they come."""
    head = (
        b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    tokens = len(words)
    usage = {"prompt_tokens": 100, "completion_tokens": tokens, "total_tokens": 100 + tokens}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
    events = [_event(model, [{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    events.append(_event(model, [{"index": 0, "delta": {}, "finish_reason": "length"}]))
    events.append(_event(model, [], usage))
    return [head, *map(_chunk, events), _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"]


def _event(model: str, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": choices}
    return b"data: " + orjson.dumps({**body, **({} if usage is None else {"usage": usage})}) + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
