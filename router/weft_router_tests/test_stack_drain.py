"""What clients see while routers are drained and stopped."""

import asyncio
from typing import Any

import aiohttp
import pytest

from weft_router_tests.stack import MODEL, Stack, get, is_so, until

pytestmark = pytest.mark.component

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


async def test_a_draining_worker_finishes_its_streams_and_gets_nothing_new(sidecars: Stack) -> None:
    await sidecars.up(decode=2, prefill=0)
    bound = (await sidecars.chat(HELLO, session="s")).headers["X-Weft-Worker"]
    sidecars.engines[bound].script.gap_s = 0.1
    live = asyncio.ensure_future(sidecars.chat(HELLO, session="s", stream=True))
    await until(lambda: is_so(sidecars.engines[bound].running == 1))
    running = sidecars.processes[bound]
    token = {"X-Weft-Token": running.settings.token.decode()}
    async with sidecars.http.post(running.url + "/drain") as refused:
        assert refused.status == 401
    prestop = asyncio.ensure_future(get(sidecars, running.url + "/engine/prestop"))
    async with sidecars.http.post(running.url + "/drain", headers=token) as accepted:
        assert accepted.status == 200
    moved = await sidecars.chat(HELLO, session="s")
    assert moved.headers["X-Weft-Worker"] != bound
    assert not prestop.done()
    assert (await live).raw.endswith(b"data: [DONE]\n\n")
    assert await prestop == (200, "drained\n")
    assert (await get(sidecars, running.url + "/readyz"))[0] == 503


async def test_prestop_without_a_drain_does_not_wait(sidecars: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_router.roles.server.PRESTOP_GRACE_S", 0.05)
    await sidecars.up(prefill=0)
    assert await get(sidecars, sidecars.processes["d0"].url + "/engine/prestop") == (200, "not draining\n")


async def test_a_coordinator_that_must_go_fails_no_request_of_its_keep_alive_clients(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft_router.roles.serving.LAME_DUCK_S", 0.3)
    await stack.up(prefill=0)
    going = stack.processes["c0"]
    statuses: list[int] = []
    closed = 0
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:

        async def client() -> None:
            nonlocal closed
            while True:
                body = {"model": MODEL, "messages": HELLO}
                try:
                    async with http.post(going.url + "/v1/chat/completions", json=body) as response:
                        await response.read()
                        statuses.append(response.status)
                        closed += response.headers.get("Connection") == "close"
                except aiohttp.ClientConnectorError:
                    return  # nobody listens any more: Kubernetes had time to send new connections elsewhere

        clients = [asyncio.ensure_future(client()) for _ in range(3)]
        await until(lambda: is_so(len(statuses) >= 5))
        going.stop.set()
        await asyncio.wait_for(asyncio.gather(*clients), 15)
    await asyncio.wait_for(going.task, 10)
    assert set(statuses) == {200}
    assert closed >= 3


async def test_stopping_waits_for_live_requests(stack: Stack) -> None:
    await stack.up(prefill=0)
    stack.engines["d0"].script.gap_s = 0.05
    live = asyncio.ensure_future(stack.chat(HELLO, stream=True))
    await until(lambda: is_so(stack.engines["d0"].running == 1))
    for name in stack.processes:
        stack.processes[name].stop.set()
    assert (await live).raw.endswith(b"data: [DONE]\n\n")
    for name in stack.processes:
        await asyncio.wait_for(stack.processes[name].task, 10)
