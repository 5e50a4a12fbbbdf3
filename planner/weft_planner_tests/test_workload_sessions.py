"""Samples of sessions: moments, steady state, classes, and the same sessions at every rate."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_planner.workload.sessions import Ints, Sample, Size, draw
from weft_planner.workload.traffic import Workload
from weft_planner_tests.requests import workload
from weft_planner_tests.simulated import lifetimes


def sample(*, seed: int = 0, max_model_len: int = 1_000_000, **means: float) -> Sample:
    return draw(workload(**means), max_model_len=max_model_len, round_seconds=3.0, seed=seed)


def rich(**changes: object) -> Workload:
    body: dict[str, object] = {
        "arrivalRate": 2.0,
        "rounds": {"mean": 4, "cv": 0.9},
        "firstPrompt": {"mean": 1000, "cv": 2.2},
        "increment": {"mean": 300, "quantiles": {"at": [0, 0.5, 0.5, 1], "values": [1, 1, 400, 800]}},
        "decode": {"mean": 60, "cv": 0},
        "gap": {"mean": 2, "histogram": {"edges": [0, 2, 20], "weights": [9, 1]}},
        "arrivals": {"process": "gamma", "cv": 2},
        "sharedPrefix": 200,
        "classes": [
            {"name": "chat", "share": 3},
            {"name": "agents", "share": 1, "rounds": {"mean": 9, "cv": 0}, "sharedPrefix": 0, "ttft": 1.5},
        ],
    }
    return Workload.model_validate({**body, **changes})


def rows_of(drawn: Sample, session: int) -> Ints:
    return np.flatnonzero(drawn.session == session)


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


def test_shapes_and_classes_have_the_moments_asked_for() -> None:
    drawn = draw(rich(), max_model_len=10**7, round_seconds=3.0, seed=1, size=Size(sessions=12_000))
    agents = drawn.session_class == 1
    assert agents.mean() == pytest.approx(0.25, abs=0.02)
    rounds = np.bincount(drawn.session)
    assert (rounds[agents] == 9).all()
    chat = rounds[~agents]
    assert chat.mean() == pytest.approx(4, rel=0.03)
    assert chat.std() / chat.mean() == pytest.approx(0.9, rel=0.1)
    first = drawn.increment[drawn.first_row]
    assert first[agents].mean() == pytest.approx(1000, rel=0.15)  # a heavy tail: cv 2.2 over 3,000 sessions
    assert (drawn.prefix[~agents] == 200).all()
    assert (drawn.prefix[agents] == 0).all()
    assert (first[~agents] > 200).all()
    later = np.ones(drawn.rows, dtype=bool)
    later[drawn.first_row] = False
    assert (drawn.increment[later] == 1).mean() == pytest.approx(0.5, abs=0.02)
    assert drawn.increment[later].mean() == pytest.approx(300, rel=0.02)
    assert (drawn.tokens == 60).all()
    distances = np.diff(drawn.arrival)
    assert distances.std() / distances.mean() == pytest.approx(2, rel=0.1)


@given(st.floats(0.2, 5.0), st.integers(0, 50))
@settings(max_examples=20)
def test_another_rate_brings_the_same_sessions_closer_together(factor: float, seed: int) -> None:
    for size in (Size(sessions=300), Size(rounds=1500)):
        one, other = (
            draw(rich(), max_model_len=20_000, round_seconds=3.0, seed=seed, rate=rate, size=size)
            for rate in (2.0, 2.0 * factor)
        )
        assert other.rate == pytest.approx(2.0 * factor)
        ahead, others = one.arrival >= 0, other.arrival >= 0
        assert other.arrival[others] * factor == pytest.approx(one.arrival[ahead])
        for figure in ("increment", "tokens", "gap", "history"):
            now = getattr(one, figure)[ahead[one.session]]
            assert np.array_equal(now, getattr(other, figure)[others[other.session]])
        past, pasts = int((~ahead).sum()), int((~others).sum())
        shared = min(past, pasts)  # the latest before time 0 are the same ones, too
        assert np.array_equal(one.session_class[past - shared : past], other.session_class[pasts - shared : pasts])


def test_a_longer_window_begins_with_the_same_sessions() -> None:
    short, long = (
        draw(rich(), max_model_len=20_000, round_seconds=3.0, seed=4, size=Size(seconds=s)) for s in (60.0, 600.0)
    )
    assert (short.window, long.window) == (60.0, 600.0)
    assert np.array_equal(short.arrival, long.arrival[: short.sessions])
    assert np.array_equal(short.increment, long.increment[: short.rows])


def test_without_steady_state_nobody_is_there_before_time_0() -> None:
    drawn = draw(rich(), max_model_len=20_000, round_seconds=3.0, seed=4, steady=False)
    assert drawn.past == 0
    assert drawn.arrival[0] >= 0
    assert not drawn.short_past


@pytest.mark.parametrize("size", [{}, {"rounds": 5, "seconds": 1}, {"sessions": 0}, {"seconds": float("inf")}])
def test_a_size_that_makes_no_sense_is_refused(size: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="one of rounds, sessions and seconds"):
        Size(**size)


def test_history_is_all_that_came_before() -> None:
    drawn = sample()
    for session in range(5):
        total = 0.0
        for row in rows_of(drawn, session):
            assert drawn.history[row] == total
            total += drawn.increment[row] + drawn.tokens[row]
        assert drawn.reserve[session] == total


@pytest.mark.parametrize("gap", [{"mean": 20, "cv": 0.6}, {"mean": 20, "cv": 4}])
def test_as_many_sessions_are_alive_at_time_0_as_later(gap: dict[str, float]) -> None:
    """Little's law: rate x mean lifetime, at the beginning and at the end of the window, also with heavy tails."""
    body = {"arrivalRate": 1, "rounds": 4, "firstPrompt": 1000, "increment": 300, "decode": 60, "gap": gap}
    drawn = draw(
        Workload.model_validate(body), max_model_len=10**6, round_seconds=3.0, seed=2, size=Size(sessions=4000)
    )
    lived = lifetimes(drawn, np.full(drawn.rows, 3.0) + drawn.gap)
    expected = drawn.rate * lived.mean()
    for moment in (0.0, drawn.window):
        alive = ((drawn.arrival <= moment) & (drawn.arrival + lived > moment)).sum()
        assert alive == pytest.approx(expected, rel=0.3)


def test_a_seed_gives_the_same_bytes_and_another_seed_other_sessions() -> None:
    one, same = (
        b"".join(np.asarray(getattr(sample(seed=3), name)).tobytes() for name in Sample.__slots__) for _ in range(2)
    )
    assert one == same
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
    long = int(np.flatnonzero(np.bincount(drawn.session) > 1)[0])
    row = int(rows_of(drawn, long)[0])
    assert starts[row] == pytest.approx(drawn.arrival[long])
    assert starts[row + 1] == pytest.approx(drawn.arrival[long] + 2.0)


def test_rounds_since_a_time_are_those_that_begin_then_or_later() -> None:
    drawn = sample()
    starts = drawn.starts(drawn.gap + 2.0)
    late = np.flatnonzero(starts >= -30.0)
    rest = drawn.since(-30.0, round_seconds=2.0)
    assert rest.past == 30.0
    assert 0 < rest.rows == len(late) < drawn.rows
    for name in ("history", "increment", "tokens", "gap"):
        assert np.array_equal(np.sort(getattr(rest, name)), np.sort(getattr(drawn, name)[late]))
    assert np.allclose(np.sort(rest.starts(rest.gap + 2.0)), np.sort(starts[late]))
    assert (np.diff(rest.arrival) >= 0).all()
    after = drawn.arrival >= 0
    for name in ("arrival", "reserve", "session_class", "prefix"):
        of_new = getattr(rest, name)[rest.whole & (rest.arrival >= 0)]
        assert np.array_equal(of_new, getattr(drawn, name)[after])
    assert not rest.whole.all()
    assert (rest.prefix[~rest.whole] == 0).all()


def test_where_no_round_is_late_enough_all_are_left() -> None:
    drawn = sample()
    assert drawn.since(1e9, round_seconds=2.0) is drawn


def test_a_huge_population_is_cut_and_says_so() -> None:
    drawn = sample(arrival_rate=500, rounds=10, gap=600)
    assert drawn.short_past
    assert drawn.rows < 600_000
