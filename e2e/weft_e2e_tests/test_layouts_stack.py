"""Other layouts than one degree per role, as processes on loopback: unlike pools, mixed degrees, co-located."""

from collections.abc import Iterator

import pytest

from weft_core.analytic import derive_profile
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_e2e.checks import check_history_read, check_no_failures, check_session_served, check_tokens_computed_once
from weft_e2e.checks.sessions import FOUR_ROUNDS
from weft_e2e.metrics import growth, kv_flow, parse
from weft_e2e.replay.client import Deadlines, replay
from weft_e2e.replay.sessions import PlannedSession
from weft_e2e.stack import Stack, StackConfig, StackWorker, running
from weft_mock.tokenizer import filler

pytestmark = pytest.mark.component

MODEL = MODELS["meta-llama/Llama-3.1-8B-Instruct"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Run prefill on H100 at degree 1, decode on H20 at degree 2 and on H100 at degree 1."""
    pools = {
        "h20": derive_profile(MODEL, GPUS["nvidia-h20"], degrees=[2]),
        "h100": derive_profile(MODEL, GPUS["nvidia-h100"], degrees=[1]),
    }
    workers = (
        StackWorker("p-0", "prefill", 1, "h100"),
        StackWorker("d-0", "decode", 2, "h20"),
        StackWorker("d-1", "decode", 1, "h100"),
    )
    config = StackConfig(
        profile=pools["h20"], pools=pools, workers=workers, policy="remote-jsq", binding="round-robin",
        time_scale=0.1, max_model_len=8192,
    )  # fmt: skip
    with running(config, tmp_path_factory.mktemp("mixed")) as found:
        yield found


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Run two workers that prefill and decode for their own sessions, and none that only prefills."""
    profile = derive_profile(MODEL, GPUS["nvidia-h20"], degrees=[1])
    workers = (StackWorker("d-0", "decode", 1), StackWorker("d-1", "decode", 1))
    config = StackConfig(
        profile=profile, workers=workers, policy="colocated", time_scale=0.1, max_model_len=8192, bidirectional=False
    )
    with running(config, tmp_path_factory.mktemp("together")) as found:
        yield found


def sessions(name: str, count: int) -> list[PlannedSession]:
    return [PlannedSession(f"{name}-{k}", 0.05 * k, FOUR_ROUNDS.rounds) for k in range(count)]


async def test_sessions_on_both_decode_groups_are_right_and_read_their_history(mixed: Stack) -> None:
    before = mixed.metrics_pages()

    result = await replay(sessions("mixed", 8), mixed.target, filler=filler, deadlines=Deadlines(replay_s=60))

    check_no_failures(result.records)
    assert {r.worker for r in result.records} == {"d-0", "d-1"}, "both groups serve"
    remote = [r for r in result.records if r.route == "remote"]
    for worker in ("d-0", "d-1"):
        assert any(r.index and r.worker == worker for r in remote), f"later rounds of {worker} go to the prefill worker"
    check_history_read(before, mixed.metrics_pages(), remote_later_rounds=len([r for r in remote if r.index]))
    assert {r.reason for r in remote} == {"shortest-finish"}, "every pair of workers has a prediction"


def test_each_worker_is_costed_and_sized_by_its_own_pool(mixed: Stack) -> None:
    for worker in mixed.config.workers:
        blocks = mixed.ledger(worker.name)["blocks"]
        assert isinstance(blocks, dict)
        wanted = mixed.config.pools[worker.pool].kv_capacity(worker.degree)
        assert blocks["total"] == wanted // blocks["block_size"]


async def test_without_prefill_workers_a_session_stays_on_one_worker_and_computes_nothing_twice(
    together: Stack,
) -> None:
    before = together.metrics_pages()

    transcript = await check_session_served(together.target, session=sessions("alone", 1)[0])

    after = together.metrics_pages()
    assert {(r.route, r.reason) for r in transcript.records} == {("local", "colocated")}
    assert len({r.worker for r in transcript.records}) == 1
    check_tokens_computed_once(before, after, transcript.records)
    flow = kv_flow(growth(before, after))
    assert (flow.prefill_to_decode_bytes, flow.decode_to_prefill_bytes) == (0, 0)


async def test_many_sessions_share_the_co_located_workers(together: Stack) -> None:
    result = await replay(sessions("many", 12), together.target, filler=filler, deadlines=Deadlines(replay_s=60))

    check_no_failures(result.records)
    assert {r.worker for r in result.records} == {"d-0", "d-1"}
    page = together.metrics_pages()["coordinator"]
    ready = {labels: n for (name, labels), n in parse(page).samples.items() if name == "weft_router_workers"}
    assert ready[frozenset({("role", "decode"), ("state", "ready")})] == 2
    assert ready[frozenset({("role", "prefill"), ("state", "ready")})] == 0
