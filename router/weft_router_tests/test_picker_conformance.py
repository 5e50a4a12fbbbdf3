"""The conformance cases of the Gateway API Inference Extension in which an endpoint picker takes part, over Envoy.

Each has the name of its case (``ShortName`` of ``conformance/tests``, version 1.6.0), and says here what the case says
there. The extension's suite tests gateways, with a picker of its own that obeys the header
``test-epp-endpoint-selection``. Here the picker is Weft's, and Envoy passes the header on as the subset of endpoints
that the picker may choose from. docs/gateways.md lists the cases that need a gateway's controller.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from weft_router_tests.envoy import CHOICE_HEADER, BodyMode, Envoy
from weft_router_tests.picker_kit import USER, Behind, address, picked, shown
from weft_router_tests.stack import MODEL, Answer, Stack, crowd, router_json, until

pytestmark = pytest.mark.component

PODS = 3
"""Workers of a pool, as in the suite."""
REQUESTS, AT_ONCE = 100, 10
PROMPT = "Write as if you were a critic: San Francisco"


@pytest.fixture
async def two_pools(tmp_path: Path) -> AsyncIterator[tuple[Stack, Stack]]:
    """Give two services."""
    made = []
    for name in ("primary", "secondary"):
        folder = tmp_path / name
        folder.mkdir()
        made.append(Stack(folder))
    yield made[0], made[1]
    for stack in made:
        await asyncio.wait_for(stack.close(), 15)


async def ask(stack: Stack, envoy: Envoy, *among: str, **fields: Any) -> Answer:
    """Send a request whose picker may choose from some workers."""
    headers = {CHOICE_HEADER: ",".join(address(stack, name) for name in among)} if among else {}
    return await stack.chat([USER], front=envoy.url, headers=headers, max_tokens=2, **fields)


def served(stack: Stack) -> int:
    """Return how many requests the engines of a service got."""
    return sum(len(engine.seen) for engine in stack.engines.values())


@pytest.mark.parametrize("by_workers", [False, True], ids=["by-header", "by-metadata"])
async def test_gateway_following_epp_routing(sidecars: Stack, behind: Behind, by_workers: bool) -> None:
    """GatewayFollowingEPPRouting: requests go to endpoints that the picker chose, and to no other.

    All workers have one address here and differ in their ports.
    """
    await picked(sidecars, decode=PODS, prefill=0)
    envoy = await behind(sidecars, by_workers=by_workers)
    for worker in ("d0", "d1", "d2"):
        answer = await ask(sidecars, envoy, worker)
        assert (answer.status, shown(answer, "X-Weft-Worker")) == (200, worker)
    for among in (["d2"], ["d0", "d1"], ["d0", "d1", "d2"]):
        before = {name: len(engine.seen) for name, engine in sidecars.engines.items()}
        reached: Counter[str] = Counter()

        async def one(_: int, among: list[str] = among, reached: Counter[str] = reached) -> str | None:
            answer = await ask(sidecars, envoy, *among)
            if answer.status != 200:
                return f"{answer.status} {answer.raw[:200]!r}"
            reached[shown(answer, "X-Weft-Worker")] += 1
            return None

        assert not await crowd(REQUESTS, AT_ONCE, one)
        assert set(reached) <= set(among)
        got = {name: len(engine.seen) - before[name] for name, engine in sidecars.engines.items()}
        assert got == {name: reached[name] for name in sidecars.engines}, "none was tried elsewhere before"


async def test_without_an_eligible_endpoint_the_answer_is_a_503(sidecars: Stack, behind: Behind) -> None:
    """The protocol says so, and no case of the suite: without an eligible endpoint the answer is a 503."""
    await picked(sidecars, decode=2, prefill=0)
    envoy = await behind(sidecars)
    answer = await sidecars.chat([USER], front=envoy.url, headers={CHOICE_HEADER: "127.0.0.1:9"})
    assert answer.status == 503
    assert served(sidecars) == 0


async def test_a_session_moves_to_an_eligible_endpoint(sidecars: Stack, behind: Behind) -> None:
    """The protocol says so, and no case of the suite: a session of another worker moves to an eligible one."""
    await picked(sidecars, decode=12, prefill=0)
    envoy = await behind(sidecars)
    first = await ask(sidecars, envoy, "d3", session="s")
    assert shown(first, "X-Weft-Worker") == "d3"
    moved = await ask(sidecars, envoy, "d11", session="s", stream=True)
    assert moved.whole, moved.raw
    assert shown(moved, "X-Weft-Worker") == "d11"
    assert await sidecars.count("weft_router_replays_total", "e0") == 0


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
@pytest.mark.parametrize("by_workers", [False, True], ids=["by-header", "by-metadata"])
async def test_epp_unavailable_fail_open(sidecars: Stack, behind: Behind, by_workers: bool, mode: BodyMode) -> None:
    """EppUnAvailableFailOpen: while no picker answers, requests reach any worker.

    A worker of Weft then passes them on to the coordinators, which authenticate them and choose their worker.
    """
    await sidecars.router("coordinator", "c0")
    sidecars.config = router_json(routing={"failOpenUrl": sidecars.front})
    await picked(sidecars, decode=PODS, prefill=0)
    envoy = await behind(sidecars, by_workers=by_workers, body_mode=mode, fail_open=True)
    answer = await ask(sidecars, envoy, "d0")
    assert (answer.status, shown(answer, "X-Weft-Worker")) == (200, "d0")
    await sidecars.kill("e0")

    async def passes() -> bool:
        return (await ask(sidecars, envoy, "d0")).status == 200

    await until(passes)
    streamed = await ask(sidecars, envoy, "d0", stream=True)
    assert streamed.whole, streamed.raw
    refused = await sidecars.chat([USER], front=envoy.url, model="other")
    assert (refused.status, refused.json["error"]["code"]) == (404, "model_not_found"), "it is a coordinator's answer"


async def test_gateway_weighted_across_two_inference_pools(two_pools: tuple[Stack, Stack], behind: Behind) -> None:
    """GatewayWeightedAcrossTwoInferencePools: two pools get their shares, each the requests of its own picker."""
    for stack in two_pools:
        await picked(stack, decode=PODS, prefill=0)
    envoy = await behind(*two_pools, weights=[70, 30])

    async def one(_: int) -> str | None:
        answer = await ask(two_pools[0], envoy)
        return None if answer.status == 200 else f"{answer.status} {answer.raw[:200]!r}"

    assert not await crowd(200, 5, one)
    shares = [served(stack) for stack in two_pools]
    assert sum(shares) == 200
    assert abs(shares[0] / 200 - 0.7) <= 0.146, "4.5 standard deviations, as in the suite"


async def test_http_route_multiple_gateways_different_pools(two_pools: tuple[Stack, Stack], behind: Behind) -> None:
    """HTTPRouteMultipleGatewaysDifferentPools: each of two gateways has a pool."""
    for place, stack in enumerate(two_pools):
        await picked(stack, prefill=0)
        envoy = await behind(stack, by_workers=True)
        assert (await ask(stack, envoy)).status == 200
        assert [served(one) for one in two_pools] == [1, place]


async def test_http_route_multiple_rules_different_pools(two_pools: tuple[Stack, Stack], behind: Behind) -> None:
    """HTTPRouteMultipleRulesDifferentPools: two rules of a route lead to two pools, by the path."""
    for stack in two_pools:
        await picked(stack, prefill=0)
    envoy = await behind(*two_pools, paths=["/v1/chat/completions", "/v1/completions"])
    assert (await ask(two_pools[0], envoy)).status == 200
    assert [served(stack) for stack in two_pools] == [1, 0]
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2}
    async with two_pools[1].http.post(envoy.url + "/v1/completions", json=body) as response:
        assert response.status == 200
    assert [served(stack) for stack in two_pools] == [1, 1]
