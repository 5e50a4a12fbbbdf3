"""Answers in one piece: their rounds count as those of streams do."""

from time import monotonic
from typing import Any

import pytest

from weft_router_tests.stack import Stack, router_json, until

pytestmark = pytest.mark.component

PROMPT: list[dict[str, Any]] = [{"role": "user", "content": "hello " * 20}]
GAP_S, TOKENS = 0.03, 40


async def ended(stack: Stack, name: str = "d0") -> dict[str, float]:
    """Return a sidecar's metrics once its round is counted."""
    page: dict[str, float] = {}

    async def seen() -> bool:
        page.update(await stack.metrics(name))
        return page.get('weft_router_rounds_total{phase="first",class="default"}', 0) > 0

    await until(seen)
    return page


@pytest.mark.parametrize("policy", ["always-local", "always-remote"])
@pytest.mark.parametrize("stream", [True, False])
async def test_windowed_itl_does_not_depend_on_streaming(stack: Stack, policy: str, stream: bool) -> None:
    stack.config = router_json(routing={"policy": policy}, slo={"itl": 1.0})
    await stack.up()
    stack.engines["d0"].script.length, stack.engines["d0"].script.gap_s = TOKENS, GAP_S
    began = monotonic()
    assert (await stack.chat(PROMPT, stream=stream)).status == 200
    longest = (monotonic() - began) / (TOKENS - 1)  # on a busy machine the engine is slower than its script
    page = await ended(stack)
    windowed = stack.worker_of("d0").record(0).windowed_itl
    assert windowed is not None
    assert 0.9 * GAP_S < windowed < 1.05 * longest
    assert page['weft_router_slo_rounds_total{objective="itl",outcome="good",class="default"}'] == 1


async def test_an_answer_of_one_token_is_its_own_first_token(stack: Stack) -> None:
    stack.config = router_json(slo={"ttft": 0.05})
    await stack.up(prefill=0)
    stack.engines["d0"].script.length, stack.engines["d0"].script.delay_s = 1, 0.2
    assert (await stack.chat(PROMPT, stream=False)).status == 200
    page = await ended(stack)
    assert page['weft_router_slo_rounds_total{objective="ttft",outcome="bad",class="default"}'] == 1


@pytest.mark.parametrize(("itl", "reason"), [(GAP_S / 2, "least-cost"), (20 * GAP_S, "itl-slack")])
@pytest.mark.parametrize("stream", [True, False])
async def test_ampd_sees_the_gaps_of_answers_in_one_piece(stack: Stack, stream: bool, itl: float, reason: str) -> None:
    """The first round leaves no slack in the prefill worker's TTFT, so the next one is decided by the windowed ITL."""
    stack.config = router_json(routing={"policy": "ampd"}, slo={"itl": itl, "ttft": 1e-4})
    await stack.up()
    stack.engines["d0"].script.length, stack.engines["d0"].script.gap_s = TOKENS, GAP_S
    first = await stack.chat(PROMPT, session="a", stream=stream)
    assert first.headers["X-Weft-Reason"] == "ttft-slack"
    await ended(stack)
    second = await stack.chat([{"role": "user", "content": "other " * 20}], session="b", stream=stream)
    assert second.headers["X-Weft-Reason"] == reason
