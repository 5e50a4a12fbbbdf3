"""What status says of a plan's predictions: whether they hold the SLO, and whether what is seen agrees with them."""

from dataclasses import replace
from typing import Any

from weft_core.shortfall import Shortfall
from weft_operator.replanning.drift import DetectedDrift
from weft_operator.status.conditions import build_status
from weft_operator.status.events import status_events
from weft_operator.status.predictions import cost_model_fresh, slo_feasible
from weft_operator_tests.observations import blind, look
from weft_operator_tests.samples import record
from weft_operator_tests.service_results import with_parts
from weft_operator_tests.test_reconcile_replanning import watched
from weft_operator_tests.test_status import LATER, NOW, result
from weft_operator_tests.world import summary

SLOW = DetectedDrift(
    "Residual", "more", {}, "P95 TTFT is 9s and 1s was predicted; measure it again with `weft profile`"
)

SOURCE = "costs of nvidia-h20 are those of a cost profile whose provenance names no source"


def told(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(item for item in status["conditions"] if item["type"] == kind)


def test_what_is_predicted_stands_beside_what_is_promised() -> None:
    status, reason, message = slo_feasible(record())
    assert (status, reason) == ("True", "PredictedMet")
    assert message == ("predicted for P4x2 D8x1: P95 TTFT 944 ms (SLO 2s), ITL 25.1 ms (SLO 40ms)")


def test_a_plan_that_should_miss_the_slo_says_what_would_do() -> None:
    found = record()
    short = Shortfall(binding="gpus", message="16 GPUs would hold it; raise spec.capacity.gpus")
    missed = replace(found.plan, predicted=replace(found.plan.predicted, slo_met=False), shortfall=short)
    status, reason, message = slo_feasible(replace(found, plan=missed))
    assert (status, reason) == ("False", "PredictedMissed")
    assert message.endswith(": 16 GPUs would hold it; raise spec.capacity.gpus")


def test_a_plan_that_should_miss_the_slo_is_worth_a_warning_once() -> None:
    found = result()
    planned_now = found.plan.record
    assert planned_now is not None
    predicted = replace(planned_now.plan.predicted, slo_met=False)
    missing = with_parts(found, record=replace(planned_now, plan=replace(planned_now.plan, predicted=predicted)))
    before = build_status(found, {}, now=NOW)
    after = build_status(missing, before, now=LATER)
    assert [(event.type, event.reason) for event in status_events(before, after, actions=())] == [
        ("Warning", "PredictedMissed")
    ]
    assert status_events(after, build_status(missing, after, now=LATER), actions=()) == ()


def test_workers_that_do_not_all_serve_are_held_to_no_prediction() -> None:
    seen = look(0.0)
    assert cost_model_fresh(record(), in_force=False, observation=seen, drifts=(SLOW,))[:2] == (
        "Unknown",
        "NotComparable",
    )
    for found in (result("110", observation=seen), result(observation=seen, leaving=("demo-p4-1",))):
        status = build_status(with_parts(found, drifts=(SLOW,)), {}, now=NOW)
        assert told(status, "CostModelFresh")["reason"] == "NotComparable"


def test_latencies_of_another_traffic_do_not_speak_against_the_cost_model() -> None:
    other = replace(SLOW, traffic_changes=True)
    said = cost_model_fresh(record(), in_force=True, observation=look(0.0), drifts=(other,))
    assert said == ("Unknown", "NotComparable", f"predictions are for other traffic: {SLOW.sentence}; {SOURCE}")


def test_blindness_says_nothing_of_the_cost_model() -> None:
    said = cost_model_fresh(record(), in_force=True, observation=blind(0.0), drifts=(SLOW,))
    assert said[:2] == ("Unknown", "Unknown")


def test_its_words_stay_while_the_figures_of_the_status_do() -> None:
    found = result(observation=look(0.0), drifts=(SLOW,))
    first = build_status(found, {}, now=NOW)
    moved = with_parts(found, drifts=(replace(SLOW, sentence="P95 TTFT is 9.1s and 1s was predicted"),))
    assert build_status(moved, first, now=LATER) == first
    other = build_status(with_parts(moved, observation=look(60.0, ttft=20.0)), first, now=LATER)
    assert told(other, "CostModelFresh")["message"] == f"P95 TTFT is 9.1s and 1s was predicted; {SOURCE}"


def test_the_condition_names_the_source_of_the_costs_and_follows_it() -> None:
    """Its other words stay while the figures do, so a new source must not wait for new figures."""
    found = result(observation=look(0.0))
    first = build_status(found, {}, now=NOW)
    assert told(first, "CostModelFresh")["message"].endswith(f"; {SOURCE}")
    before = found.plan.record
    assert before is not None
    timed = {**before.profile, "engine": "vllm 0.32", "provenance": {"source": "engine"}}
    tables = {**before.profile, "gpu": "nvidia-h100", "provenance": {"source": "silicon", "tables": "h100_sxm, vllm"}}
    now_timed = with_parts(found, record=replace(before, profile=timed))
    message = told(build_status(now_timed, first, now=LATER), "CostModelFresh")["message"]
    assert message.endswith("; costs of nvidia-h20 are measured on a live engine (vllm 0.32)")
    both = with_parts(found, record=replace(before, profile=timed, profiles={"a": timed, "b": tables}))
    message = told(build_status(both, first, now=LATER), "CostModelFresh")["message"]
    assert message.endswith(
        "; costs of nvidia-h20 (pool a) are measured on a live engine (vllm 0.32)"
        "; costs of nvidia-h100 (pool b) are fitted to silicon tables (h100_sxm, vllm)"
    )


def test_a_started_operator_keeps_the_status_until_its_first_observation() -> None:
    before = build_status(result(observation=look(0.0), drifts=(SLOW,)), {}, now=NOW)
    assert build_status(result(), before, now=LATER) == before


async def test_a_service_that_is_slower_than_predicted_says_so_until_it_is_not() -> None:
    world = await watched(cooldown="10m")
    setattr(world.metrics_poller, "shown", lambda _key: world.seen)  # noqa: B010 - for mypy
    world.offers(2, 0.6)
    world.serves(10, 900, 0.6, ttft=9.0)
    await world.until_quiet()
    assert summary(world)["CostModelFresh"] == ("False", "SlowerThanPredicted")
    assert "measure it again with `weft profile`" in world.cluster.condition("CostModelFresh")["message"]
    assert any((event.type, event.reason) == ("Warning", "SlowerThanPredicted") for event in world.cluster.events)
    world.serves(910, 1800, 0.6, ttft=0.9)
    await world.until_quiet()
    assert summary(world)["CostModelFresh"] == ("True", "AsPredicted")
