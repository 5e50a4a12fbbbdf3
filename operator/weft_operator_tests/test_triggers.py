"""Loads of the workers that ask for another plan: their queries, what is detected, and what the planner is asked."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from weft_operator.api.triggers import Trigger
from weft_operator.metrics.queries import MAX_LENGTH, queries, windows_of
from weft_operator.metrics.query_target import target_of
from weft_operator.metrics.series import Series, counts_of
from weft_operator.metrics.slo_results import triggers_of
from weft_operator.metrics.status_figures import figures
from weft_operator.metrics.trigger_queries import TriggerWindow, figure_of
from weft_operator.replanning.decide import AskPlanner, KeepPlan, decide
from weft_operator.replanning.drift import MOST_GROWTH, holds_workers
from weft_operator.settings import PrometheusAccess
from weft_operator_tests.observations import look, plan_for, record_of, service_with, solve_rate
from weft_operator_tests.test_replanning_decide import changed, kept, replan_inputs, steadily
from weft_operator_tests.valid import spec

QUEUE = {"metric": "PrefillQueue", "target": 4.0}


def loaded(value: float | None, *, seconds: float = 300.0, rate: float = 0.6) -> list[Any]:
    """Return looks at planned traffic whose prefill workers have so long a queue; None: it is unknown."""
    triggers = {} if value is None else {"PrefillQueue": value}
    return [replace(one, triggers=triggers) for one in steadily(seconds, rate)]


def test_a_load_above_its_target_asks_for_as_many_times_the_traffic() -> None:
    decision = decide(replan_inputs(loaded(6.0), triggers=[QUEUE]))
    assert isinstance(decision, AskPlanner)
    assert decision.replan_request.cause == "PrefillQueue is 6 on average over 1m and its target is 4"
    assert decision.replan_request.workload["arrivalRate"] == pytest.approx(0.6 * 1.5)
    far = decide(replan_inputs(loaded(400.0), triggers=[QUEUE]))
    assert isinstance(far, AskPlanner)
    assert far.replan_request.workload["arrivalRate"] == pytest.approx(0.6 * MOST_GROWTH)


@pytest.mark.parametrize("value", [None, 0.0, 4.0])
def test_a_load_within_its_target_or_unknown_asks_for_nothing(value: float | None) -> None:
    assert kept(decide(replan_inputs(loaded(value), triggers=[QUEUE]))).reason == ""


def test_a_load_counts_once_the_workers_were_the_same_for_its_window() -> None:
    young = record_of(plan_for(2, rate=0.6), changed=250.0, objective="cost")
    settings: dict[str, Any] = {"cooldown": "0s", "triggers": [{**QUEUE, "cooldown": "1m"}]}
    assert kept(decide(replan_inputs(loaded(6.0), young, **settings))).reason == ""
    assert isinstance(decide(replan_inputs(loaded(6.0, seconds=320), young, **settings)), AskPlanner)


def test_a_trigger_waits_for_its_own_cooldown() -> None:
    young = record_of(plan_for(2, rate=0.6), changed=100.0, objective="cost")
    found = kept(decide(replan_inputs(loaded(6.0), young, triggers=[QUEUE])))
    assert found.reason == "Cooldown"
    assert "00:06:40 UTC (spec.planning.triggers.cooldown 300 s)" in found.message
    assert isinstance(decide(replan_inputs(loaded(6.0, seconds=400), young, triggers=[QUEUE])), AskPlanner)


def test_the_planner_decides_and_the_budget_holds() -> None:
    same = decide(replan_inputs(loaded(6.0), answer=solve_rate(0.6, now=2), triggers=[QUEUE]))
    assert kept(same).reason == "NoBetterPlan"
    more = changed(decide(replan_inputs(loaded(6.0), answer=solve_rate(1.2, now=2), triggers=[QUEUE])))
    assert sum(group.gpus for group in more.plan.groups) > 3


@pytest.mark.parametrize(("value", "reason"), [(None, "ScaleDownStabilized"), (3.0, "ScaleDownStabilized"), (1.0, "")])
def test_a_smaller_plan_waits_while_a_load_is_unknown_or_not_below_its_lower_bound(
    value: float | None, reason: str
) -> None:
    looks = loaded(value, seconds=1900, rate=0.2)
    decision = decide(replan_inputs(looks, answer=solve_rate(0.2, now=2), triggers=[QUEUE]))
    if reason:
        assert isinstance(decision, KeepPlan)
        assert decision.reason == reason
        assert "PrefillQueue" in decision.message
    else:
        changed(decision)


def test_the_lower_bound_is_half_of_the_target_or_what_is_given() -> None:
    planning = spec(service_with(triggers=[{**QUEUE, "lowerBound": 3.5}])).planning
    assert holds_workers(planning, replace(look(0.0), triggers={"PrefillQueue": 3.4})) == ""
    assert "3.5" in holds_workers(planning, replace(look(0.0), triggers={"PrefillQueue": 3.6}))
    assert Trigger.model_validate(QUEUE).least == 2.0


WINDOWS = tuple(
    TriggerWindow(metric, 60)
    for metric in ("PrefillQueue", "DecodeBatch", "DecodeKVUse", "PrefillGPUUtilization", "DecodeGPUUtilization")
)


def test_each_trigger_is_a_query_of_the_workers_of_its_role() -> None:
    plain = queries("llm", "demo", windows_of(300))
    asked = queries("llm", "demo", windows_of(300), triggers=WINDOWS, matchers=(("cluster", "a"),))
    assert max(map(len, asked)) < 2 * MAX_LENGTH
    assert not any("trigger_" in query for query in plain)
    text = "\n".join(asked)
    for one in WINDOWS:
        assert f'"{figure_of(one.metric)}"' in text
    scope = 'namespace="llm",service="demo",cluster="a"'
    for role in ("prefill", "decode"):
        in_force = f'max by (pod) (weft_router_role{{{scope},role=~"{role}|both"}}) > 0'
        assert f'({in_force} or on (pod) max by (pod) (weft_router_tasks{{{scope},component="{role}"}}))' in text
    assert "[60s:5s]" in text
    assert 'DCGM_FI_DEV_GPU_UTIL{namespace="llm",cluster="a"}' in text


def test_a_services_triggers_are_queried_over_their_windows() -> None:
    asked = spec(service_with(triggers=[{**QUEUE, "window": "2m"}]))
    target = target_of(asked, [], default_url="http://prometheus", access=PrometheusAccess())
    assert target.triggers == (TriggerWindow("PrefillQueue", 120),)


def test_results_that_are_no_numbers_are_unknown_and_no_counts() -> None:
    found = [
        Series({"figure": figure_of("PrefillQueue")}, 3.25),
        Series({"figure": figure_of("DecodeBatch")}, float("nan")),
    ]
    assert triggers_of(found) == {"PrefillQueue": 3.25}
    assert counts_of(found) == []
    shown = figures(replace(look(0.0), triggers=triggers_of(found)))
    assert shown["triggers"] == [{"metric": "PrefillQueue", "value": 3.25}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "DecodeKVUse", "target": 1.5}, "a share is at most 1"),
        ({"lowerBound": 4.0}, "must be below target"),
        ({"window": "5s"}, "between 15s and 1h"),
        ({"cooldown": "10s"}, "between 1m and 24h"),
        ({"metric": "Latency"}, "metric"),
    ],
)
def test_wrong_triggers_are_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(service_with(triggers=[{**QUEUE, **changes}]))


def test_a_metric_has_one_trigger() -> None:
    with pytest.raises(ValidationError, match="two triggers have the same metric"):
        spec(service_with(triggers=[QUEUE, QUEUE]))
