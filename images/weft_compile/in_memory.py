"""A standalone router without sockets: what clients and engines send is given to its connections as bytes."""

import asyncio
from typing import Any, cast

import orjson

from weft_router.config import Settings
from weft_router.engines.watch import Engine
from weft_router.express.lane import Lane
from weft_router.process import build, open_store
from weft_router.roles.standalone import Standalone
from weft_router.wire.connection import Connection
from weft_router.wire.upstream import Upstream

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
        """Return what was written since the last time."""
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


class Wired:
    """A standalone router with clients, and connections to engines that are open and idle."""

    def __init__(self, settings: Settings, *, clients: int) -> None:
        server, duty = build(settings, open_store(settings))
        self.router = cast(Standalone, duty)
        self.lane = cast(Lane, duty.lane)
        pool = self.router._engines
        pool._keepalive_s = 3600.0  # on a busy machine those that wait would be closed, and nobody takes new ones
        self.legs: list[tuple[Upstream, Transport]] = []
        for worker in settings.workers:
            for _ in range(clients):
                leg, transport = Upstream(pool, pool.origin(worker.url)), Transport()
                leg.connection_made(cast(asyncio.Transport, transport))
                pool.give_back(leg)
                self.legs.append((leg, transport))
        self.clients: list[tuple[Connection, Transport]] = []
        listener = server.listener
        for _ in range(clients):
            client, transport = Connection(listener.connections, listener._limits, gate=listener._gate), Transport()
            client.connection_made(cast(asyncio.Transport, transport))
            self.clients.append((client, transport))

    async def start(self) -> None:
        """Begin, with engines that are all well."""
        Engine.poll = _well  # type: ignore[method-assign]
        await self.router.start()


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
