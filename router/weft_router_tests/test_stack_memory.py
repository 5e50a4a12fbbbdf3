"""What a stream under way still holds: not the request's bytes, nor the bodies that were made of it."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from weft_router.engines.adapter import Call, PrefillResult
from weft_router.http.exchange import Exchange
from weft_router_tests.stack import MODEL, Stack, router_json

pytestmark = pytest.mark.component


def held() -> Iterator[str]:
    """Name what this process's requests to ``/v1/chat/completions`` still keep."""
    gc.collect()
    for thing in gc.get_objects():
        if isinstance(thing, Call):
            yield f"a request to an engine of {len(thing.body)} bytes"
        elif isinstance(thing, Exchange) and thing.path.startswith("/v1/"):
            if thing.body or thing.headers:
                yield f"a client's request of {len(thing.body)} bytes and {len(thing.headers)} headers"
        elif isinstance(thing, PrefillResult) and (thing.params or thing.written or thing.reply.handle):
            yield "transfer parameters"


async def test_a_stream_keeps_no_bodies_and_no_transfer_parameters(stack: Stack) -> None:
    stack.config = router_json(routing={"policy": "always-remote"})
    await stack.up(decode=2, prefill=1)
    for name in ("d0", "d1"):
        stack.engines[name].script.gap_s = 0.2
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a long prompt " * 500}], "stream": True}
    url = stack.front + "/v1/chat/completions"
    async with stack.http.post(url, json=body) as response:
        assert response.headers["X-Weft-Route"] == "remote"
        async with asyncio.timeout(10):
            got = await response.content.readuntil(b"\n\n") + await response.content.readuntil(b"\n\n")
        assert got.count(b"data: {") == 2
        assert list(held()) == []
        assert (got + await response.read()).endswith(b"[DONE]\n\n")
