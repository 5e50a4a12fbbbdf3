"""PPD's table follows what rounds took, as far as both sides were seen."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.ppd_cells import CELLS
from weft_core.policies.ppd_learning import PpdLearning
from weft_core.policies.registry import POLICIES, parameters
from weft_core.policies.routing.ppd import POLICY, TPOT_RISE, TTFT_FALL


def test_worked_by_hand() -> None:
    table = parameters(
        "ppd", overrides={"ttft_fall.short.decode-heavy.low": 0.9, "tpot_rise.short.decode-heavy.low": 0.02}
    )
    learning = PpdLearning(table, prior=10.0, memory=1e9)
    for _ in range(10):
        learning.note(0, local=False, ttft_s=2.0, tpot_s=0.02)
    assert learning.params == table, "one side alone says nothing"
    assert learning.table == table
    for _ in range(10):
        learning.note(0, local=True, ttft_s=1.0, tpot_s=0.03)
    assert learning.params[TTFT_FALL] == pytest.approx(0.7)
    assert learning.params[TPOT_RISE] == pytest.approx((0.02 + 0.5) / 2)
    assert learning.params[TTFT_FALL + 1 :][: CELLS - 1] == table[TTFT_FALL + 1 :][: CELLS - 1]
    assert learning.table == table, "what it began with"


def test_rounds_without_an_output_time_teach_the_ttft_alone() -> None:
    learning = PpdLearning(POLICY.params, prior=10.0, memory=1e9)
    for _ in range(10):
        learning.note(3, local=False, ttft_s=2.0)
        learning.note(3, local=True, ttft_s=1.0)
    for _ in range(30):
        learning.note(3, local=False, ttft_s=math.nan, tpot_s=0.02)
        learning.note(3, local=True, ttft_s=math.nan, tpot_s=0.04)
    assert learning.params[TTFT_FALL + 3] == pytest.approx((POLICY.params[TTFT_FALL + 3] + 0.5) / 2)
    assert learning.params[TPOT_RISE + 3] == pytest.approx(0.25 * POLICY.params[TPOT_RISE + 3] + 0.75 * 1.0)


def test_it_follows_a_change_and_forgets() -> None:
    learning = PpdLearning(POLICY.params, prior=10.0, memory=50.0)
    for local_s, expected in ((0.5, 0.5), (3.0, -2.0)):
        for _ in range(400):
            learning.note(5, local=False, ttft_s=1.0)
            learning.note(5, local=True, ttft_s=local_s)
        assert learning.params[TTFT_FALL + 5] == pytest.approx(expected, abs=0.5)
    assert learning.params[TPOT_RISE + 5] == POLICY.params[TPOT_RISE + 5]


figures = st.one_of(st.floats(-1, 100), st.just(math.nan), st.just(math.inf), st.just(0.0))


@given(st.lists(st.tuples(st.integers(0, CELLS - 1), st.booleans(), figures, figures), max_size=60))
def test_whatever_is_observed_the_table_stays_within_its_ranges(
    rounds: list[tuple[int, bool, float, float]],
) -> None:
    learning = PpdLearning(POLICY.params)
    for cell, local, ttft, tpot in rounds:
        learning.note(cell, local=local, ttft_s=ttft, tpot_s=tpot)
    for parameter, value in zip(POLICIES["ppd"].parameters, learning.params, strict=True):
        assert parameter.check(value) == value
