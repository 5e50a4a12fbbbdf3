import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_planner.sessions import Sample, draw
from weft_planner_tests.requests import workload


def sample(*, seed: int = 0, max_model_len: int = 1_000_000, **means: float) -> Sample:
    return draw(workload(**means), max_model_len=max_model_len, round_seconds=3.0, seed=seed)


def test_means_are_those_asked_for() -> None:
    drawn = sample()
    assert drawn.rows / drawn.sessions == pytest.approx(4.0, rel=0.05)
    assert drawn.increment[drawn.first_row].mean() == pytest.approx(1000, rel=0.05)
    later = np.ones(drawn.rows, dtype=bool)
    later[drawn.first_row] = False
    assert drawn.increment[later].mean() == pytest.approx(300, rel=0.05)
    assert drawn.tokens.mean() == pytest.approx(60, rel=0.05)
    assert drawn.gap.mean() == pytest.approx(2.0, rel=0.05)
    assert np.std(drawn.tokens) / drawn.tokens.mean() == pytest.approx(0.6, rel=0.1)
    assert drawn.sessions / (drawn.past + drawn.window) == pytest.approx(1.0, rel=0.1)


def test_history_is_all_that_came_before() -> None:
    drawn = sample()
    for session in range(5):
        rows = np.flatnonzero(drawn.session == session)
        total = 0.0
        for row in rows:
            assert drawn.history[row] == total
            total += drawn.increment[row] + drawn.tokens[row]
        assert drawn.reserve[session] == total


def test_as_many_sessions_are_alive_at_time_0_as_later() -> None:
    """Little's law: rate x mean lifetime, at the beginning and at the end of the window."""
    drawn = sample(gap=20.0)
    lifetimes = drawn.lifetimes(np.full(drawn.rows, 3.0) + drawn.gap)
    expected = drawn.rate * lifetimes.mean()
    for moment in (0.0, drawn.window):
        alive = ((drawn.arrival <= moment) & (drawn.arrival + lifetimes > moment)).sum()
        assert alive == pytest.approx(expected, rel=0.25)


def test_a_seed_gives_the_same_sessions_and_another_seed_others() -> None:
    assert np.array_equal(sample(seed=3).increment, sample(seed=3).increment)
    assert not np.array_equal(sample(seed=3).increment[:50], sample(seed=4).increment[:50])


@given(
    st.integers(2, 4000),
    st.floats(1, 30),
    st.floats(1, 5000),
    st.floats(1, 5000),
    st.floats(1, 5000),
    st.floats(0, 100),
)
@settings(max_examples=30)
def test_no_context_is_longer_than_the_model_allows(
    limit: int, rounds: float, first: float, increment: float, decode: float, gap: float
) -> None:
    drawn = sample(max_model_len=limit, rounds=rounds, first_prompt=first, increment=increment, decode=decode, gap=gap)
    assert (drawn.history + drawn.increment + drawn.tokens).max() <= limit
    assert min(drawn.increment.min(), drawn.tokens.min()) >= 1
    assert drawn.history.min() >= 0
    assert np.array_equal(np.unique(drawn.session), np.arange(drawn.sessions))
    assert 0 <= drawn.dropped < 1


def test_starts_follow_from_the_times_of_earlier_rounds() -> None:
    drawn = sample()
    starts = drawn.starts(np.full(drawn.rows, 2.0))
    row = int(np.flatnonzero(drawn.session == 7)[0])
    assert starts[row] == pytest.approx(drawn.arrival[7])
    if drawn.session[row + 1] == 7:
        assert starts[row + 1] == pytest.approx(drawn.arrival[7] + 2.0)


def test_a_huge_population_is_cut_and_says_so() -> None:
    drawn = sample(arrival_rate=500, rounds=10, gap=600)
    assert drawn.short_past
    assert drawn.rows < 600_000
