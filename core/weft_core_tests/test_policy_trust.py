"""Predictions are trusted until their median is off, and again once it is not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.trust import LARGEST, Trust


def fed(trust: Trust, ratio: float, *, count: int, start: float = 0.0, kind: str = "remote") -> Trust:
    for i in range(count):
        trust.note(kind, predicted=1.0, observed=(1.1 * ratio) - 0.1, now=start + i * 0.1)
    return trust


def test_an_error_worked_by_hand() -> None:
    trust = Trust(ttft_slo=2.0, least=1)
    trust.note("local", predicted=0.1, observed=0.5, now=0.0)
    assert trust.error("local", 0.0) == pytest.approx(3.0)
    assert math.isnan(trust.error("remote", 0.0))
    assert math.isnan(trust.error("local", 61.0)), "its window is over"


def test_an_error_is_the_middle_one_and_of_two_the_larger() -> None:
    trust = Trust(ttft_slo=2.0, least=1)
    for observed in (0.1, 0.5, 0.9, 0.9, 0.1):
        trust.note("local", predicted=0.1, observed=observed, now=0.0)
    assert trust.error("local", 0.0) == pytest.approx(3.0)
    trust.note("local", predicted=0.1, observed=0.9, now=0.0)
    assert trust.error("local", 0.0) == pytest.approx(5.0)


@pytest.mark.parametrize(("ratio", "trusted"), [(1.0, True), (1.9, True), (2.1, False), (0.55, True), (0.45, False)])
def test_the_bound_holds_both_ways(ratio: float, trusted: bool) -> None:
    assert fed(Trust(ttft_slo=2.0), ratio, count=24).trusted(3.0) is trusted


def test_a_minority_of_wild_samples_does_not_count() -> None:
    trust = Trust(ttft_slo=2.0)
    for i in range(100):
        trust.note("remote", predicted=1.0, observed=50.0 if i % 5 == 0 else 1.1, now=i * 0.1)
    assert trust.trusted(10.0)


def test_few_samples_are_no_judgement_and_unknown_predictions_none() -> None:
    trust = fed(Trust(ttft_slo=2.0), 9.0, count=16)
    assert trust.trusted(2.0)
    for _ in range(40):
        trust.note("remote", predicted=math.nan, observed=1.0, now=2.0)
        trust.note("remote", predicted=math.inf, observed=1.0, now=2.0)
    assert trust.trusted(2.0)


def test_trust_comes_back_after_a_while_and_not_at_the_first_good_sample() -> None:
    trust = fed(Trust(ttft_slo=2.0), 4.0, count=24)
    assert not trust.trusted(3.0)
    fed(trust, 1.0, count=128, start=3.0)
    assert not trust.trusted(20.0), "held for 30 s at least"
    fed(trust, 1.8, count=128, start=20.0)
    assert not trust.trusted(40.0), "better, but not good"
    fed(trust, 1.2, count=128, start=40.0)
    assert trust.trusted(53.0)


def test_an_option_that_is_not_chosen_any_more_gets_another_try() -> None:
    trust = fed(Trust(ttft_slo=2.0), 4.0, count=24, kind="local")
    assert not trust.trusted(10.0)
    fed(trust, 1.0, count=24, start=10.0, kind="remote")
    assert not trust.trusted(55.0)
    assert trust.trusted(70.0)


def test_predictions_are_corrected_by_the_median_ratio_of_their_kind_while_they_are_not_trusted() -> None:
    trust = fed(Trust(ttft_slo=2.0), 1.5, count=24)
    assert trust.correction("remote", 3.0) == 1.0, "trusted"
    fed(trust, 0.25, count=60, start=3.0)
    assert not trust.trusted(10.0)
    assert trust.correction("remote", 10.0) == pytest.approx(0.25)
    assert trust.correction("local", 10.0) == 1.0, "of which nothing is known"
    fed(trust, 100.0, count=128, start=10.0, kind="local")
    assert trust.correction("local", 30.0) == LARGEST
    fed(trust, 1.0 / 100.0, count=128, start=30.0, kind="local")
    assert trust.correction("local", 43.0) == pytest.approx(1.0 / LARGEST)
    assert trust.correction("local", 104.0) == 1.0, "its window is over"


def noted(trust: Trust, *ratios: float, start: float) -> Trust:
    """Note one sample after another, a tenth of a second apart."""
    for i, ratio in enumerate(ratios):
        fed(trust, ratio, count=1, start=start + i * 0.1)
    return trust


def test_trust_is_lost_when_half_of_the_samples_are_off_and_not_before() -> None:
    assert noted(Trust(ttft_slo=2.0, least=10), *([1.0, 9.0] * 4), 1.0, 1.0, 9.0, start=0.0).trusted(2.0), "5 of 11"
    assert not noted(Trust(ttft_slo=2.0, least=10), *([1.0, 9.0] * 5), start=0.0).trusted(2.0), "5 of 10"


def test_the_oldest_sample_makes_room_for_the_next_one() -> None:
    trust = noted(Trust(ttft_slo=2.0, least=1, most=1), 9.0, 1.0, start=0.0)
    assert trust.error("remote", 1.0) == pytest.approx(1.0)
    trust = noted(Trust(ttft_slo=2.0, least=4, most=4), *[1.0] * 8, 9.0, start=0.0)
    assert trust.trusted(1.0), "one of the last four"


def test_a_sample_counts_until_its_window_is_over() -> None:
    trust = noted(Trust(ttft_slo=2.0, least=1, window_s=60.0), 3.0, start=5.0)
    assert trust.error("remote", 65.0) == pytest.approx(3.0)
    assert math.isnan(trust.error("remote", 65.01))


def test_what_took_no_time_is_off_by_the_grain() -> None:
    """0.1 s predicted with a grain of 0.1 s: twice as much as nothing with the same grain."""
    for predicted, observed in ((0.1, 0.0), (0.0, 0.1), (0.1, -3.0)):
        trust = Trust(ttft_slo=2.0, least=1)
        trust.note("local", predicted=predicted, observed=observed, now=0.0)
        assert trust.error("local", 0.0) == pytest.approx(2.0)


def test_trust_is_held_back_from_when_it_was_lost() -> None:
    trust = fed(Trust(ttft_slo=2.0), 4.0, count=24, start=1000.0)
    fed(trust, 1.0, count=128, start=1003.0)
    assert not trust.trusted(1029.0)
    assert trust.trusted(1060.0)


def test_trust_comes_back_by_time_alone() -> None:
    trust = fed(Trust(ttft_slo=2.0), 4.0, count=20)
    assert not trust.trusted(3.0)
    assert trust.trusted(100.0)


@pytest.mark.parametrize(("off", "trusted"), [(29, True), (30, False), (31, False)])
def test_trust_comes_back_when_fewer_than_half_are_somewhat_off(off: int, trusted: bool) -> None:
    """1.7 times is within the bound of 2 and beyond the 1.5 that trust comes back at."""
    trust = fed(Trust(ttft_slo=2.0, most=60), 4.0, count=24)
    noted(trust, *[1.7] * off, *[1.0] * (60 - off), start=25.0)
    assert trust.trusted(35.0) is trusted


def test_what_was_dropped_is_counted_no_more() -> None:
    trust = noted(Trust(ttft_slo=2.0, most=20), *[4.0] * 20, start=0.0)
    noted(trust, *[1.7] * 20, start=35.0)
    assert not trust.trusted(40.0), "all of the last 20 are somewhat off"
    trust = noted(Trust(ttft_slo=2.0, most=20), *[9.0] * 9, *[1.0] * 31, start=0.0)
    assert noted(trust, 9.0, start=4.0).trusted(4.2), "one of the last 20 is off"
    assert not noted(trust, *[9.0] * 9, start=4.2).trusted(6.0), "half of the last 20 are off"


@given(st.lists(st.tuples(st.floats(0.01, 9), st.floats(0.01, 9), st.floats(0, 3)), max_size=200))
def test_exact_predictions_are_always_trusted_and_time_alone_never_takes_trust(
    samples: list[tuple[float, float, float]],
) -> None:
    exact, any_ = Trust(ttft_slo=2.0), Trust(ttft_slo=2.0)
    now = 0.0
    for predicted, observed, gap in samples:
        now += gap
        exact.note("remote", predicted=predicted, observed=predicted, now=now)
        any_.note("remote", predicted=predicted, observed=observed, now=now)
    assert exact.trusted(now)
    before = any_.trusted(now)
    assert any_.trusted(now + 100.0) or not before
    assert any_.trusted(now + 1000.0)
