"""Measure what the plug-in for vLLM adds to a stream: processor time per chunk, with and without it, side by side.

    python bench/engine_plugin.py

A stand-in for vLLM's serving yields the outputs and sends the chunks; only the plug-in's tap and middleware differ.
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "images/vllm/plugin"))

from weft_vllm.guard import Guard
from weft_vllm.tap import HandleMiddleware, around

CHUNKS = 2000
RUNS = 25
HANDLE = {
    "do_remote_prefill": False,
    "do_remote_decode": True,
    "remote_block_ids": [list(range(64))],
    "remote_engine_id": "engine",
    "remote_request_id": "request",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_num_tokens": 1024,
}
SAMPLING = SimpleNamespace(extra_args={"kv_transfer_params": {"do_remote_decode": True}}, n=1)
SCOPE = {"type": "http", "headers": [(b"x-weft-kv-handle", b"1")]}

Send = Callable[[Any], Awaitable[None]]


class Client:
    """An engine client whose last output has the handle."""

    async def generate(self, _prompt: str, _sampling: object, _id: str) -> AsyncGenerator[Any, None]:
        for _ in range(CHUNKS - 1):
            yield SimpleNamespace(kv_transfer_params=None)
        yield SimpleNamespace(kv_transfer_params=HANDLE)

    async def notify_kv_transfer_request_rejected(self, _id: str, _params: object) -> None:
        """Take no notice."""


async def _sent(_: object) -> None:
    pass


async def _received() -> dict[str, Any]:
    return {}


def once(*, plugin: bool) -> float:
    """Return the processor seconds of one stream."""
    client = Client()

    async def serve(_scope: Any, _receive: Any, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        async for _ in client.generate("prompt", SAMPLING, "id"):
            await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    app: Any = serve
    if plugin:
        guard = Guard()
        around(client, guard)
        app = HandleMiddleware(serve, guard=guard)
    began = time.process_time()
    asyncio.run(app(SCOPE, _received, _sent))
    return time.process_time() - began


def main() -> None:
    """Print the difference of the least of RUNS each: what runs beside them only adds."""
    pairs = [(once(plugin=False), once(plugin=True)) for _ in range(RUNS)]
    without, with_it = (min(one) for one in zip(*pairs, strict=True))
    each = (with_it - without) / CHUNKS
    print(f"plug-in for vLLM: {each * 1e6:.2f} us a chunk, {each * 250 * 1e3:.2f} ms a stream of 250 (of {RUNS} runs)")


if __name__ == "__main__":
    main()
