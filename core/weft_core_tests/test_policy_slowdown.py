"""The slowdown of an engine: the factor that puts a minute's observed prefills nearest to what was predicted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.slowdown import LARGEST, LEAST, MOST, WINDOW_S, Slowdown

seconds = st.floats(0.0, 1e6)


def observed(*figures: float, predicted: float = 0.1, most: float | None = None, now: float = 0.0) -> Slowdown:
    slowdown = Slowdown()
    for figure in figures:
        slowdown.observe(least=predicted, most=predicted if most is None else most, observed=figure, now=now)
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
        slowdown.observe(least=0.1, most=0.1, observed=0.05, now=1.0)
    assert slowdown.factor(1.0) == pytest.approx(0.06 / 0.11)


def test_what_was_not_predicted_says_nothing() -> None:
    slowdown = Slowdown()
    for figure in (float("nan"), float("inf"), -1.0):
        for _ in range(LEAST):
            slowdown.observe(least=figure, most=figure, observed=1.0, now=0.0)
            slowdown.observe(least=1.0, most=figure, observed=1.0, now=0.0)
            slowdown.observe(least=1.0, most=1.0, observed=figure, now=0.0)
    assert slowdown.factor(0.0) == 1.0


def test_what_lies_in_its_range_is_no_slowdown() -> None:
    assert observed(0.1, 0.12, 0.15, 0.18, 0.2, predicted=0.1, most=0.2).factor(0.0) == 1.0
    assert observed(*[0.2] * LEAST, predicted=0.1, most=0.2).factor(0.0) == 1.0


@pytest.mark.parametrize("speed", [0.5, 2.0, 3.0])
def test_times_all_over_their_range_show_the_speed(speed: float) -> None:
    # A prefill of 1 s beside a batch whose steps take 1 s, sent at any time within a step.
    times = [speed * (1.0 + k / 20) for k in range(21)]
    assert observed(*times, predicted=1.0, most=2.0).factor(0.0) == pytest.approx(speed, rel=0.06)


@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 10.0), st.floats(0.0, 10.0)), min_size=LEAST))
def test_no_other_factor_brings_the_observed_times_nearer_to_their_ranges(
    samples: list[tuple[float, float, float]],
) -> None:
    slowdown = Slowdown()
    ranges = []
    for least, width, took in samples:
        slowdown.observe(least=least, most=least + width, observed=took, now=0.0)
        ranges.append(((took + 0.01) / (least + width + 0.01), (took + 0.01) / (least + 0.01)))

    def outside(factor: float) -> float:
        return sum(max(low - factor, factor - high, 0.0) for low, high in ranges[-MOST:])

    factor = slowdown.factor(0.0)
    others = [bound for one in ranges for bound in one if 1 / LARGEST <= bound <= LARGEST]
    assert all(outside(factor) <= outside(other) + 1e-9 for other in [*others, 1.0])


@given(st.lists(st.tuples(seconds, seconds)))
def test_the_factor_is_bounded_and_within_what_was_seen(samples: list[tuple[float, float]]) -> None:
    slowdown = Slowdown()
    for predicted, took in samples:
        slowdown.observe(least=predicted, most=predicted, observed=took, now=0.0)
    factor = slowdown.factor(0.0)
    assert 1 / LARGEST <= factor <= LARGEST
    if len(samples) >= LEAST:
        ratios = [(took + 0.01) / (predicted + 0.01) for predicted, took in samples]
        assert min(max(min(ratios), 1 / LARGEST), LARGEST) <= factor <= max(min(max(ratios), LARGEST), 1 / LARGEST)
    else:
        assert factor == 1.0
