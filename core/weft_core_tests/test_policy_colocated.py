"""Delay of prefills beside sessions that decode: who would miss the ITL, in all readings, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.registry import parameters
from weft_core.policies.routing.colocated import delays_prefill, sessions_harmed

ITL = 0.03
STEP = 0.02
Session = tuple[float, float, float]
"""The sum of its gaps (or how many were late), their number, and how many are to come."""


def harmed(
    sessions: list[Session], *, seconds: float = 1.0, chunks: float = 1.0, statistic: int = 0, width: float = 0.001
) -> float:
    params = parameters("colocated", overrides={"itl_statistic": statistic, "centre": 1.0, "width": width})
    sums, counts, left = ([one[i] for one in sessions] for i in range(3))
    return sessions_harmed(seconds, chunks, STEP, ITL, params, sums, counts, left)


def delayed(*, seconds: float = 1.0, urgency: float = 0.5, **params: float) -> bool:
    """Ask of a prefill beside one session that is about to end."""
    given_ = parameters("colocated", overrides=params)
    return delays_prefill(urgency, seconds, 1.0, STEP, ITL, given_, [0.2], [10.0], [10.0])


def test_a_short_answer_cannot_make_up_for_a_stall_but_a_long_one_can() -> None:
    # (0.2 + 10 x 0.02 + 1) / 20 = 70 ms; (0.2 + 200 x 0.02 + 1) / 210 = 25 ms; the SLO is 30 ms.
    assert harmed([(0.2, 10.0, 10.0)]) == pytest.approx(1.0)
    assert harmed([(0.2, 10.0, 200.0)]) == pytest.approx(0.0, abs=1e-3)
    assert harmed([(0.2, 10.0, 10.0), (0.2, 10.0, 200.0), (0.0, 0.0, 5.0)]) == pytest.approx(2.0, abs=1e-3)


def test_a_session_that_has_missed_already_is_not_harmed() -> None:
    assert harmed([(5.0, 10.0, 10.0)]) == pytest.approx(0.0)
    assert harmed([(4.0, 10.0, 10.0)], statistic=1) == pytest.approx(0.0)
    assert harmed([(1.0, 10.0, 10.0)], statistic=2) == 0.0


def test_chunks_that_keep_the_itl_harm_nobody() -> None:
    # 1 s in 125 chunks of 8 ms beside steps of 20 ms: gaps of 28 ms. Who ends after ten of them was stalled by 80 ms.
    for statistic in (0, 1, 2):
        assert harmed([(0.2 if statistic == 0 else 0.0, 10.0, 10.0)], chunks=125.0, statistic=statistic) < 0.01


def test_other_statistics_count_late_gaps() -> None:
    # P95 allows one late gap in twenty: one of 110 is within, one of 15 is not. The largest gap allows none.
    assert harmed([(0.0, 100.0, 10.0)], statistic=1) == pytest.approx(0.0)
    assert harmed([(0.0, 10.0, 5.0)], statistic=1) == pytest.approx(1.0)
    assert harmed([(0.0, 100.0, 10.0)], statistic=2) == pytest.approx(1.0)


def test_a_prefill_is_delayed_until_a_ttft_of_the_queue_needs_it() -> None:
    assert delayed(urgency=0.8)
    assert not delayed(urgency=0.81)
    assert delayed(urgency=0.81, delay=0.9)
    assert not delayed(delay=0.0)
    assert not delayed(seconds=0.01), "ten milliseconds harm nobody"
    assert not delayed(harm=1.0)


sessions = st.lists(st.tuples(st.floats(0, 50), st.integers(0, 500), st.floats(1, 500)), max_size=6)


@given(sessions, st.floats(0, 5), st.floats(0, 5), st.integers(0, 2))
def test_a_longer_prefill_harms_no_fewer(of: list[Session], seconds: float, more: float, statistic: int) -> None:
    longer = harmed(of, seconds=seconds + more, statistic=statistic, width=0.08)
    assert -1e-9 <= harmed(of, seconds=seconds, statistic=statistic, width=0.08) <= longer + 1e-9 <= len(of) + 1e-9
