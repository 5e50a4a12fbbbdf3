"""Sessions that last longer than the window: how many rounds they have while more or fewer of them begin than did."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from weft_operator.api.objects import ServiceKey
from weft_operator.metrics.history import History, Mean, Sample, in_their_time
from weft_operator.metrics.observation import Observation
from weft_operator.planning.request import planner_request
from weft_operator.replanning.decide import AskPlanner, decide
from weft_operator.replanning.drift import detect_drifts
from weft_operator.replanning.state import ReplanningState, lags_of_rounds
from weft_operator_tests.observations import WINDOW_S, at, look, plan_for, record_of, spread

KEY = ServiceKey("default", "demo")
LONG_S = 600.0
"""From a session's first round to its last."""
GAP_S = LONG_S / 4 - 0.5 - 280 * 0.02
"""Between its five rounds, each of which takes as long as the plan predicts."""
RECORD = record_of(plan_for(4, rate=1.5), objective="cost")
Rate = Callable[[float], float]


def windowed(begin: Rate, seconds: float, *, rounds: int = 5) -> Observation:
    """Return what is seen of sessions that begin at a rate and have a round each 150 s."""

    def mean(lag: float) -> float:
        steps = range(0, int(WINDOW_S), 10)
        return sum(begin(seconds - lag - step - 5) for step in steps) / len(steps)

    rates = [mean(number * LONG_S / 4) for number in range(rounds)]
    first, every = rates[0], sum(rates)
    seen = look(
        seconds, first, sessions=round(first * WINDOW_S), gap_s=spread(GAP_S), rounds=spread(every / first, count=400)
    )
    assert seen.workload is not None
    return replace(seen, workload=replace(seen.workload, round_rate=every))


def watched(begin: Rate, until: float, **how: int) -> tuple[ReplanningState, Observation]:
    """Return what is remembered of a service that was looked at every 15 s."""
    replanning_state = ReplanningState()
    parts = {"spec": RECORD.spec, "prior": planner_request(RECORD.spec)["workload"], "record": RECORD}
    newest = windowed(begin, 0.0, **how)
    replanning_state.replan_inputs(KEY, observation=newest, now=newest.at, approval="", **parts)
    for seconds in range(15, int(until) + 1, 15):
        newest = windowed(begin, seconds, **how)
        replanning_state.on_observation(KEY, newest)
    return replanning_state, newest


def rounds_told(begin: Rate, until: float, **how: int) -> tuple[float, float, frozenset[str]]:
    """Return the rounds a session as they look at first, as they are remembered, and which kinds of drift there are."""
    replanning_state, newest = watched(begin, until, **how)
    history = replanning_state._of[KEY].history
    assert history.newest is not None
    assert newest.workload is not None
    assert newest.workload.rounds is not None
    found = detect_drifts(
        RECORD.plan, RECORD.spec.slo, RECORD.spec.planning, history=history, observation=newest, changed_at=None
    )
    kinds = frozenset(str(drift.kind) for drift in found)
    return newest.workload.rounds.mean, history.newest.figures["rounds"].value, kinds


def test_fewer_sessions_that_begin_are_no_more_rounds_of_each() -> None:
    raw, told, kinds = rounds_told(lambda t: 1.5 if t < 1000 else 0.6, 1400.0)
    assert raw > 7
    assert told == pytest.approx(5, rel=0.05)
    assert "Rounds" not in kinds


def test_more_sessions_that_begin_are_planned_for_with_all_their_rounds() -> None:
    def begin(seconds: float) -> float:
        return 1.5 if seconds < 1000 else 4.5

    raw, told, kinds = rounds_told(begin, 1240.0)
    assert raw < 4
    assert told == pytest.approx(5, rel=0.05)
    assert "Rate" in kinds
    replanning_state, newest = watched(begin, 1240.0)
    now = replanning_state.replan_inputs(
        KEY,
        spec=RECORD.spec,
        prior=planner_request(RECORD.spec)["workload"],
        record=RECORD,
        observation=newest,
        now=newest.at,
        approval="",
    )
    asked = decide(now)
    assert isinstance(asked, AskPlanner)
    assert asked.replan_request.workload["rounds"]["mean"] == pytest.approx(told, rel=1e-3)


def test_more_rounds_of_each_session_are_reported_as_before() -> None:
    raw, told, kinds = rounds_told(lambda _: 1.5, 1400.0, rounds=8)
    assert raw == told == pytest.approx(8)
    assert kinds == {"Rounds"}


def test_a_difference_is_explained_away_and_none_is_made() -> None:
    sample = Sample(at(100), seen=True, begun=1.0, figures={"rounds": Mean(5.5, 100, 0.1)})

    def told(before: float, later: float) -> float:
        history = History(1800.0, (Sample(at(0), seen=True, begun=before),))
        return in_their_time(sample, history, later=later, planned=5.0, lags=(100.0,)).figures["rounds"].value

    assert told(1.0, 4.5) == 5.5
    assert told(1.0625, 4.5) == pytest.approx(1 + 4.5 / 1.0625)
    assert told(9.0, 4.5) == 5.0, "as many as planned explain it all"
    assert told(0.1, 4.5) == 5.5, "nor are there more than were seen"
    assert told(0.0, 4.5) == 5.0, "nobody began then"
    assert in_their_time(sample, History(1800.0), later=4.5, planned=5.0, lags=()) == sample
    silent = replace(sample, figures={})
    assert in_their_time(silent, History(1800.0), later=4.5, planned=5.0, lags=(1.0,)) == silent


def test_later_rounds_come_evenly_over_a_session() -> None:
    load = look(0.0, gap_s=spread(10.0), decode=spread(100.0)).workload
    assert load is not None
    plan = plan_for(2, rate=0.6)
    assert lags_of_rounds(plan, load) == pytest.approx([12.5, 25.0, 37.5, 50.0])
    endless = replace(plan, predicted=replace(plan.predicted, ttft_mean_s=math.inf))
    assert lags_of_rounds(endless, load) == pytest.approx([10.0, 20.0, 30.0, 40.0])
    assert plan.validity is not None
    assert lags_of_rounds(replace(plan, validity=replace(plan.validity, rounds=1.0)), load) == ()
    assert lags_of_rounds(replace(plan, validity=None), load) == ()
    many = lags_of_rounds(replace(plan, validity=replace(plan.validity, rounds=33.0)), load)
    assert (len(many), many[-1]) == (8, 400.0)
