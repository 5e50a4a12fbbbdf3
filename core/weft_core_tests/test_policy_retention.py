"""Continuum's time to live, and what it is learned from."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.retention import note_gap, return_benefit_s, rounds_memory, time_to_live_s

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
