"""The slowdown of an engine: a minute's median of observed over predicted seconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.slowdown import LARGEST, LEAST, WINDOW_S, Slowdown

seconds = st.floats(0.0, 1e6)


def observed(*figures: float, predicted: float = 0.1, now: float = 0.0) -> Slowdown:
    slowdown = Slowdown()
    for figure in figures:
        slowdown.observe(predicted=predicted, observed=figure, now=now)
    return slowdown


def test_the_median_ratio_counts_and_one_hiccup_does_not() -> None:
    assert observed(0.2, 0.21, 0.9, 0.19, 0.2).factor(0.0) == pytest.approx(0.21 / 0.11)


def test_few_samples_leave_the_profile_as_it_is() -> None:
    assert observed(*[0.5] * (LEAST - 1)).factor(0.0) == 1.0
    assert observed(*[0.5] * LEAST).factor(0.0) == pytest.approx(0.51 / 0.11)


def test_what_is_a_minute_old_is_forgotten() -> None:
    slowdown = observed(*[0.2] * LEAST)
    assert slowdown.factor(WINDOW_S) > 1.5
    assert slowdown.factor(WINDOW_S + 0.1) == 1.0


def test_milliseconds_are_no_slowdown() -> None:
    assert observed(*[0.003] * LEAST, predicted=0.001).factor(0.0) < 1.25


def test_a_new_speed_counts_as_soon_as_half_of_the_samples_show_it() -> None:
    slowdown = observed(*[0.1] * LEAST)
    for _ in range(LEAST + 1):
        slowdown.observe(predicted=0.1, observed=0.05, now=1.0)
    assert slowdown.factor(1.0) == pytest.approx(0.06 / 0.11)


def test_what_was_not_predicted_says_nothing() -> None:
    slowdown = Slowdown()
    for figure in (float("nan"), float("inf"), -1.0):
        for _ in range(LEAST):
            slowdown.observe(predicted=figure, observed=1.0, now=0.0)
            slowdown.observe(predicted=1.0, observed=figure, now=0.0)
    assert slowdown.factor(0.0) == 1.0


@given(st.lists(st.tuples(seconds, seconds)))
def test_the_factor_is_bounded_and_within_what_was_seen(samples: list[tuple[float, float]]) -> None:
    slowdown = Slowdown()
    for predicted, took in samples:
        slowdown.observe(predicted=predicted, observed=took, now=0.0)
    factor = slowdown.factor(0.0)
    assert 1 / LARGEST <= factor <= LARGEST
    if len(samples) >= LEAST:
        ratios = [(took + 0.01) / (predicted + 0.01) for predicted, took in samples]
        assert min(max(min(ratios), 1 / LARGEST), LARGEST) <= factor <= max(min(max(ratios), LARGEST), 1 / LARGEST)
    else:
        assert factor == 1.0
