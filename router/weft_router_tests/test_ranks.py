"""An engine of several data-parallel ranks: a session stays on one, and as many prefills run as there are batches."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from weft_core.parallelism import Degree, degree_of
from weft_core.policies.snapshot import PrefillTask
from weft_router.engines.watch import MOST_SESSIONS, RANK_HEADER, Engine
from weft_router.http.pool import ConnectionPool
from weft_router.state.registry import Health, Registry
from weft_router.state.store import MemoryStore
from weft_router.telemetry.metrics import Metrics
from weft_router.workers.worker import Worker
from weft_router_tests.stack import settings


async def _no_answer(_: str) -> Health:
    return "dead"


def engine(ranks: int, proof: str = "") -> Engine:
    pool = ConnectionPool(connect_s=1.0, keepalive_s=1.0)
    return Engine(pool, "http://127.0.0.1:9", on_change=lambda: None, proof=proof, ranks=ranks)


async def test_a_session_stays_on_one_of_the_ranks() -> None:
    ranks = engine(8)
    lines = [ranks.lines_of(f"s-{number}") for number in range(400)]
    assert lines == [ranks.lines_of(f"s-{number}") for number in range(400)]
    assert Counter(lines) == {f"{RANK_HEADER}: {rank}\r\n": 50 for rank in range(8)}


async def test_of_very_many_sessions_those_that_paused_longest_are_forgotten() -> None:
    ranks = engine(8)
    for number in range(MOST_SESSIONS + 100):
        ranks.lines_of(f"s-{number}")
        if number >= 3:
            assert ranks.lines_of("s-3").endswith(": 3\r\n"), "it goes on, and its KV is on this rank"
    assert len(ranks._rank_of) == MOST_SESSIONS
    assert ranks.rank_of("s-3") == 3
    assert ranks.rank_of("s-100") is None
    assert ranks.rank_of("s-101") == 101 % 8
    assert engine(1).rank_of("any") == 0


async def test_an_engine_of_one_batch_gets_no_rank_and_the_proof_stays() -> None:
    assert engine(1).lines_of("s") == ""
    with_proof = engine(2, proof="word")
    assert with_proof.lines_of("s").startswith(with_proof.proof)
    assert RANK_HEADER in with_proof.lines_of("s")


@pytest.mark.parametrize(("degree", "at_once"), [(1, 1), (degree_of(dp=2, ep=True), 2), (degree_of(pp=3), 3)])
async def test_as_many_prefills_are_at_work_as_the_engine_has_batches(
    tmp_path: Path, degree: Degree, at_once: int
) -> None:
    worker_settings = settings(tmp_path, "prefill", port=1, worker="p0")
    costs = next(iter(worker_settings.profile.degrees.values()))
    worker_settings = replace(
        worker_settings, degree=degree, profile=replace(worker_settings.profile, degrees={degree: costs})
    )
    store = MemoryStore()
    worker = Worker(
        worker_settings, store=store, registry=Registry(store, _no_answer),
        engines=ConnectionPool(connect_s=1.0, keepalive_s=1.0), metrics=Metrics(),
    )  # fmt: skip
    slots = [await worker.queue.acquire(f"r-{number}", PrefillTask(0, 9000), ttft_slo=9.0) for number in range(at_once)]
    assert [slot.until_first() > 0 for slot in slots] == [True] * at_once
    assert len({round(slot.began, 1) for slot in slots}) == 1
    assert worker.queue._engine_slots._working == at_once
