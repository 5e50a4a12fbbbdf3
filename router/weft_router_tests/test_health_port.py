"""A router may serve health and metrics at a port of their own: beside TLS, and past the proxies of a mesh."""

import asyncio
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from weft_router.process import build
from weft_router.roles.lifecycle import run_server
from weft_router.state.store import MemoryStore
from weft_router_tests.fake_engine import FakeEngine
from weft_router_tests.stack import free_port, settings, until

pytestmark = pytest.mark.component


async def test_a_sidecar_serves_health_there_and_nothing_else(tmp_path: Path) -> None:
    engine = FakeEngine("d0")
    await engine.start(free_port())
    found = replace(
        settings(tmp_path, "decode", port=free_port(), worker="d0", engine_url=engine.url),
        health_host="127.0.0.1",
        health_port=free_port(),
    )
    server, app = build(found, MemoryStore())
    task = asyncio.create_task(run_server(server, app, found, asyncio.Event()))
    health, main = (f"http://127.0.0.1:{port}" for port in (found.health_port, found.port))
    try:
        async with aiohttp.ClientSession() as http:

            async def ready() -> bool:
                try:
                    async with http.get(f"{health}/readyz") as response:
                        return response.status == 200
                except aiohttp.ClientError:
                    return False

            await until(ready)
            for path in ("/healthz", "/metrics", "/engine/livez", "/engine/metrics"):
                async with http.get(health + path) as response:
                    assert response.status == 200, path
            for path in ("/v1/chat/completions", "/internal/prefill", "/drain", "/internal/hello"):
                async with http.post(health + path, json={}) as response:
                    assert response.status == 404, path
            async with http.post(f"{main}/v1/chat/completions", json={}) as response:
                assert response.status == 401
    finally:
        task.cancel()
        await asyncio.wait([task])
        await engine.stop()
    assert found.url == main, "others are told the port of requests"
