"""What counts as drift: misses that chance does not explain, traffic that surely changed, predictions that err."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from weft_operator.metrics.history import MOST, History, sample_of, surely_above
from weft_operator.metrics.observation import Observation, Spread, Tally
from weft_operator.replanning.drift import DetectedDrift, burn_rate, detect_drifts
from weft_operator_tests.observations import FAST_S, VALID, at, blind, look, plan_for, spread
from weft_operator_tests.observations import record_of as record

STEP_S = 10.0


def drifts(looks: list[Observation], *, changed: float | None = None, **validity: float) -> tuple[DetectedDrift, ...]:
    """Return what has drifted after some looks at a plan for 0.6 sessions/s that holds up to 0.9."""
    plan = replace(plan_for(2, rate=0.6), validity=replace(VALID, **validity))
    held = record(plan)
    history = History(1800.0)
    for one in looks:
        history = history.with_(sample_of(one, attainment=0.9, min_samples=30, burn_rate=1))
    return detect_drifts(
        plan,
        held.spec.slo,
        held.spec.planning,
        history=history,
        observation=looks[-1],
        changed_at=None if changed is None else at(changed),
    )


def steadily(seconds: float, *, step: float = STEP_S, **parts: Any) -> list[Observation]:
    return [look(step * number, **parts) for number in range(int(seconds / step) + 1)]


def seen(seconds: float, figure: str, value: Spread | None) -> tuple[DetectedDrift, ...]:
    parts: dict[str, Any] = {figure: value}
    return drifts(steadily(seconds, **parts))


def kinds(found: tuple[DetectedDrift, ...]) -> list[tuple[str, str]]:
    return [(one.kind, one.direction) for one in found]


def test_what_the_plan_was_made_for_is_no_drift() -> None:
    assert drifts(steadily(3600)) == ()


def test_three_times_the_load_is_reported_within_the_window() -> None:
    assert kinds(drifts(steadily(0, rate=1.8))) == [], "one look proves nothing"
    found = drifts(steadily(60, rate=1.8))
    assert kinds(found) == [("Rate", "more")]
    assert found[0].sentence == "1.8 sessions/s arrive (540 counted) and the plan holds the SLO up to 0.9"
    assert found[0].figures == {"rate": 1.8, "low": 0.0, "high": 0.9, "sessions": 540.0}


def test_a_risen_load_is_planned_for_as_it_is_now_and_not_as_the_window_mixes_it() -> None:
    before = [look(10.0 * k, 0.6) for k in range(30)]
    # A minute after three times the load began: a fifth of the window holds it.
    risen = look(300.0, 0.6 * 0.8 + 1.8 * 0.2)
    assert risen.workload is not None
    risen = replace(risen, workload=replace(risen.workload, fast_sessions=round(1.8 * FAST_S)))
    history = History(1800)
    for one in (*before, risen):
        history = history.with_(sample_of(one, attainment=0.9, min_samples=30, burn_rate=1))
    peak = history.peak_rate(300)
    assert peak is not None
    assert 0.84 < peak < 1.8, "more than the mean of the window, and no more than is sure"
    assert peak == pytest.approx((108 - 1.96 * 108**0.5) / FAST_S)
    assert risen.workload is not None
    few = replace(risen, workload=replace(risen.workload, fast_sessions=29))
    told = History(1800).with_(sample_of(few, attainment=0.9, min_samples=30, burn_rate=1)).peak_rate(300)
    assert told == pytest.approx(0.84), "so few sessions tell nothing"


def test_requests_that_were_refused_are_load_too() -> None:
    assert kinds(drifts(steadily(300, rate=0.6, refused=1.0))) == [("Rate", "more")]


def test_a_difference_must_be_more_than_chance() -> None:
    """20 % above the bound: with 3,000 sessions that is sure, with 9 it is nothing."""
    assert kinds(drifts(steadily(900, rate=1.08, sessions=3000))) == [("Rate", "more")]
    assert drifts(steadily(900, rate=1.08 / 36, sessions=9), rate_high=0.025) == ()


def test_noise_below_the_bound_is_no_drift() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        assert drifts([look(60.0 * k, 0.75 * rng.uniform(0.8, 1.2)) for k in range(240)]) == (), seed


def test_less_load_counts_only_after_a_long_time_of_it_all_seen() -> None:
    low = {"rate_low": 0.5}
    assert drifts(steadily(1790, rate=0.2), **low) == ()
    found = drifts(steadily(1810, rate=0.2), **low)
    assert kinds(found) == [("Rate", "less")]
    assert "at most 0.2 sessions/s arrived for 1800 s and the plan is for 0.6: fewer than 0.5" in found[0].sentence
    looks = steadily(1810, rate=0.2)
    assert drifts([*looks[:90], look(905.0, 0.6), *looks[91:]], **low) == (), "one busy look"
    assert drifts([*looks[:90], blind(905.0), *looks[91:]], **low) == (), "one blind look"
    assert drifts([*looks[:20], *looks[80:]], **low) == (), "a hole of ten minutes"
    assert drifts(looks, changed=600.0, **low) == (), "the plan is young"
    assert drifts(steadily(1810, rate=0.2)) == (), "the objective latency uses all GPUs at any load"


@pytest.mark.parametrize(
    ("figure", "mean", "kind", "words"),
    [
        ("first_prompt", 3000.0, "Lengths", "3000 tokens of a first prompt are observed (mean of 500) and"),
        ("increment", 1600.0, "Lengths", "1600 new tokens of a later round"),
        ("decode", 560.0, "Lengths", "560 tokens of an answer"),
        ("rounds", 9.0, "Rounds", "9.0 rounds a session are observed (mean of 500) and the plan is for 5.0"),
    ],
)
def test_longer_sessions_are_reported_by_their_figure(figure: str, mean: float, kind: str, words: str) -> None:
    (found,) = seen(300, figure, spread(mean))
    assert (found.kind, found.direction) == (kind, "more")
    assert words in found.sentence
    planned = getattr(VALID, figure)
    assert seen(3600, figure, spread(planned * 1.15)) == (), "within the tolerance of a fifth"
    assert seen(300, figure, spread(mean, count=20)) == (), "too few samples"
    assert seen(900, figure, spread(planned * 1.25, count=31)) == (), "chance explains it"
    assert seen(300, figure, None) == ()


def test_shorter_prompts_ask_for_less_and_may_wait() -> None:
    parts: dict[str, Any] = {"first_prompt": spread(400.0)}
    assert drifts(steadily(1700, **parts)) == ()
    assert kinds(drifts(steadily(1900, **parts))) == [("Lengths", "less")]


def test_both_windows_must_burn() -> None:
    burning, calm = Tally(600, 400), Tally(990, 10)
    found = drifts(steadily(0, fast=Tally(120, 80), slow=burning))
    assert kinds(found) == [("SloBurn", "more")]
    assert found[0].sentence == (
        "400 of 1000 rounds missed the SLO in 300 s, 4.0 times what 90% attainment allows, "
        "and 80 of 200 rounds in the last 60 s"
    )
    assert found[0].figures == {"fast": pytest.approx(4), "slow": pytest.approx(4), "limit": 1}
    assert drifts(steadily(0, fast=Tally(198, 2), slow=burning)) == (), "it is over"
    assert drifts(steadily(0, fast=Tally(120, 80), slow=calm)) == (), "it is short"
    assert drifts(steadily(0, fast=Tally(12, 8), slow=burning)) == (), "too few rounds"
    assert drifts(steadily(0, fast=Tally(178, 22), slow=Tally(890, 110))) == (), "11 % of 200 may be chance"


def test_where_sessions_count_their_misses_do() -> None:
    """6 % of rounds missed is a quarter of sessions with five rounds each."""
    few: dict[str, Any] = {"fast": Tally(188, 12), "slow": Tally(940, 60)}
    assert drifts(steadily(0, **few)) == ()
    (found,) = drifts(steadily(0, **few, ended=Tally(146, 54)))
    assert found.sentence.startswith("54 of 200 sessions missed the SLO in 300 s, 2.7 times what 90% attainment allows")
    assert drifts(steadily(0, fast=Tally(198, 2), slow=Tally(940, 60), ended=Tally(146, 54))) == (), "it is over"
    assert drifts(steadily(0, **few, ended=Tally(15, 5))) == (), "too few have ended"


def test_what_the_plan_before_missed_does_not_speak_against_a_new_one() -> None:
    parts: dict[str, Any] = {"fast": Tally(120, 80), "slow": Tally(600, 400)}
    assert drifts(steadily(100, **parts), changed=50.0) == ()
    assert kinds(drifts(steadily(120, **parts), changed=50.0)) == [("SloBurn", "more")]


def test_latencies_above_the_prediction_speak_against_the_profile() -> None:
    (found,) = drifts(steadily(300, ttft=3.0))
    assert (found.kind, found.direction) == ("Residual", "more")
    assert found.sentence.startswith("P95 TTFT is 3 s and 900 ms was predicted at this traffic: the cost profile")
    (found,) = drifts(steadily(300, itl=0.08))
    assert "ITL is 80 ms and 20 ms was predicted" in found.sentence
    assert drifts(steadily(300, ttft=1.9)) == (), "within the SLO no other plan is needed"
    assert kinds(drifts(steadily(300, rate=1.8, ttft=3.0))) == [("Rate", "more")], "at other traffic it says nothing"


@pytest.mark.parametrize(
    ("newest", "words"),
    [
        ({"rate": 1.8}, "for the traffic of the plan: 1.8 sessions/s arrive and it is for up to 0.9"),
        (
            {"first_prompt": spread(1300)},
            "for the traffic of the plan: 1300 tokens of a first prompt are observed and it is for 1000",
        ),
        ({"rate": 0.8}, "at this traffic: the cost profile is too fast; measure it again with `weft profile`"),
    ],
)
def test_the_profile_is_not_to_blame_while_the_traffic_begins_to_be_another_one(
    newest: dict[str, Any], words: str
) -> None:
    (found,) = drifts([*steadily(300, ttft=3.0), look(310.0, **{"rate": 0.6, **newest}, ttft=3.0)])
    assert found.sentence == f"P95 TTFT is 3 s and 900 ms was predicted {words}"
    assert (found.kind, found.traffic_changes) == ("Residual", words.startswith("for the traffic of the plan"))


def test_nothing_drifts_without_metrics_and_a_gap_ends_a_series() -> None:
    looks = steadily(300, rate=1.8)
    assert drifts([*looks, blind(310.0)]) == ()
    assert drifts([*looks, blind(310.0), look(320.0, 1.8)]) == ()
    assert kinds(drifts([*looks, blind(310.0), *(look(320.0 + 10 * k, 1.8) for k in range(7))])) == [("Rate", "more")]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_a_figure_that_is_no_number_makes_metrics_unavailable(bad: float) -> None:
    looks = steadily(300, rate=1.8)
    for one in (
        look(310.0, bad, sessions=500),
        look(310.0, decode=spread(bad)),
        look(310.0, ttft=bad),
        look(310.0, refused=bad),
    ):
        assert drifts([*looks, one]) == ()


def test_a_plan_without_validity_is_judged_by_its_slo_alone() -> None:
    plan = replace(plan_for(2, rate=0.6), validity=None)
    held = record(plan)
    history = History(1800.0)
    for one in steadily(300, rate=9.0, first_prompt=spread(9000.0)):
        history = history.with_(sample_of(one, attainment=0.9, min_samples=30, burn_rate=1))
        assert not detect_drifts(
            plan, held.spec.slo, held.spec.planning, history=history, observation=one, changed_at=None
        )


def test_burn_rates() -> None:
    assert burn_rate(Tally(90, 10), 0.9) == pytest.approx(1)
    assert burn_rate(Tally(), 0.9) is None
    assert burn_rate(Tally(99, 1), 1.0) == math.inf
    assert burn_rate(Tally(99, 0), 1.0) == 0
    assert not surely_above(0, 0, 0.0)
    assert surely_above(1, 3, 0.0)


def test_the_history_is_bounded_and_ends_with_the_newest_sample() -> None:
    history = History(1800.0)
    for number in range(5000):
        history = history.with_(sample_of(look(number * 1.0), attainment=0.9, min_samples=30, burn_rate=1))
        assert history.newest is not None
        assert history.newest.at == at(number)
    assert len(history.samples) <= 2 * MOST
    assert history.samples[1].at > at(5000 - 1802)
    for number in range(5000, 7000):
        one = look(float(number)) if number % 2 else blind(float(number))
        history = history.with_(sample_of(one, attainment=0.9, min_samples=30, burn_rate=1))
    assert len(history.samples) == 2 * MOST
    same = history.with_(sample_of(look(4000.0), attainment=0.9, min_samples=30, burn_rate=1))
    assert same is history, "a look that is not newer"
