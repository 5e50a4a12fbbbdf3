"""Which layouts may be chosen: those that a service allows and its engine can run; others are advice with a note."""

from dataclasses import replace
from typing import Any, cast

import pytest

from weft_core.layouts import LayoutKind, layout_name
from weft_core.plan import Plan, PlannedGroup, plan_from_json, plan_to_json
from weft_planner.evaluation.candidates import Candidate, cannot_run, other_kinds
from weft_planner.programs.inputs import PlanInputs, prepare_inputs
from weft_planner.request.engines import layouts_of
from weft_planner.request.parts import Engine
from weft_planner.request.reading import RequestError, request_of
from weft_planner_tests.effort import solved
from weft_planner_tests.requests import body, request

H20: dict[str, Any] = {"name": "h20", "gpuType": "nvidia-h20", "gpus": 8, "pricePerGpuHour": 2.0}
H100: dict[str, Any] = {"name": "h100", "gpuType": "nvidia-h100", "gpus": 8, "degrees": [4, 8], "pricePerGpuHour": 6.0}


def planned(**changes: Any) -> Plan:
    return solved(request(**changes))[0]


def over_pools(**changes: Any) -> PlanInputs:
    return prepare_inputs(request(**{"capacity.pools": [H20, H100], **changes}))


GROUPS = (PlannedGroup("prefill", 4, 1, "h100"), PlannedGroup("decode", 8, 1, "h20"))


def test_roles_may_lie_in_pools_of_different_gpus() -> None:
    assert cannot_run(over_pools(), "disaggregated", GROUPS) == ""


def test_workers_of_one_role_differ_only_where_the_service_lets_them() -> None:
    mixed = (*GROUPS, PlannedGroup("decode", 4, 1, "h100"))
    assert "set planning.mixedDegrees" in cannot_run(over_pools(), "disaggregated", mixed)
    allowed = over_pools(engine={"mixedDegrees": True})
    assert cannot_run(allowed, "disaggregated", mixed) == ""


def test_other_layouts_are_chosen_only_where_they_are_allowed() -> None:
    alone = (PlannedGroup("decode", 8, 1, "h20"),)
    shared = (PlannedGroup("both", 8, 2, "h20"),)
    assert cannot_run(over_pools(), "colocated", alone) == "add colocated to planning.layouts"
    assert cannot_run(over_pools(), "symmetric", shared) == "add symmetric to planning.layouts"
    named = over_pools(engine={"layouts": ["disaggregated", "colocated", "symmetric"]})
    assert cannot_run(named, "colocated", alone) == ""
    assert cannot_run(named, "symmetric", shared) == ""
    assert cannot_run(named, "hybrid", (*shared, *GROUPS)) == "add hybrid to planning.layouts"
    assert cannot_run(named, "disaggregated", GROUPS) == ""


EVERY = ("disaggregated", "colocated", "symmetric", "hybrid")


@pytest.mark.parametrize(
    ("engine", "allowed"),
    [
        ({}, EVERY),
        ({"type": "vllm"}, EVERY),
        ({"type": "mock"}, EVERY),
        ({"type": "vllm", "fixedRoles": True}, ("disaggregated", "colocated")),
        ({"type": "tensorrt-llm"}, ("disaggregated", "colocated")),
        ({"type": "sglang"}, ("disaggregated",)),
        ({"type": "neuron"}, ("disaggregated",)),
        ({"type": "vllm", "layouts": ["hybrid"]}, ("hybrid",)),
    ],
)
def test_without_names_a_plan_may_have_every_layout_that_the_engine_can_run(
    engine: dict[str, Any], allowed: tuple[str, ...]
) -> None:
    assert layouts_of(Engine.model_validate(engine)) == allowed


@pytest.mark.parametrize(
    ("engine", "layout", "words"),
    [
        ({"type": "sglang"}, "colocated", "take only what a prefill worker computed; remove colocated"),
        ({"type": "sglang"}, "symmetric", "a worker of sglang starts with one role"),
        ({"type": "tensorrt-llm"}, "hybrid", "a worker of tensorrt-llm starts with one role"),
        ({"type": "vllm", "fixedRoles": True}, "hybrid", "different engines or pods for each: engine.prefill"),
    ],
)
def test_a_layout_that_the_engine_cannot_run_is_no_plan(engine: dict[str, Any], layout: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        request(engine={**engine, "bidirectional": False, "layouts": [layout]})
    assert str(refused.value).startswith("request: engine.layouts: ")
    unnamed = body(engine={**engine, "bidirectional": False})
    del unnamed["engine"]["layouts"]
    inputs = prepare_inputs(request_of(unnamed))
    why = cannot_run(inputs, cast(LayoutKind, layout), ())
    assert why
    assert why in str(refused.value)
    advised = [one for one in other_kinds(inputs, [LIKE]) if one.kind == layout]
    assert {one.note for one in advised} == ({why} if engine["type"] != "sglang" else set())
    assert not any(one.runnable for one in advised)


LIKE = (PlannedGroup("prefill", 2, 2, "h20"), PlannedGroup("decode", 2, 6, "h20"))


def test_some_decode_workers_of_a_hybrid_layout_have_both_roles() -> None:
    unlike = (PlannedGroup("prefill", 2, 2, "h20"), PlannedGroup("decode", 4, 3, "h20"))
    lone = (PlannedGroup("prefill", 2, 7, "h20"), PlannedGroup("decode", 2, 1, "h20"))

    def hybrids(**changes: Any) -> set[str]:
        allowed = prepare_inputs(request(engine={"layouts": list(EVERY)}, **changes))
        found = [one for one in other_kinds(allowed, [unlike, lone, LIKE]) if one.kind == "hybrid"]
        assert all(one.runnable for one in found)
        return {str(one) for one in found}

    assert hybrids() == {"P2x2 D2x3 B2x3"}
    assert hybrids(bounds={"prefill": {"max": 4}}) == set(), "workers with both roles count among those that prefill"
    assert hybrids(**{"capacity.pools.0.roles": ["decode"]}) == set()


def test_symmetric_workers_keep_the_bounds_of_both_roles_and_never_are_alone() -> None:
    def sizes(**changes: Any) -> set[int]:
        inputs = prepare_inputs(request(**changes))
        found = [c for c in other_kinds(inputs, []) if c.kind == "symmetric" and c.groups[0].degree == 4]
        assert {group.role for c in found for group in c.groups} <= {"both"}
        return {c.groups[0].replicas for c in found}

    assert sizes() == {4, 2}
    assert sizes(bounds={"prefill": {"max": 3}}) == {3, 2}
    assert sizes(bounds={"decode": {"min": 3}}) == {4, 3}
    assert sizes(bounds={"ratio": {"min": 2.0}}) == set(), "there are as many that prefill as that decode"
    assert sizes(**{"capacity.gpus": 4}) == set()
    assert sizes(**{"engine.pairs": [(4, 8)]}) == set()


def test_rules_of_workers_with_both_roles_are_those_that_the_router_runs() -> None:
    def modes(**changes: Any) -> set[tuple[str, str]]:
        found = other_kinds(prepare_inputs(request(**changes)), [LIKE])
        return {(one.policy.route, one.policy.mode) for one in found if one.kind != "colocated"}

    assert modes(engine={"type": "vllm"}) == {("weft", "whole-or-chunked")}
    assert modes(engine={"type": "tensorrt-llm"}) == {("weft", "ia")}
    assert modes(routing={"mode": "remote-jsq"}) == {("weft", "remote-jsq")}
    assert modes(routing={"policy": "ampd"}) == {("ampd", "")}
    assert modes(routing={"policy": "colocated"}) == set()


@pytest.mark.parametrize(
    ("layout", "roles"),
    [("symmetric", ["both"]), ("hybrid", ["prefill", "decode", "both"])],
)
def test_a_plan_has_workers_with_both_roles_and_says_so(layout: str, roles: list[str]) -> None:
    changes = {"capacity.pools.0.degrees": [2], "engine": {"type": "mock", "layouts": [layout]}}
    plan = planned(**changes)
    assert plan.layout == layout
    assert [group.role for group in plan.groups] == roles
    assert {use.role for use in plan.predicted.use} == set(roles)
    assert {limit.role for limit in plan.predicted.limits if limit.kind == "kv"} == set(roles) - {"prefill"}
    assert plan.policy is not None
    assert plan.policy.route == "weft"
    assert layout_name(plan.groups, plan.layout) in plan.reason
    assert plan_from_json(plan_to_json(plan)).groups == plan.groups
    running = [{"role": g.role, "degree": g.degree, "replicas": g.replicas, "pool": g.pool} for g in plan.groups]
    again = planned(**changes, current=running)
    assert again.groups == plan.groups


def test_what_runs_is_compared_with_what_could_whatever_its_layout() -> None:
    inputs = prepare_inputs(request(current=[{"role": "both", "degree": 4, "replicas": 3, "pool": "h20"}]))
    assert "B4x3" in {str(one) for one in other_kinds(inputs, [])}
    small = prepare_inputs(
        request(current=[{"role": "both", "degree": 4, "replicas": 3, "pool": "h20"}], **{"capacity.gpus": 8})
    )
    assert "B4x3" not in {str(one) for one in other_kinds(small, [])}


def test_co_located_workers_keep_the_bounds_on_decode_workers() -> None:
    def sizes(**bounds: Any) -> set[int]:
        inputs = prepare_inputs(request(bounds={"decode": bounds}))
        found = [c for c in other_kinds(inputs, []) if c.kind == "colocated" and c.groups[0].degree == 4]
        return {c.groups[0].replicas for c in found}

    assert sizes() == {4, 2}
    assert sizes(max=3) == {3, 2}
    assert sizes(min=3) == {4, 3}
    assert sizes(min=5) == set()


def test_a_budget_and_the_objective_say_how_many_workers_do_both_phases() -> None:
    priced = {"capacity.pools.0.pricePerGpuHour": 4.0}

    def sizes(layout: str, **changes: Any) -> set[int]:
        found = other_kinds(prepare_inputs(request(**{**priced, **changes})), [])
        return {c.groups[0].replicas for c in found if c.kind == layout and c.groups[0].degree == 2}

    assert sizes("colocated") == sizes("symmetric") == {8, 4}
    assert sizes("colocated", budgetPerHour=30.0) == sizes("symmetric", budgetPerHour=30.0) == {3, 2}
    assert sizes("colocated", budgetPerHour=24.0) == {3, 2}, "the budget may be spent"
    assert sizes("colocated", budgetPerHour=9.0) == {1}
    assert sizes("symmetric", budgetPerHour=9.0) == set()
    assert sizes("colocated", budgetPerHour=7.0) == set()
    assert sizes("colocated", objective="cost") == {8, 4, 2}
    assert sizes("symmetric", objective="cost", budgetPerHour=30.0) == {3, 2}
    assert sizes("colocated", budgetPerHour=30.0, **{"capacity.pools.0.pricePerGpuHour": 0.0}) == {8, 4}


def test_a_co_located_plan_keeps_its_budget() -> None:
    plan = planned(
        engine={"type": "mock", "layouts": ["colocated"]},
        budgetPerHour=30.0,
        **{"capacity.pools.0.pricePerGpuHour": 4.0},
    )
    assert plan.layout == "colocated"
    assert plan.predicted.cost_per_hour is not None
    assert plan.predicted.cost_per_hour <= 30


def test_a_co_located_plan_has_decode_workers_alone_and_says_so() -> None:
    plan = planned(engine={"type": "mock", "layouts": ["colocated"]}, **{"capacity.gpus": 8})
    assert plan.layout == "colocated"
    assert {group.role for group in plan.groups} == {"decode"}
    assert plan.policy is not None
    assert (plan.policy.route, plan.policy.order) == ("colocated", "moore-hodgson")
    kinds = {(a.layout, a.runnable) for a in plan.alternatives}
    assert ("disaggregated", True) not in kinds


def test_the_better_of_both_layouts_is_chosen_where_both_are_named() -> None:
    # Nearly all of the work is prefill, which one of two workers would do alone in a disaggregated layout.
    changes: dict[str, Any] = {
        "capacity.gpus": 8,
        "capacity.pools.0.degrees": [4],
        "slo.itl": 0.5,
        "workload.decode": 8,
    }
    changes["routing"] = {"policy": "ampd"}
    named = planned(engine={"type": "mock", "layouts": ["disaggregated", "colocated"]}, **changes)
    assert named.layout == "colocated"


def test_a_cheap_plan_may_use_both_pools_within_a_budget() -> None:
    changes = {
        "capacity.pools": [H20, H100],
        "engine": {"type": "mock", "mixedDegrees": True},
        "objective": "cost",
        "budgetPerHour": 60.0,
    }
    plan = planned(**changes)
    assert plan.predicted.cost_per_hour is not None
    assert plan.predicted.cost_per_hour <= 60.0
    dear = sum(group.gpus for group in plan.groups if group.pool == "h100")
    assert plan.predicted.cost_per_hour == pytest.approx(2.0 * (plan.gpus - dear) + 6.0 * dear)
    assert all("profile" not in a.note for a in plan.alternatives)


def test_candidates_differ_by_pool() -> None:
    here = Candidate("colocated", (PlannedGroup("decode", 4, 1, "h20"),), other_kinds(over_pools(), [])[0].policy)
    there = replace(here, groups=(PlannedGroup("decode", 4, 1, "h100"),))
    assert here.key != there.key
