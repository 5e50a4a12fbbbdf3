import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.slo import (
    Reading,
    RoundLatency,
    Slo,
    attainment,
    itl,
    percentile,
    round_attainment,
    session_attainment,
)

SLO = Slo(ttft_s=1.0, itl_s=0.05)
GOOD = RoundLatency(0.5, (0.04, 0.04))
LATE = RoundLatency(1.5, (0.04,))
STALLED = RoundLatency(0.5, (0.01,) * 9 + (0.3,))  # mean 0.039, P95 0.17, largest 0.3


@given(
    st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=50),
    st.floats(min_value=0, max_value=100),
)
def test_percentile_agrees_with_numpy(values: list[float], q: float) -> None:
    assert percentile(values, q) == pytest.approx(float(np.percentile(values, q)), rel=1e-9, abs=1e-9)


def test_percentile_of_nothing_or_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 95)
    with pytest.raises(ValueError, match="not between"):
        percentile([1.0], 101)


def test_infinite_latencies_keep_their_rank() -> None:
    assert percentile([0.1, math.inf, math.inf], 95) == math.inf
    assert percentile([0.1, 0.2, math.inf], 50) == 0.2


def test_each_reading_counts_differently() -> None:
    sessions = [[GOOD, GOOD], [GOOD, LATE], [STALLED]]
    assert session_attainment(sessions, SLO) == pytest.approx(2 / 3)
    assert round_attainment(sessions, SLO) == pytest.approx(4 / 5)
    assert attainment(sessions, SLO, Reading("session", "max")) == pytest.approx(1 / 3)
    assert attainment(sessions, SLO, Reading("round", "p95")) == pytest.approx(3 / 5)


def test_a_session_is_judged_by_the_mean_over_all_its_gaps() -> None:
    slow_round = RoundLatency(0.5, (0.06,))
    assert session_attainment([[slow_round, RoundLatency(0.5, (0.01,) * 5)]], SLO) == 1.0
    assert session_attainment([[slow_round]], SLO) == 0.0


def test_a_failed_round_misses_and_nothing_measured_is_no_figure() -> None:
    assert session_attainment([[GOOD, RoundLatency(math.inf)]], SLO) == 0.0
    assert session_attainment([], SLO) is None
    assert session_attainment([[]], SLO) is None
    assert itl((), "max") == 0.0


def test_readings_name_themselves() -> None:
    assert str(Reading()) == "per session: every TTFT met and the session's mean inter-token gap met"
    assert "largest" in str(Reading("round", "max"))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"ttft_s": 0.0, "itl_s": 1.0}, "ttft_s"),
        ({"ttft_s": 1.0, "itl_s": math.nan}, "itl_s"),
        ({"ttft_s": 1.0, "itl_s": 1.0, "percentile": 100.0}, "percentile"),
        ({"ttft_s": 1.0, "itl_s": 1.0, "attainment": 90.0}, "attainment"),
    ],
)
def test_impossible_objectives_are_refused_by_name(fields: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Slo(**fields)
