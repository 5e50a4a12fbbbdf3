"""The book's rules: thresholds, weighted votes, composite latency cost."""

import math

import pytest
from hypothesis import given

from weft_core.policies.inputs import LocalFigures, RemoteFigures, TaskFigures
from weft_core.policies.registry import parameters
from weft_core_tests.vectors import NOT_KNOWN, ask, fleets, local, locals_, remote, task, tasks

THRESHOLDS = parameters("threshold")
VOTES = parameters("weighted-score")
COSTS = parameters("latency-cost")


@pytest.mark.parametrize(
    ("increment", "queued", "batch", "expected"),
    [
        (300, 4, 0, (0, "long-prompt")),
        (256, 9, 0, (0, "long-prompt")),
        (255, 0, 3, (-1, "short-prompt")),
        (300, 10, 3, (-1, "queue-full")),
        (300, 10, 8, (-1, "queue-full")),
        (300, 4, 8, (0, "long-prompt")),
        (5, 0, 8, (0, "decode-busy")),
        (10, 50, 8, (-1, "queue-full")),
    ],
)
def test_thresholds_worked_by_hand(increment: float, queued: float, batch: float, expected: tuple[int, str]) -> None:
    found = ask("threshold", task(increment=increment), local(batch=batch), [remote(queued=queued)], THRESHOLDS)
    assert found.short == expected


def test_the_queue_of_all_workers_counts_and_the_first_to_finish_gets_the_task() -> None:
    there = [remote(queued=5, own=2.0), remote(queued=4, own=1.0)]
    assert ask("threshold", task(), local(), there, THRESHOLDS).short == (1, "long-prompt")
    assert ask("threshold", task(), local(), [*there, remote(queued=1)], THRESHOLDS).short == (-1, "queue-full")


def test_only_an_urgent_ttft_skips_a_long_queue() -> None:
    urgent = parameters("threshold", overrides={"urgent_ttft": 0.5})
    busy, there = local(batch=20), [remote(queued=50)]
    assert ask("threshold", task(increment=5, ttft=0.4), busy, there, urgent).short == (0, "decode-busy")
    assert ask("threshold", task(increment=5, ttft=2.0), busy, there, urgent).short == (-1, "queue-full")
    assert ask("threshold", task(increment=5, ttft=0.4), local(), there, urgent).short == (-1, "short-prompt")


@pytest.mark.parametrize(("history", "expected"), [(3000, (0, "long-prompt")), (3001, (-1, "prompt-cached"))])
def test_a_prompt_that_is_mostly_cached_stays(history: float, expected: tuple[int, str]) -> None:
    cached = parameters("threshold", overrides={"cached_share": 0.75})
    assert ask("threshold", task(history=history, increment=1000), local(), [remote()], cached).short == expected


@given(tasks, locals_, fleets)
def test_thresholds_hold(of: TaskFigures, here: LocalFigures, there: list[RemoteFigures]) -> None:
    found = ask("threshold", of, here, there, THRESHOLDS)
    room = sum(worker.queued for worker in there) < 10
    remote_wanted = of.increment >= 256 or here.batch >= 8
    assert (found.choice >= 0) == (bool(there) and room and remote_wanted)


@pytest.mark.parametrize(
    ("increment", "queued", "expected"),
    [
        (300, 3, (0, "score")),  # 0.7 > 0.5
        (300, 11, (-1, "low-score")),  # 0.7 - 0.3 = 0.4
        (256, 0, (-1, "low-score")),  # not above 256
        (300, 10, (0, "score")),  # not above 10
    ],
)
def test_votes_worked_by_hand(increment: float, queued: float, expected: tuple[int, str]) -> None:
    assert ask("weighted-score", task(increment=increment), local(), [remote(queued=queued)], VOTES).short == expected


def test_further_votes_count_when_they_have_a_weight() -> None:
    cached = parameters("weighted-score", overrides={"cache_weight": 1.0})  # 0.7 - 2000 / 3000
    assert ask("weighted-score", task(), local(), [remote()], cached).short == (-1, "low-score")
    busy = parameters("weighted-score", overrides={"decode_weight": 0.6})
    assert ask("weighted-score", task(increment=5), local(batch=8), [remote()], busy).short == (0, "score")


@pytest.mark.parametrize(("weight", "choice"), [(0.29, 0), (0.31, -1)])
def test_the_cached_share_of_the_prompt_votes_against_remote(weight: float, choice: int) -> None:
    """2,000 of 3,000 tokens are cached: 0.7 - 0.29 x 2 / 3 = 0.507 > 0.5, 0.7 - 0.31 x 2 / 3 = 0.493."""
    params = parameters("weighted-score", overrides={"cache_weight": weight})
    assert ask("weighted-score", task(history=2000, increment=1000), local(), [remote()], params).choice == choice


@given(tasks, locals_, fleets)
def test_a_score_above_the_least_goes_remote(of: TaskFigures, here: LocalFigures, there: list[RemoteFigures]) -> None:
    found = ask("weighted-score", of, here, there, VOTES)
    score = 0.7 * (of.increment > 256) - 0.3 * (sum(worker.queued for worker in there) > 10)
    assert (found.choice >= 0) == (bool(there) and score > 0.5)


def test_the_latency_cost_worked_by_hand() -> None:
    here = local(context=5000, free=5000, batch=3, queued=1, step=0.02)
    found = ask("latency-cost", task(history=2000, itl=0.05), here, [remote()], COSTS)
    assert found.costs == pytest.approx([3 * 0.5 + 4 - 10 + 0.5 * 0.4 - 1, 0.0])
    assert found.short == (-1, "least-cost")
    fresh = ask("latency-cost", task(history=0, itl=0.05), here, [remote()], COSTS)
    assert fresh.costs[0] == pytest.approx(5.7)
    assert fresh.choice == 0


def test_cache_link_and_recency_of_prefill_workers_count() -> None:
    there = [
        remote(kv_use=0.5, queued=2, rate=1e9),
        remote(kv_use=0.5, queued=2, rate=5e8),
        remote(kv_use=0.5, queued=2, rate=1e9, cached=100, idle=100),
        remote(kv_use=0.5, queued=2, rate=1e9, cached=100, idle=10),
    ]
    found = ask("latency-cost", task(history=0), local(batch=50), there, COSTS)
    assert found.costs[1:] == pytest.approx([3.5, 3.75, -6.5, -7.5])
    assert found.choice == 3


@pytest.mark.parametrize(
    ("here", "history", "cost"),
    [
        (local(context=0, free=0), 0, 3 * 1.0 + 0.2),  # a worker without room counts as full
        (local(context=0, free=-500), 0, 3 * 1.0 + 0.2),
        (local(context=0, free=1), 0, 0.2),
        (local(context=NOT_KNOWN, free=NOT_KNOWN), 0, 3 * 1.0 + 0.2),
        (local(context=1, free=3, step=0.5), 0, 3 * 0.25 + 0.5),  # a step far above the SLO takes all the bandwidth
        (local(context=1, free=3, step=NOT_KNOWN), 0, 3 * 0.25),
        (local(context=0, free=1), 1, 0.2 - 10 - 1),  # a history of one token is a match, recently used
    ],
)
def test_the_decode_workers_latency_cost(here: LocalFigures, history: float, cost: float) -> None:
    found = ask("latency-cost", task(history=history, itl=0.05), here, [], COSTS)
    assert found.costs == pytest.approx([cost])


def test_an_unknown_link_counts_as_the_slowest() -> None:
    there = [remote(rate=1e9), remote(rate=NOT_KNOWN), remote(kv_use=NOT_KNOWN, rate=1e9)]
    assert ask("latency-cost", task(), local(), there, COSTS).costs[1:] == pytest.approx([0.0, 0.5, 0.0])
    assert ask("latency-cost", task(), local(), [remote(rate=0.0)], COSTS).costs[1:] == [0.0], "no link is faster"


def test_a_use_is_recent_up_to_the_windows_end() -> None:
    there = [remote(cached=1, idle=60), remote(cached=1, idle=60.5)]
    assert ask("latency-cost", task(), local(), there, COSTS).costs[1:] == pytest.approx([-11.0, -10.0])


@given(tasks, locals_, fleets)
def test_the_least_latency_cost_is_taken(of: TaskFigures, here: LocalFigures, there: list[RemoteFigures]) -> None:
    found = ask("latency-cost", of, here, there, COSTS)
    assert all(math.isfinite(cost) for cost in found.costs)
    assert found.choice == found.costs.index(min(found.costs)) - 1
