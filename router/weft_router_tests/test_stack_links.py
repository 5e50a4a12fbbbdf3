"""A coordinator and sidecars over links: found by use, lost with a worker, and nothing that clients could see of it."""

import asyncio
from typing import Any

import aiohttp
import pytest

from weft_router_tests.stack import MODEL, Stack, is_so, until
from weft_router_tests.test_faults_decode import LENGTH, ask, flaw, prefer, prompt

pytestmark = pytest.mark.component


async def links(stack: Stack, process: str) -> float:
    """Return how many sidecars a process asks over a link."""
    return await stack.count("weft_router_links", process)


async def meet(stack: Stack) -> None:
    """Send requests at the same time until all that are sent that way go over links."""

    async def linked() -> bool:
        answers = await asyncio.gather(*(stack.chat([{"role": "user", "content": f"hello {k}"}]) for k in range(4)))
        assert [answer.status for answer in answers] == [200] * 4
        return await links(stack, "c0") == 1 and await links(stack, "d0") == 1

    await until(linked)


async def test_requests_at_the_same_time_share_a_connection_from_hop_to_hop(sidecars: Stack) -> None:
    await sidecars.up()
    assert (await sidecars.chat([{"role": "user", "content": "hello"}])).status == 200
    assert await links(sidecars, "c0") == await links(sidecars, "d0") == 0
    await meet(sidecars)
    streams = await asyncio.gather(*(ask(sidecars, "chat")(k) for k in range(20)))
    assert [flaw(answer, prompt("chat", k), may_end_at=None) for k, answer in enumerate(streams)] == [None] * 20
    assert {answer.headers["X-Weft-Route"] for answer in streams} == {"remote"}


async def test_a_client_that_leaves_frees_both_engines_across_links(sidecars: Stack) -> None:
    await sidecars.up()
    await meet(sidecars)
    for name, script in (("p0", sidecars.engines["p0"].script), ("d0", sidecars.engines["d0"].script)):
        script.hang = True
        body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": f"leaves {name}"}]}
        pending = asyncio.ensure_future(sidecars.http.post(sidecars.front + "/v1/chat/completions", json=body))
        await until(lambda name=name: is_so(sidecars.engines[name].running == 1))  # type: ignore[misc]
        pending.cancel()
        async with asyncio.timeout(0.5):
            await until(lambda name=name: is_so(sidecars.engines[name].running == 0))  # type: ignore[misc]
        script.hang = False
    assert await links(sidecars, "c0") == await links(sidecars, "d0") == 1


async def test_a_worker_that_dies_takes_its_link_along_and_its_streams_go_on_elsewhere(sidecars: Stack) -> None:
    await sidecars.up(decode=2)
    await prefer(sidecars, "d0")
    await meet(sidecars)
    sidecars.engines["d0"].script.gap_s = 0.2

    async def begun() -> float:
        return await sidecars.count("weft_router_ttft_seconds_count", "d0")

    before = await begun()
    pending = [asyncio.ensure_future(ask(sidecars, "chat")(k)) for k in range(8)]

    async def all_begun() -> bool:
        return await begun() == before + len(pending)

    await until(all_begun)
    await sidecars.kill("d0")
    answers = await asyncio.gather(*pending)
    assert [flaw(answer, prompt("chat", k), may_end_at=None) for k, answer in enumerate(answers)] == [None] * 8
    assert await sidecars.count("weft_router_resumes_total", outcome="resumed") == 8
    assert all(len(answer.text) >= LENGTH for answer in answers)


async def test_nobody_without_the_token_gets_a_link_and_no_front_has_one_to_give(sidecars: Stack) -> None:
    await sidecars.up()
    head = {"Connection": "Upgrade", "Upgrade": "weft-link/1"}
    for name, status in (("d0", 401), ("p0", 401), ("c0", 404)):
        async with aiohttp.ClientSession() as client:
            url = sidecars.processes[name].url + "/internal/link"
            async with client.get(url, headers=head) as response:
                assert response.status == status, name
