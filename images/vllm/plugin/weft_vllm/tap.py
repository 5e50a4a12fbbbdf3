"""Carry the KV handle from the engine client to the stream: vLLM's own stream models leave it out.

``EngineClient.generate`` is public, and the last output it yields holds the handle. A tap around it notes the handle
in the request's context; a middleware writes it into the stream as a comment, just before the chunk that finishes it:
``: kv_transfer_params {…}`` and an empty line, which every reader of server-sent events skips.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

from weft_vllm.guard import PROVEN, Guard, TransferRefusedError

VERSION = "1"
"""Of what the comment and the headers mean."""
HANDLE_HEADER = b"x-weft-kv-handle"
PLUGIN_HEADER = b"x-weft-engine-plugin"
PROOF_HEADER = b"x-weft-engine-proof"
_STREAM = b"text/event-stream"

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class Holder:
    """The handle of the request that is being served; several answers have none that could be used."""

    def __init__(self) -> None:
        self._found: list[Any] = []

    def offer(self, params: object) -> None:
        """Note the handle of one answer."""
        if isinstance(params, dict) and params:
            self._found.append(params)

    def comment(self) -> bytes:
        """Return the handle as a comment, once; empty as long as there is none."""
        if len(self._found) != 1:
            return b""
        (params,) = self._found
        self._found = [params, params]  # written: no more than once
        return b": kv_transfer_params " + json.dumps(params, separators=(",", ":")).encode() + b"\n\n"


HOLDER: ContextVar[Holder | None] = ContextVar("weft_kv_holder", default=None)


class HandleMiddleware:
    """An ASGI middleware for requests that ask for the handle; all others pass untouched but for the proof."""

    def __init__(self, app: App, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request; the context is that of its own task, so nothing has to be put back."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked, given = False, b""
        for name, value in scope["headers"]:
            if name == HANDLE_HEADER:
                asked = value == b"1"
            elif name == PROOF_HEADER:
                given = value
        PROVEN.set(self._guard.proves(given))
        if not asked:
            HOLDER.set(None)
            await self._app(scope, receive, send)
            return
        holder = Holder()
        HOLDER.set(holder)
        streams = False

        async def sent(message: Message) -> None:
            nonlocal streams
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                streams = any(name.lower() == b"content-type" and value.startswith(_STREAM) for name, value in headers)
                if streams:
                    message = {**message, "headers": [*headers, (PLUGIN_HEADER, VERSION.encode())]}
            elif streams and (comment := holder.comment()):
                message = {**message, "body": comment + message.get("body", b"")}
            await send(message)

        await self._app(scope, receive, sent)


def around(client: Any, guard: Guard) -> None:
    """Put tap and guard around the engine client's ``generate``; the guard around what a refused request releases."""
    generate, rejected = client.generate, client.notify_kv_transfer_request_rejected

    def guarded(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        sampling = kwargs["sampling_params"] if "sampling_params" in kwargs else args[1]
        extra = getattr(sampling, "extra_args", None) or {}
        guard.check(extra.get("kv_transfer_params"), answers=getattr(sampling, "n", 1) or 1)
        outputs = generate(*args, **kwargs)
        holder = HOLDER.get()
        return outputs if holder is None else _tapped(outputs, holder)

    async def release(request_id: str, kv_transfer_params: Any, *args: Any, **kwargs: Any) -> None:
        # Of a request that was refused here, too: what it names must not make the engine connect anywhere.
        try:
            guard.check(kv_transfer_params)
        except TransferRefusedError:
            return
        await rejected(request_id, kv_transfer_params, *args, **kwargs)

    client.generate = guarded
    client.notify_kv_transfer_request_rejected = release


async def _tapped(outputs: AsyncGenerator[Any, None], holder: Holder) -> AsyncGenerator[Any, None]:
    """Pass outputs on; closed with its reader, so that a cancelled request reaches the engine."""
    async with aclosing(outputs):
        async for output in outputs:
            holder.offer(output.kv_transfer_params)
            yield output
