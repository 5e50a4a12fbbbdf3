"""A prefill and a decode engine of two data-parallel ranks each: sessions keep their rank, and KV moves both ways.

The model is dense, for which vLLM's ranks are engines of their own behind one API. Mixtures of experts, whose ranks
exchange tokens in every layer, do not run on vLLM's CPU build; the last test notices when they do.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft_core.parallelism import degree_of
from weft_e2e.engines.counters import sources
from weft_e2e.engines.environment import environment
from weft_e2e.engines.process import EngineProcess
from weft_e2e_tests.engine_routers import other_router
from weft_e2e_tests.engine_stack import LONG, Chat, EngineStack, engine_stack
from weft_e2e_tests.test_engine_rounds import agree, talk_at_once

pytestmark = [
    pytest.mark.component,
    pytest.mark.engine,
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_ENGINE"), reason="real engines: make e2e-engine"),
]

TWO_RANKS = degree_of(dp=2)
SESSIONS = 4
_COMMUNICATOR = "venv/lib/python3.11/site-packages/vllm/distributed/device_communicators/cpu_communicator.py"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, plain: EngineProcess) -> Iterator[EngineStack]:
    with engine_stack(tmp_path_factory.mktemp("ranks"), plain, degree=TWO_RANKS) as running:
        yield running


def test_sessions_stay_on_their_rank_and_kv_moves_both_ways(stack: EngineStack, tmp_path: Path) -> None:
    roles, slo = {"prefill": "prefill", "decode": "decode"}, {"ttft": 120.0, "itl": 1.0}
    routing = {"policy": "always-remote"}
    before = stack.pages()
    with other_router(stack, tmp_path / "router", roles, routing=routing, slo=slo, degree=TWO_RANKS) as url:
        chats = talk_at_once([Chat(url, stream=index % 2 == 0, tokens=LONG) for index in range(SESSIONS)])
        assert all(chat.route == "remote" for chat in chats)
        stack.until_moved(before, prefill=SESSIONS, decode=2 * SESSIONS)
    grown = stack.grown(before)
    requests = [grown.by_page("vllm:request_success_total", engine=rank)["decode"] for rank in ("0", "1")]
    assert requests == [SESSIONS, SESSIONS], "two rounds of two sessions on each rank"
    first = sum(len(chat.messages[0]["content"]) + LONG for chat in chats)
    # The history of each second round is on the rank of its first one: only the increment moves there.
    assert sources(grown, "decode").cached > 0.8 * first
    for chat in chats:
        agree(stack, chat)


def test_ranks_that_engines_choose_themselves_answer_alike(stack: EngineStack) -> None:
    """A router that knows of no ranks sends no header: vLLM spreads rounds over them, and handles name the rank."""
    stack.use_policy("always-remote")
    chats = talk_at_once([stack.chat(stream=index % 2 == 0, tokens=LONG) for index in range(SESSIONS)])
    for chat in chats:
        agree(stack, chat)


def test_the_cpu_build_still_cannot_share_experts_between_ranks() -> None:
    """Its first request ends such an engine: NotImplementedError, DeviceCommunicatorBase.all_gatherv."""
    communicator = (environment().root / _COMMUNICATOR).read_text(encoding="utf-8")
    assert "def dispatch" in communicator
    assert "def all_gatherv" not in communicator, "make the tiny model a mixture of experts, and run it with ep here"
