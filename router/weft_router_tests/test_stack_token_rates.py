"""A token rate is charged what an answer really took, wherever that is counted; the client is not told."""

from typing import Any

import pytest

from weft_router.limits.admission import UNASKED_OUTPUT
from weft_router_tests.fake_engine import prompt_ids
from weft_router_tests.stack import MODEL, Answer, Stack, is_so, router_json, until

pytestmark = pytest.mark.component

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello " * 20}]
PROMPT = len(prompt_ids({"messages": HELLO}))
SIZE = 3600.0
RATES = {"tokensPerMinute": 60, "burstSeconds": SIZE}
FILLS = 15.0
"""Tokens that may come back while a test runs, at one a second."""


def limited(**sections: dict[str, Any]) -> dict[str, Any]:
    return router_json(limits={"rates": RATES}, **sections)


def taken(stack: Stack) -> float:
    """Return how many tokens are missing from the one bucket there is."""
    app: Any = stack.processes["c0"].app
    (bucket,) = app._front.admission._tokens._buckets.values()
    return SIZE - float(bucket.level)


def secretive(answer: Answer) -> bool:
    return b"weft-" not in answer.raw.replace(b'"weft-', b"") and "X-Weft-Tokens" not in answer.headers


@pytest.mark.parametrize("prefill", [0, 1])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("length", [8, 2 * UNASKED_OUTPUT])
async def test_the_difference_to_the_estimate_is_charged_or_given_back(
    stack: Stack, stream: bool, length: int, prefill: int
) -> None:
    stack.config = limited()
    await stack.up(prefill=prefill)
    stack.engines["d0"].script.length = length
    answer = await stack.chat(HELLO, stream=stream)
    assert answer.status == 200
    assert len(answer.text) == length
    assert secretive(answer)
    await until(lambda: is_so(abs(taken(stack) - PROMPT - length) < FILLS))


async def test_an_answer_that_a_second_worker_ended_is_charged_once_and_whole(stack: Stack) -> None:
    stack.config = limited()
    await stack.up(decode=2, prefill=0)
    for engine in stack.engines.values():
        engine.script.length = 200
        engine.script.die_at_token, engine.script.times = 150, 1
    answer = await stack.chat(HELLO, stream=True)
    assert answer.whole
    assert sum(engine.died for engine in stack.engines.values()) >= 1
    await until(lambda: is_so(abs(taken(stack) - PROMPT - 200) < FILLS))


async def test_a_client_that_leaves_pays_for_what_it_got(stack: Stack) -> None:
    stack.config = limited()
    await stack.up(prefill=0)
    engine = stack.engines["d0"]
    engine.script.length, engine.script.gap_s = 2000, 0.001
    body = {"model": MODEL, "messages": HELLO, "stream": True}
    response = await stack.http.post(stack.front + "/v1/chat/completions", json=body)
    got = 0
    async for line in response.content:
        got += line.startswith(b"data: ")
        if got == 2 * UNASKED_OUTPUT:
            break
    response.close()
    await until(lambda: is_so(engine.running == 0))
    await until(lambda: is_so(taken(stack) > 2 * UNASKED_OUTPUT))
    assert taken(stack) < PROMPT + 2000


@pytest.mark.parametrize("stream", [True, False])
async def test_what_no_engine_would_serve_costs_nothing(stack: Stack, stream: bool) -> None:
    stack.config = limited()
    await stack.up(prefill=0)
    stack.engines["d0"].script.status = 400
    assert (await stack.chat(HELLO, stream=stream)).status == 400
    await until(lambda: is_so(abs(taken(stack)) < 1))
