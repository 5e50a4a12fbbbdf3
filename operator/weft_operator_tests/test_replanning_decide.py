"""What is decided about drift: nothing for the blind, a question, a proposal, or another plan."""

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from weft_core.plan import Alternative, Plan, PlannedPolicy
from weft_operator.metrics.history import History, sample_of
from weft_operator.metrics.observation import STARTING, Observation, Tally, WorkerPressure
from weft_operator.planning.planner_process import Answer, Planned, Refused
from weft_operator.planning.request import planner_request
from weft_operator.render.inputs import PlanRecord
from weft_operator.replanning.comparison import no_gain, same_workers, shrinks, too_small, within_bounds
from weft_operator.replanning.decide import (
    UNMEASURED,
    AskPlanner,
    ChangePlan,
    Decision,
    KeepPlan,
    ReplanInputs,
    ReplanRequest,
    decide,
)
from weft_operator_tests.observations import (
    FLAT,
    at,
    blind,
    look,
    plan_for,
    prediction,
    record_of,
    service_with,
    solve_rate,
    spread,
)
from weft_operator_tests.samples import PROFILE_JSON, group
from weft_operator_tests.valid import spec

INQUIRY = ReplanRequest(workload={"arrivalRate": 1.8}, cause="1.8 sessions/s arrive")


def replan_inputs(
    looks: list[Observation],
    record: PlanRecord | None = None,
    *,
    answer: Answer | None = None,
    replan_request: ReplanRequest | None = None,
    approval: str = "",
    now: float | None = None,
    **planning: Any,
) -> ReplanInputs:
    """Return a service whose plan of two decode workers for 0.6 sessions/s carries 0.99."""
    settings = {"objective": "cost", **planning}
    held = record or record_of(plan_for(2, rate=0.6), **settings)
    held = replace(held, spec=spec(service_with(**settings)))
    history = History(1800.0)
    for one in looks:
        history = history.with_(sample_of(one, attainment=0.9, min_samples=30, burn_rate=1))
    newest = looks[-1] if looks else None
    return ReplanInputs(
        spec=held.spec,
        prior=planner_request(held.spec)["workload"],
        record=held,
        history=history,
        observation=newest,
        now=newest.at if now is None and newest is not None else at(now or 0.0),
        approval=approval,
        replan_request=INQUIRY if answer is not None and replan_request is None else replan_request,
        answer=answer,
    )


def steadily(seconds: float, rate: float, *, step: float = 10.0, **parts: Any) -> list[Observation]:
    return [look(step * number, rate, **parts) for number in range(int(seconds / step) + 1)]


BUSY = steadily(300, 1.8)
QUIET = steadily(1900, 0.2)


def kept(decision: Decision) -> KeepPlan:
    assert isinstance(decision, KeepPlan), decision
    return decision


def changed(decision: Decision) -> PlanRecord:
    assert isinstance(decision, ChangePlan), decision
    return decision.record


def test_a_service_as_planned_is_left_alone() -> None:
    now = replan_inputs(steadily(300, 0.6))
    assert decide(now) == KeepPlan(now.record)


def test_the_planner_is_asked_for_what_is_seen_with_its_shapes() -> None:
    decision = decide(replan_inputs([*BUSY, look(310.0, 1.7, first_prompt=spread(2000.0), gap_s=None)]))
    assert isinstance(decision, AskPlanner)
    asked = decision.replan_request.workload
    assert asked["arrivalRate"] == 1.8, "the highest rate of the window"
    assert asked["firstPrompt"]["mean"] == 2000
    assert asked["firstPrompt"]["histogram"]["weights"] == [1.0, 2.0, 0.5]
    assert asked["gap"] == {"mean": 2.0}, "what was not seen is the spec's"
    assert decision.replan_request.cause.startswith(
        "1.7 sessions/s arrive (510 counted) and the plan holds the SLO up to 0.99"
    )


def test_more_is_planned_for_longer_lengths_of_the_fast_window_and_less_for_those_of_the_whole_one() -> None:
    fast = {"decode": spread(560.0), "first_prompt": spread(400.0)}
    more = decide(replan_inputs([*BUSY, look(310.0, 1.8, fast_lengths=fast)]))
    assert isinstance(more, AskPlanner)
    asked = more.replan_request.workload
    assert [asked[name]["mean"] for name in ("decode", "firstPrompt", "increment")] == [560.0, 1000.0, 800.0]
    less = decide(replan_inputs([*QUIET, look(1910.0, 0.2, fast_lengths=fast)]))
    assert isinstance(less, AskPlanner)
    assert less.replan_request.workload["decode"]["mean"] == 280.0


def test_less_is_planned_for_the_highest_rate_of_the_quiet_time() -> None:
    decision = decide(replan_inputs([*QUIET[:20], look(200.0, 0.3), *QUIET[21:]]))
    assert isinstance(decision, AskPlanner)
    assert decision.replan_request.workload["arrivalRate"] == 0.3
    idle = decide(replan_inputs(steadily(1900, 0.0)))
    assert isinstance(idle, AskPlanner)
    assert idle.replan_request.workload["arrivalRate"] == pytest.approx(1 / 1800, rel=1e-3), (
        "a planner needs a rate above 0"
    )


@pytest.mark.parametrize("reason", ["Stale", "Partial", "NoSeries", "NotANumber", "PrometheusUnreachable"])
def test_nothing_is_decided_without_metrics(reason: Any) -> None:
    for answer in (None, solve_rate(1.8, now=2), solve_rate(0.1, now=2)):
        found = kept(decide(replan_inputs([*BUSY, blind(310.0, reason)], answer=answer)))
        assert found.reason == "MetricsUnavailable"
        assert f"({reason})" in found.message
        assert found.record == replan_inputs(BUSY).record


def test_no_prometheus_and_waiting_for_first_metrics_are_not_reported_as_a_fault() -> None:
    assert kept(decide(replan_inputs([]))).reason == ""
    for reason in (*UNMEASURED, *STARTING):
        assert kept(decide(replan_inputs([blind(0.0, reason)]))).reason == ""


@pytest.mark.parametrize("reason", STARTING)
def test_whoever_waits_for_metrics_changes_nothing(reason: Any) -> None:
    for answer in (None, solve_rate(1.8, now=2), solve_rate(0.1, now=2)):
        found = kept(decide(replan_inputs([*QUIET, blind(1910.0, reason)], answer=answer)))
        assert (found.reason, found.record) == ("", replan_inputs(QUIET).record)


def test_planning_off_changes_nothing() -> None:
    now = replan_inputs(BUSY, mode="Off", answer=solve_rate(1.8, now=2))
    assert decide(now) == KeepPlan(now.record)


def test_auto_applies_a_better_plan_and_remembers_what_it_was_made_for() -> None:
    record = changed(decide(replan_inputs(BUSY, answer=solve_rate(1.8, now=2))))
    assert record.plan.groups == plan_for(5, rate=1.8).groups
    assert (record.profile, record.request_hash) == (FLAT, replan_inputs(BUSY).record.request_hash)
    baseline = record.baseline
    assert baseline.workload == INQUIRY.workload
    assert (baseline.cause, baseline.changed_at, baseline.judged_at) == (INQUIRY.cause, at(300), at(300))
    assert baseline.proposal is None
    again = decide(replace(replan_inputs(steadily(600, 1.8)), record=record))
    assert kept(again).reason == "", "the new plan is for this traffic"


@pytest.mark.parametrize(("mode", "reason"), [("Advisory", "ReplanProposed"), ("Manual", "AwaitingApproval")])
def test_other_modes_propose(mode: str, reason: str) -> None:
    now = replan_inputs(BUSY, mode=mode, answer=solve_rate(1.8, now=2))
    found = kept(decide(now))
    assert found.reason == reason
    proposal = found.record.baseline.proposal
    assert proposal is not None
    assert found.record.plan == now.record.plan
    assert (proposal.plan.groups, proposal.workload) == (plan_for(5, rate=1.8).groups, INQUIRY.workload)
    assert "D1x2" in found.message
    assert "P1x1 D1x5 is proposed, because 1.8 sessions/s arrive" in found.message
    assert (proposal.hash in found.message) == (mode == "Manual")
    # The same change, found again later, is the same proposal.
    later = replan_inputs(steadily(2000, 1.8), found.record, mode=mode, answer=solve_rate(1.9, now=2))
    assert kept(decide(later)).record.baseline.proposal == proposal


def proposed(mode: str = "Manual", rate: float = 1.8, looks: list[Observation] | None = None) -> PlanRecord:
    found = kept(decide(replan_inputs(looks or BUSY, mode=mode, answer=solve_rate(rate, now=2))))
    assert found.record.baseline.proposal is not None
    return found.record


def test_the_hash_of_a_proposal_carries_it_out_once() -> None:
    record = proposed()
    proposal = record.baseline.proposal
    assert proposal is not None
    approved = changed(decide(replan_inputs(BUSY, record, mode="Manual", approval=proposal.hash)))
    assert approved.plan == proposal.plan
    assert approved.baseline.approved == proposal.hash
    assert approved.baseline.proposal is None
    # The annotation is still there and is no stale one.
    after = decide(replan_inputs(steadily(1000, 1.8), approved, mode="Manual", approval=proposal.hash))
    assert kept(after).reason == ""


@pytest.mark.parametrize("mode", ["Advisory", "Auto", "Off"])
def test_an_approval_counts_in_manual_mode_only(mode: str) -> None:
    record = proposed("Advisory")
    proposal = record.baseline.proposal
    assert proposal is not None
    looks = steadily(310, 0.6)
    assert changed(decide(replan_inputs(looks, record, mode="Manual", approval=proposal.hash))).plan == proposal.plan
    for approval in (proposal.hash, "0123456789ab"):
        with_it = decide(replan_inputs(looks, record, mode=mode, approval=approval))
        assert with_it == decide(replan_inputs(looks, record, mode=mode))
        assert kept(with_it).record.plan == record.plan


def test_another_hash_changes_nothing_and_is_reported() -> None:
    record = proposed()
    found = kept(decide(replan_inputs(BUSY, record, mode="Manual", approval="0123456789ab")))
    assert found.reason == "ApprovalStale"
    assert "'0123456789ab', and the proposal is" in found.message
    assert found.record == record
    plain = kept(decide(replan_inputs(steadily(300, 0.6), mode="Manual", approval="0123456789ab")))
    assert plain.reason == "ApprovalStale"
    assert "there is no proposal" in plain.message
    # It keeps nobody from asking the planner.
    assert isinstance(decide(replan_inputs(BUSY, mode="Manual", approval="0123456789ab")), AskPlanner)


def test_the_same_change_proposed_again_needs_a_new_approval() -> None:
    first, later = proposed(), proposed(looks=steadily(310, 1.8))
    assert first.baseline.proposal is not None
    assert later.baseline.proposal is not None
    assert first.baseline.proposal.plan == later.baseline.proposal.plan
    assert first.baseline.proposal.hash != later.baseline.proposal.hash


def test_an_approved_smaller_plan_waits_for_metrics_and_for_sessions() -> None:
    record = proposed(rate=0.2, looks=QUIET)
    proposal = record.baseline.proposal
    assert proposal is not None
    assert shrinks(record.plan, proposal.plan)
    parts: dict[str, Any] = {"mode": "Manual", "approval": proposal.hash}
    for reason in ("Stale", *STARTING):
        found = kept(decide(replan_inputs([*QUIET, blind(1910.0, reason)], record, **parts)))
        assert (found.reason, found.record) == ("MetricsUnavailable", record)
    assert kept(decide(replan_inputs([], record, **parts))).reason == "MetricsUnavailable"
    full = look(1910.0, 0.2, pressure=WorkerPressure(queue=0.0, kv_use={"decode": 0.6}))
    found = kept(decide(replan_inputs([*QUIET, full], record, **parts)))
    assert found.reason == "SessionsDoNotFit"
    assert "sessions hold up to 60% of 200000 KV tokens, and it has room for 100000" in found.message
    assert changed(decide(replan_inputs(QUIET, record, **parts))).plan == proposal.plan


def test_auto_decides_again_on_a_proposal() -> None:
    record = proposed("Advisory")
    assert isinstance(decide(replan_inputs(BUSY, record, mode="Auto")), AskPlanner), "without waiting for the cooldown"
    calm = kept(decide(replan_inputs(steadily(300, 0.6), record, mode="Auto")))
    assert calm.record.baseline.proposal is None


def test_a_proposal_is_withdrawn_when_all_was_long_well() -> None:
    record = proposed()
    soon = kept(decide(replan_inputs(steadily(1000, 0.6), record, mode="Manual")))
    assert (soon.reason, soon.record) == ("AwaitingApproval", record)
    late = kept(decide(replan_inputs(steadily(1900, 0.6), record, mode="Manual")))
    assert (late.reason, late.record.baseline.proposal) == ("", None)


def test_one_question_for_each_cooldown() -> None:
    young = record_of(plan_for(2, rate=0.6), changed=0.0, objective="cost")
    found = kept(decide(replan_inputs(BUSY, young)))
    assert (found.reason, found.requeue_after) == ("Cooldown", 300.0)
    assert "the planner is asked at 00:10:00 UTC (spec.planning.cooldown 10m)" in found.message
    assert isinstance(decide(replan_inputs(steadily(600, 1.8), young)), AskPlanner)
    assert isinstance(decide(replan_inputs(BUSY, young, cooldown="0s")), AskPlanner)


def test_a_verdict_stands_until_the_next_question() -> None:
    found = kept(decide(replan_inputs(BUSY, answer=Refused("OverBudget", "it costs too much"))))
    assert (found.reason, found.message, found.requeue_after) == (
        "ReplanFailed",
        "OverBudget: it costs too much",
        600.0,
    )
    later = kept(decide(replan_inputs(steadily(500, 1.8), found.record)))
    assert (later.reason, later.message, later.requeue_after) == (found.reason, found.message, 400.0)
    assert isinstance(decide(replan_inputs(steadily(900, 1.8), found.record)), AskPlanner)
    assert kept(decide(replan_inputs(steadily(500, 0.6), found.record))).reason == "", "nothing drifts any more"


def test_a_verdict_on_less_traffic_does_not_stand_against_more() -> None:
    found = kept(decide(replan_inputs(BUSY, answer=Refused("OverBudget", "it costs too much"))))
    assert found.record.baseline.judged == {"rate": 1.8}
    at_300 = at(300)
    grown = [*BUSY, *(look(300.0 + 10 * k, 3.6) for k in range(1, 13))]
    assert isinstance(decide(replan_inputs(grown, found.record)), AskPlanner), (
        "twice of what was judged is another question"
    )
    judged_just_now = replace(found.record.baseline, judged_at=at(415))
    assert kept(decide(replan_inputs(grown, replace(found.record, baseline=judged_just_now)))).requeue_after == 5.0
    unjudged = replace(found.record.baseline, judged=None)
    assert kept(decide(replan_inputs(grown, replace(found.record, baseline=unjudged)))).reason == "ReplanFailed"
    longer = [*BUSY, *(look(300.0 + 10 * k, 1.8, first_prompt=spread(3000)) for k in range(1, 13))]
    figures = {"rate": 1.8, "first_prompt": 1000.0}
    known = replace(found.record.baseline, judged=figures, judged_at=at_300)
    assert isinstance(decide(replan_inputs(longer, replace(found.record, baseline=known))), AskPlanner)


def test_the_first_look_at_a_rise_does_not_stand_for_a_minute() -> None:
    found = kept(decide(replan_inputs(BUSY, answer=Refused("OverBudget", "it costs too much"))))
    risen = [*BUSY, *(look(300.0 + 10 * k, 2.15) for k in range(1, 13))]
    assert isinstance(decide(replan_inputs(risen, found.record)), AskPlanner), "19 % more, within a window"
    just_now = replace(found.record.baseline, judged_at=at(415))
    assert kept(decide(replan_inputs(risen, replace(found.record, baseline=just_now)))).requeue_after == 5.0
    long_ago = replace(found.record.baseline, judged_at=at(419 - 300))
    waiting = kept(decide(replan_inputs(risen, replace(found.record, baseline=long_ago))))
    assert waiting.requeue_after is not None
    unsure = [*BUSY, *(look(300.0 + 10 * k, 1.9) for k in range(1, 13))]
    assert kept(decide(replan_inputs(unsure, found.record))).reason == "ReplanFailed"


def test_a_plan_made_in_the_middle_of_a_change_is_followed_by_the_next_after_seconds() -> None:
    record = changed(decide(replan_inputs(BUSY, answer=Planned(plan=plan_for(4, rate=1.8), profile=FLAT))))
    assert record.baseline.judged == {"rate": 1.8}
    grown = [*BUSY, *(look(300.0 + 10 * k, 3.6) for k in range(1, 13))]
    assert isinstance(decide(replan_inputs(grown, record, cooldown="0s")), AskPlanner), "a minute has not passed"
    again = kept(decide(replan_inputs(grown, record)))
    assert (again.reason, again.requeue_after) == ("Cooldown", 480.0), "the cooldown of the spec applies to all"
    of_all = replace(record, baseline=replace(record.baseline, judged={"rate": 3.6}, judged_at=at(400)))
    assert kept(decide(replan_inputs(grown, of_all, cooldown="0s"))).requeue_after == 40.0, "the same question again"


def test_shorter_lengths_are_another_question_while_more_is_needed() -> None:
    refused = kept(decide(replan_inputs(BUSY, answer=Refused("OverBudget", "it costs too much")))).record
    mixture = replace(refused.baseline, judged={"rate": 1.8, "first_prompt": 2000.0}, judged_at=at(300))
    steady = [*BUSY, *(look(300.0 + 10 * k, 1.8) for k in range(1, 3))]
    assert isinstance(decide(replan_inputs(steady, replace(refused, baseline=mixture))), AskPlanner)
    same = replace(mixture, judged={"rate": 1.8, "first_prompt": 1100.0})
    assert kept(decide(replan_inputs(steady, replace(refused, baseline=same)))).reason == "ReplanFailed"
    older = replace(mixture, judged_at=at(0))
    assert kept(decide(replan_inputs(steady, replace(refused, baseline=older)))).reason == "ReplanFailed"


def test_the_growth_that_a_trigger_asks_for_is_not_judged_traffic() -> None:
    asked = replace(INQUIRY, growth=2.0)
    answer = Planned(plan=plan_for(4, rate=1.8), profile=FLAT)
    record = changed(decide(replan_inputs(BUSY, replan_request=asked, answer=answer)))
    assert record.baseline.judged == {"rate": 0.9}


def test_the_same_plan_is_renewed_for_the_traffic_that_is_seen() -> None:
    now = replan_inputs(BUSY, answer=Planned(plan=plan_for(2, rate=1.8), profile=FLAT))
    found = kept(decide(now))
    assert found.reason == "NoBetterPlan"
    assert found.message == "P1x1 D1x2 stays the best although 1.8 sessions/s arrive"
    baseline = found.record.baseline
    assert (baseline.workload, baseline.changed_at, baseline.cause) == (INQUIRY.workload, None, "")
    assert found.record.plan.validity == plan_for(2, rate=1.8).validity
    assert kept(decide(replan_inputs(steadily(2000, 1.8), found.record))).reason == ""


def with_goodput(plan: Plan, value: float, error: float, *, held: bool = True) -> Plan:
    predicted = prediction(3, rate=0.1, gpus=plan.gpus)
    assert predicted.goodput is not None
    estimate = dataclasses.replace(predicted.goodput, value=value, low=value - error, high=value + error)
    return replace(plan, predicted=replace(predicted, goodput=estimate, slo_met=held))


@pytest.mark.parametrize(
    ("value", "error", "why"),
    [
        (1.2, 0.01, ""),
        (1.04, 0.001, "it carries +4.0% within the SLO and spec.planning.minImprovement is 5.0%"),
        (1.2, 0.2, "it carries +20.0% within the SLO, but that is within the simulations' error"),
        (0.8, 0.01, "it carries -20.0% within the SLO"),
    ],
)
def test_more_goodput_must_be_enough_and_sure(value: float, error: float, why: str) -> None:
    plan = with_goodput(plan_for(3, rate=0.9, instead_of=2, objective="latency"), value, error)
    found = no_gain(plan_for(2, rate=0.6), plan, min_improvement=0.05)
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_what_is_better_and_what_is_not() -> None:
    two = plan_for(2, rate=0.6)
    assert no_gain(two, plan_for(5, rate=1.8, instead_of=2), min_improvement=0.05) == "", "it holds the SLO again"
    assert no_gain(two, plan_for(1, rate=0.2, instead_of=2), min_improvement=0.05) == "", "a third cheaper"
    dear = no_gain(two, plan_for(1, rate=0.2, instead_of=2), min_improvement=0.5)
    assert dear == "it saves 33.3% and spec.planning.minImprovement is 50.0%"
    worse = replace(plan_for(1, rate=0.6, instead_of=2))
    assert no_gain(two, worse, min_improvement=0.0) == "it would miss the SLO, which the active plan holds"
    assert no_gain(two, plan_for(5, rate=0.6), min_improvement=0.05) == "", (
        "what runs may not go on, so there is no way"
    )
    hopeless = plan_for(3, rate=9.0, instead_of=2, objective="latency")
    unknown = replace(hopeless, predicted=replace(hopeless.predicted, goodput=None))
    assert "neither is known" in no_gain(two, unknown, min_improvement=0.05)
    found = kept(decide(replan_inputs(BUSY, answer=Planned(plan=plan_for(3, rate=0.6, instead_of=2), profile=FLAT))))
    assert found.reason == "NoBetterPlan"
    assert "P1x1 D1x3 was found, but it costs 33.3% more" in found.message


def test_another_policy_for_the_same_workers_is_judged_and_named_as_such() -> None:
    plan = plan_for(2, rate=1.8)
    old, new = PlannedPolicy("weft", "ia"), PlannedPolicy("weft", "imd")
    predicted = with_goodput(plan, 1.0, 0.01, held=False).predicted
    runs = Alternative(plan.groups, predicted, 1.0, policy=old)
    other = replace(runs, policy=PlannedPolicy("ampd"), predicted=with_goodput(plan, 0.1, 0.01, held=False).predicted)
    better = replace(with_goodput(plan, 1.5, 0.01, held=False), policy=new, alternatives=(other, runs))
    held = record_of(replace(plan_for(2, rate=0.6), policy=old), objective="cost")
    record = changed(decide(replan_inputs(BUSY, held, answer=Planned(plan=better, profile=FLAT))))
    assert record.plan.policy == new
    close = replace(with_goodput(plan, 1.01, 0.001, held=False), policy=new, alternatives=(other, runs))
    found = kept(decide(replan_inputs(BUSY, held, answer=Planned(plan=close, profile=FLAT))))
    assert found.reason == "NoBetterPlan"
    assert f"policy {new} was found, but it carries +1.0% within the SLO" in found.message


@pytest.mark.parametrize(
    ("engine", "gain", "why"),
    [
        ("mock", 1.03, ""),
        ("mock", 0.99, "it carries -1.0% within the SLO"),
        ("sglang", 1.03, "it carries +3.0% within the SLO and spec.planning.minImprovement is 5.0%"),
    ],
)
def test_workers_change_roles_for_a_smaller_gain_than_they_restart_for(engine: str, gain: float, why: str) -> None:
    runs = replace(plan_for(2, rate=0.6), groups=(group("decode", 1, 1), group("prefill", 1, 2)))
    offered = with_goodput(plan_for(2, rate=1.8, objective="latency"), gain, 0.001, held=False)
    stays = Alternative(runs.groups, with_goodput(offered, 1.0, 0.001, held=False).predicted, 1.0)
    answer = Planned(plan=replace(offered, alternatives=(stays,)), profile=FLAT)
    now = replan_inputs(BUSY, record_of(runs), answer=answer, objective="latency")
    runs_on = now.spec.engine.model_copy(update={"type": engine})
    decision = decide(replace(now, spec=now.spec.model_copy(update={"engine": runs_on})))
    if why:
        assert kept(decision).message.endswith(f"was found, but {why}")
    else:
        assert changed(decision).plan.groups == offered.groups


def test_a_plan_outside_of_the_specs_limits_is_not_used() -> None:
    limits: tuple[tuple[dict[str, Any], str], ...] = (
        ({"decode": {"max": 4}}, "it has 5 decode workers and spec.planning.decode allows 1 to 4"),
        ({"prefill": {"min": 2}}, "it has 1 prefill workers and spec.planning.prefill allows 2"),
    )
    for planning, words in limits:
        found = kept(decide(replan_inputs(BUSY, answer=solve_rate(1.8, now=2), **planning)))
        assert found.reason == "ReplanFailed"
        assert found.message == f"the planner's plan P1x1 D1x5 cannot be used: {words}"
    assert "takes 19 GPUs" in within_bounds(spec(service_with()), plan_for(18, rate=1.0))
    body = service_with(budgetPerHour=8.0)
    body["spec"]["capacity"]["pools"][0] |= {"pricePerGpuHour": 3.0}
    plan = plan_for(2, rate=0.6)
    assert within_bounds(spec(body), plan) == "it costs 9 an hour and spec.planning.budgetPerHour is 8"
    body["spec"]["capacity"]["pools"][0] |= {"pricePerGpuHour": 8 / 3, "gpus": 3}
    assert within_bounds(spec(body), plan) == ""
    body["spec"]["capacity"]["pools"][0] |= {"gpus": 2}
    small = "it takes 3 GPUs of pool h20 and spec.capacity.pools[h20].gpus is 2"
    assert within_bounds(spec(body), plan) == small
    shared = replace(plan, layout="colocated", groups=(group("decode", 1, 2),))
    assert within_bounds(spec(service_with(ratio={"min": 1})), shared) == "", "it has neither prefill workers nor pairs"


@pytest.mark.parametrize(
    ("planning", "words"),
    [
        ({"ratio": {"min": 0.5}}, "it has 1 prefill for 3 decode workers and spec.planning.ratio.min is 0.5"),
        ({"ratio": {"max": 0.3}}, "it has 1 prefill for 3 decode workers and spec.planning.ratio.max is 0.3"),
        ({"ratio": {"min": 1 / 3, "max": 1 / 3}}, ""),
        (
            {"degreePairs": [{"prefill": 1, "decode": 2}, {"prefill": 2, "decode": 1}]},
            "it pairs degrees 1 and 1 and spec.planning.degreePairs does not have them",
        ),
        ({"degreePairs": [{"prefill": 1, "decode": 1}]}, ""),
    ],
)
def test_ratio_and_pairs_of_degrees_bind_plans_that_the_planner_did_not_just_make(
    planning: dict[str, Any], words: str
) -> None:
    assert within_bounds(spec(service_with(**planning)), plan_for(3, rate=0.6)) == words


def test_less_load_shrinks_only_a_plan_that_long_held_the_slo() -> None:
    answer = solve_rate(0.2, now=2)
    assert changed(decide(replan_inputs(QUIET, answer=answer))).plan.gpus == 2
    bad = look(1000.0, 0.2, fast=Tally(100, 100))
    found = kept(decide(replan_inputs([*QUIET[:100], bad, *QUIET[101:]], answer=answer)))
    assert found.reason == "ScaleDownStabilized"
    assert "P1x1 D1x1 with fewer GPUs waits until the active plan has met the SLO for 1800 s" in found.message


def test_a_young_plan_is_not_made_smaller() -> None:
    """Longer prompts ask for another plan, and a cheaper one would do: but it must first have been quiet."""
    looks = steadily(1900, 0.2, first_prompt=spread(3000.0))
    assert changed(decide(replan_inputs(looks, answer=solve_rate(0.2, now=2)))).plan.gpus == 2
    young = record_of(plan_for(2, rate=0.6), changed=200.0, objective="cost")
    assert kept(decide(replan_inputs(looks, young, answer=solve_rate(0.2, now=2)))).reason == "ScaleDownStabilized"


def test_live_sessions_must_fit() -> None:
    full = [*QUIET[:-1], look(1900.0, 0.2, pressure=WorkerPressure(queue=0.0, kv_use={"decode": 0.46}))]
    found = kept(decide(replan_inputs(full, answer=solve_rate(0.2, now=2))))
    assert found.reason == "SessionsDoNotFit"
    assert "P1x1 D1x1 is too small for the live sessions" in found.message
    held = record_of(plan_for(2, rate=0.6))
    small = plan_for(1, rate=0.2)
    profiles = {"": FLAT}
    assert too_small(held, small, profiles, WorkerPressure(kv_use={"decode": 0.45})) == ""
    assert "no worker tells" in too_small(held, small, profiles, WorkerPressure())
    assert too_small(held, plan_for(3, rate=0.2), profiles, WorkerPressure()) == ""
    waiting = WorkerPressure(queue=40.0, kv_use={"decode": 0.1})
    fewer = replace(held.plan, groups=(group("decode", 1, 3),))
    assert "40 prefills wait or run on 3 workers" in too_small(held, fewer, profiles, waiting)
    assert too_small(held, fewer, profiles, WorkerPressure(queue=2.0, kv_use={"decode": 0.1})) == ""
    other = {**FLAT, "degrees": [{**PROFILE_JSON["degrees"][0], "degree": 1, "kvCapacityTokens": 10_000}]}
    assert "room for 20000" in too_small(
        held, held.plan, {"": FLAT, "h20": other}, WorkerPressure(kv_use={"decode": 0.2})
    )


def test_a_switch_of_roles_is_no_shrink() -> None:
    old = replace(plan_for(2, rate=0.6), groups=(group("decode", 1, 2), group("prefill", 1, 2)))
    new = replace(old, groups=(group("decode", 1, 1), group("prefill", 1, 3)))
    assert not shrinks(old, new)
    assert not same_workers(old, new)
    assert shrinks(old, plan_for(2, rate=0.6))
