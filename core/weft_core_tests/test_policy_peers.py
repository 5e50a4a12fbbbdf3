"""The rules of vllm-router and sglang-router: cache-aware, sticky, by hash, two choices, in turn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.finish import remote_work
from weft_core.policies.inputs import LocalFigures, RemoteFigures, TaskFigures
from weft_core.policies.registry import POLICIES, parameters
from weft_core_tests.vectors import NOT_KNOWN, ask, fleets, local, locals_, remote, task, tasks

PEERS = ("cache-aware", "sticky-least-loaded", "consistent-hash", "power-of-two", "round-robin")
CACHE_AWARE = parameters("cache-aware")
NONE = (0.0,)


@given(st.sampled_from(PEERS), tasks, locals_, fleets, st.data())
def test_peers_prefill_at_a_prefill_worker_and_read_no_history(
    name: str, of: TaskFigures, here: LocalFigures, there: list[RemoteFigures], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(there))))
    found = ask(name, of, here, there, parameters(name), order=order)
    assert not POLICIES[name].reads_history
    assert found.choice in range(len(there)) if there else found.short == (-1, "no-prefill-worker")


@pytest.mark.parametrize(
    ("sent", "queued", "expected"),
    [
        ((0, 400), (0, 50), (1, "sent-before")),  # 0.4 of 1,000 > 0.3
        ((0, 300), (0, 50), (0, "least-loaded")),  # not above 0.3
        ((0, 400), (0, 64), (1, "sent-before")),  # not more than 64
        ((0, 400), (0, 65), (0, "unbalanced")),
        ((0, 400), (130, 195), (1, "sent-before")),  # 195 is not above 1.5 x 130
        ((0, 400), (130, 196), (0, "unbalanced")),
        ((400, 500), (3, 9), (1, "sent-before")),  # most of it
        ((400, 400), (5, 4), (1, "sent-before")),  # the least loaded of equals
        ((400, 400), (4, 4), (0, "sent-before")),
        ((0, 0), (4, 3), (1, "least-loaded")),
        ((0, 0), (4, 4), (0, "least-loaded")),
    ],
)
def test_cache_aware_worked_by_hand(
    sent: tuple[float, float], queued: tuple[float, float], expected: tuple[int, str]
) -> None:
    there = [remote(sent=s, queued=q) for s, q in zip(sent, queued, strict=True)]
    assert ask("cache-aware", task(history=0, increment=1000), local(), there, CACHE_AWARE).short == expected


def test_cache_aware_takes_history_for_a_part_of_the_prompt() -> None:
    there = [remote(), remote(sent=400, queued=9)]
    assert ask("cache-aware", task(history=600, increment=400), local(), there, CACHE_AWARE).choice == 1
    assert ask("cache-aware", task(history=1600, increment=400), local(), there, CACHE_AWARE).choice == 0


def test_cache_aware_remembers_what_it_sent_not_what_is_cached() -> None:
    there = [remote(cached=900), remote(sent=900, cached=0)]
    assert ask("cache-aware", task(history=0, increment=1000), local(), there, CACHE_AWARE).choice == 1


def test_sticky_least_loaded_worked_by_hand() -> None:
    there = [remote(sessions=2), remote(sent=5, queued=9, sessions=8), remote(sessions=1)]
    assert ask("sticky-least-loaded", task(), local(), there, NONE).short == (1, "same-worker")
    assert ask("sticky-least-loaded", task(later=False), local(), there, NONE).short == (2, "fewest-sessions")
    assert ask("sticky-least-loaded", task(), local(), [there[0], there[2]], NONE).short == (1, "fewest-sessions")


def test_sticky_least_loaded_counts_requests_where_sessions_are_not_counted() -> None:
    there = [remote(queued=2, sessions=NOT_KNOWN), remote(queued=1, sessions=NOT_KNOWN)]
    assert ask("sticky-least-loaded", task(later=False), local(), there, NONE).short == (1, "fewest-sessions")


@pytest.mark.parametrize(
    ("session", "choice"), [(0.0, 0), (0.24, 0), (0.49, 1), (0.5, 2), (0.999999, 3), (NOT_KNOWN, 3)]
)
def test_consistent_hash_worked_by_hand(session: float, choice: int) -> None:
    there = [remote(queued=k) for k in range(4)]
    of = task(session=session, uniform=0.8)
    assert ask("consistent-hash", of, local(), there, NONE).short == (choice, "session-hash")


def test_power_of_two_worked_by_hand() -> None:
    there = [remote(queued=4), remote(queued=0), remote(queued=5)]
    assert ask("power-of-two", task(), local(), there, NONE, order=[2, 0, 1]).short == (0, "of-two")
    assert ask("power-of-two", task(), local(), there, NONE, order=[0, 2, 1]).short == (0, "of-two")
    equal = [remote(queued=1), remote(queued=1)]
    assert ask("power-of-two", task(), local(), equal, NONE, order=[1, 0]).choice == 1
    assert ask("power-of-two", task(), local(), there[:1], NONE).short == (0, "of-two")


def test_round_robin_worked_by_hand() -> None:
    there = [remote(idle=3), remote(idle=9), remote(idle=5)]
    assert ask("round-robin", task(), local(), there, NONE).short == (1, "in-turn")
    assert ask("round-robin", task(), local(), [remote(), remote()], NONE).choice == 0


@pytest.mark.parametrize(
    ("history", "cached", "expected"),
    [
        (0, 0, (0, 1000, 0)),
        (0, 600, (600, 400, 0)),
        (0, 1000, (999, 1, 0)),
        (700, 0, (700, 300, 700)),
        (700, 600, (700, 300, 100)),
        (700, 700, (700, 300, 0)),
        (700, 800, (800, 200, 0)),
    ],
)
def test_a_remote_prefill_reads_what_the_cache_lacks(
    history: float, cached: float, expected: tuple[float, float, float]
) -> None:
    assert remote_work(history, 1000, cached) == expected
