"""Predictions are trusted until their median is off, and again once it is not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.trust import Trust


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
