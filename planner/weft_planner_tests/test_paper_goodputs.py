"""The papers' bench finds where attainment falls to the goal, on one grid of rates, also where it wavers."""

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benches are no package of the installation

from bench.paper.goodputs import GOAL, crossing, falling, rate_of, search

shares = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def line(at: float, slope: float) -> list[float]:
    return [GOAL - slope * at] * 2


@given(shares)
def test_pooled_values_fall_and_keep_their_mean(values: list[float]) -> None:
    found = falling([(float(at), value) for at, value in enumerate(values)])
    assert all(before[1] >= after[1] for before, after in pairwise(found))
    assert [at for at, _ in found] == sorted({at for at, _ in found})
    if len(found) == 1:
        assert found[0][1] == pytest.approx(sum(values) / len(values))
    if values == sorted(values, reverse=True):
        assert [value for _, value in found] == values


def test_a_wavering_share_worked_by_hand() -> None:
    points = falling([(0.0, 0.95), (1.0, 0.89), (2.0, 0.91), (3.0, 0.85)])
    assert points == [(0.0, 0.95), (1.5, pytest.approx(0.9)), (3.0, 0.85)]
    assert crossing([(0.0, 0.95), (2.0, 0.85)]) == pytest.approx(1.0)
    assert crossing([(0.0, 0.8), (1.0, 0.7)]) == 0.0
    assert crossing([(0.0, 0.99), (1.0, 0.95)]) == 1.0


@given(st.floats(-60, 60), st.floats(0.001, 0.01), st.integers(-100, 100))
def test_a_straight_fall_is_found_wherever_the_search_begins(at: float, slope: float, start: int) -> None:
    def share(step: int) -> Sequence[float]:
        return line(step - at, slope)

    found = search(share, start)
    assert found is not None
    assert found.rate == pytest.approx(rate_of(at), rel=1e-6)
    assert found.of_seed == pytest.approx((rate_of(at),) * 2, rel=1e-6)


def test_a_goal_that_no_rate_holds_has_no_goodput() -> None:
    assert search(lambda _step: [0.5], 0) is None
