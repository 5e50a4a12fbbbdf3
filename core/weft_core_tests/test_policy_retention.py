"""Which idle KV is kept: Continuum's time to live, the value of KV, and what both are learned from."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.retention import (
    BUCKETS,
    LATEST,
    WAITING_RATE,
    kv_value,
    note_gap,
    note_return,
    return_benefit_s,
    return_rate,
    rounds_memory,
    time_to_live_s,
)

gaps_s = st.floats(0, 1000, allow_subnormal=False)


def test_a_time_to_live_covers_the_gaps_that_are_worth_their_memory() -> None:
    """Keeping KV 1 s for 2 of 4 sessions costs 1 s and saves 5 s; 9 s more would save 5 s more."""
    assert time_to_live_s([0.5, 1.0, 10.0, 10.0], 4, 10.0) == 1.0
    assert time_to_live_s([0.5, 1.0, 10.0, 10.0], 4, 30.0) == 10.0
    assert time_to_live_s([5.0, 6.0], 2, 4.0) == 0.0


def test_before_any_gap_was_seen_gaps_count_as_exponential() -> None:
    assert time_to_live_s([], 0, math.e**2) == pytest.approx(2.0)
    assert time_to_live_s([], 0, 0.5) == 0.0


@given(st.lists(gaps_s, min_size=1, max_size=30), st.floats(0, 5000), st.floats(0, 2000))
def test_no_other_time_to_live_is_worth_more(gaps: list[float], benefit_s: float, other_s: float) -> None:
    def worth(time_s: float) -> float:
        return sum(gap <= time_s for gap in gaps) / len(gaps) * benefit_s - time_s

    ordered = sorted(gaps)
    chosen = time_to_live_s(ordered, len(ordered), benefit_s)
    assert worth(chosen) >= worth(other_s) - 1e-9


@given(st.lists(gaps_s, min_size=1, max_size=40), st.integers(1, 8))
def test_the_latest_gaps_are_kept_in_order(gaps: list[float], room: int) -> None:
    recent, ordered = [0.0] * room, [0.0] * room
    for seen, gap in enumerate(gaps):
        note_gap(recent, ordered, seen, gap)
        latest = gaps[: seen + 1][-room:]
        assert ordered[: len(latest)] == sorted(latest)
        assert sorted(recent[: len(latest)]) == sorted(latest)


def test_a_wait_counts_by_how_far_rounds_behind_tell_the_rounds_ahead() -> None:
    assert return_benefit_s(2.0, 3.0, 0.5) == 3.5


@given(st.lists(st.integers(1, 9), max_size=12))
def test_the_memory_of_rounds_is_minus_their_correlation(rounds: list[int]) -> None:
    points = [(float(k), float(n - k)) for n in rounds for k in range(1, n)]
    done, left = [k for k, _ in points], [m for _, m in points]
    found = rounds_memory(
        len(points),
        sum(done),
        sum(left),
        sum(k * k for k in done),
        sum(m * m for m in left),
        sum(k * m for k, m in points),
    )
    if len(set(done)) < 2 or len(set(left)) < 2:
        assert found == 1.0
    else:
        assert found == pytest.approx(min(1.0, max(0.0, -statistics.correlation(done, left))), abs=1e-9)


def returns_of(*gaps: float) -> list[float]:
    returns = [0.0] * (BUCKETS + 1)
    for gap in gaps:
        note_return(returns, gap)
    return returns


idle_s = st.floats(0, 10_000, allow_subnormal=False)
seen_gaps = st.lists(st.floats(0, 10_000) | st.just(math.inf), max_size=60)


@given(st.lists(st.floats(0, 10_000) | st.just(math.inf), max_size=2000))
def test_counts_of_gaps_stay_bounded(gaps: list[float]) -> None:
    returns = returns_of(*gaps)
    assert len(returns) == BUCKETS + 1
    assert sum(returns) <= LATEST
    assert sum(returns) >= min(len(gaps), LATEST / 2)


def test_a_gap_counts_in_the_bucket_that_has_it() -> None:
    assert returns_of(0.0)[0] == returns_of(0.3)[0] == 1
    assert returns_of(4000.0)[BUCKETS - 1] == 1
    assert returns_of(5000.0)[BUCKETS] == returns_of(math.inf)[BUCKETS] == 1


@given(st.lists(st.floats(0.25, 4000), min_size=2, max_size=2, unique=True).map(sorted))
def test_before_any_gap_was_seen_the_longest_idle_is_expected_least(idle: list[float]) -> None:
    soon, late = (return_rate(returns_of(), one, math.inf) for one in idle)
    assert soon * (1 + 1e-9) >= late > 0  # but for rounding


def test_beyond_all_buckets_no_return_is_expected() -> None:
    assert return_rate(returns_of(1.0, 5000.0), 4097.0, math.inf) == 0.0


def test_tools_that_answer_soon_are_waited_for_and_later_given_up() -> None:
    """Of gaps of 2 s or an hour, a session idle for a second is expected; after a minute it hardly is."""
    returns = returns_of(*[2.0] * 50, *[3000.0] * 50)
    assert return_rate(returns, 1.0, math.inf) > 20 * return_rate(returns, 60.0, math.inf)


def test_a_return_beyond_the_time_that_kv_can_be_kept_counts_little() -> None:
    returns = returns_of(*[300.0] * 100)
    assert return_rate(returns, 10.0, 600.0) > 3 * return_rate(returns, 10.0, 60.0)


@given(seen_gaps, idle_s, st.floats(0, 10_000))
def test_a_longer_time_to_return_in_is_never_worth_less_at_the_ends_of_buckets(
    gaps: list[float], idle: float, within: float
) -> None:
    returns = returns_of(*gaps)
    whole = return_rate(returns, idle, math.inf)
    assert 0 <= whole < WAITING_RATE
    assert 0 <= return_rate(returns, idle, within) < WAITING_RATE
    assert return_rate(returns, idle, 1e9) == whole


@given(seen_gaps, st.floats(1, 3000), st.floats(0.25, 3000))
def test_more_sessions_that_never_return_make_all_less_expected(gaps: list[float], gap: float, idle: float) -> None:
    returns = returns_of(*gaps, gap)
    fewer = [*returns[:BUCKETS], returns[BUCKETS] + 5]
    assert return_rate(fewer, idle, math.inf) < return_rate(returns, idle, math.inf)


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 10), st.floats(1, 1e6))
def test_kv_is_worth_what_is_saved_by_its_memory(rate: float, kept: float, lost: float, tokens: float) -> None:
    found = kv_value(rate, kept, lost, tokens)
    assert found >= 0
    assert (found > 0) == (rate * (lost - kept) / tokens > 0)
    assert kv_value(rate, 0.0, lost, tokens) >= found
    assert kv_value(2.0, 1.0, 4.0, 3.0) == 2.0
