"""Engines that are slower, or faster, than their cost profile: routers find out and correct their predictions."""

from pathlib import Path

import pytest

from weft_e2e.agreement.scenario import default_scenario
from weft_e2e.metrics import parse
from weft_e2e.replay.client import replay
from weft_e2e.replay.sessions import PlannedRound, PlannedSession
from weft_e2e.stack import StackConfig, StackWorker, running
from weft_e2e.waiting import until
from weft_mock.tokenizer import filler

pytestmark = [pytest.mark.component, pytest.mark.alone]

PROMPTS = 8
TOKENS = 3000


@pytest.mark.parametrize(("slower", "policy", "worker"), [(2.0, "always-remote", "p-0"), (0.5, "always-local", "d-0")])
async def test_the_slowdown_of_an_engine_is_found(slower: float, policy: str, worker: str, tmp_path: Path) -> None:
    """Prompts come every 2 s, and their prefills take 0.4 to 1.6 s."""
    config = StackConfig(
        profile=default_scenario().profile,
        workers=(StackWorker("p-0", "prefill", 1), StackWorker("d-0", "decode", 1)),
        policy=policy,
        time_scale=slower,
    )
    with running(config, tmp_path) as stack:

        def slowdown() -> float:
            return next(record.slowdown for record in stack.records() if record.worker == worker)

        assert slowdown() == 1.0
        sessions = [PlannedSession(f"s-{k}", 2.0 * k, (PlannedRound(TOKENS, 4, 0.0),)) for k in range(PROMPTS)]
        result = await replay(sessions, stack.target, filler=filler)
        assert result.failures == ()
        until(lambda: slowdown() != 1.0, what="a heartbeat that names the slowdown", timeout_s=10)
        assert slowdown() == pytest.approx(slower, rel=0.25)
        gauge = parse(stack.metrics_pages()[worker]).samples["weft_router_engine_slowdown", frozenset()]
        assert gauge == pytest.approx(slowdown(), rel=0.1)
