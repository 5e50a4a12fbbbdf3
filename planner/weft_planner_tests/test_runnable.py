"""Which layouts may be chosen: those a service names and the operator can deploy; others are advice with a note."""

from dataclasses import replace
from typing import Any

import pytest

from weft_core.plan import Plan, PlannedGroup
from weft_planner.evaluation.candidates import Candidate, cannot_run, other_kinds
from weft_planner.programs.inputs import PlanInputs, prepare_inputs
from weft_planner_tests.effort import solved
from weft_planner_tests.requests import request

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


def test_other_layouts_are_chosen_only_where_they_are_named_and_can_be_deployed() -> None:
    alone = (PlannedGroup("decode", 8, 1, "h20"),)
    assert cannot_run(over_pools(), "colocated", alone) == "add colocated to planning.layouts"
    assert "does not deploy symmetric layouts yet" in cannot_run(over_pools(), "symmetric", alone)
    named = over_pools(engine={"layouts": ["disaggregated", "colocated"]})
    assert cannot_run(named, "colocated", alone) == ""
    assert cannot_run(named, "disaggregated", GROUPS) == ""


def test_co_located_workers_keep_the_bounds_on_decode_workers() -> None:
    def sizes(**bounds: Any) -> set[int]:
        inputs = prepare_inputs(request(bounds={"decode": bounds}))
        found = [c for c in other_kinds(inputs, []) if c.kind == "colocated" and c.groups[0].degree == 4]
        return {c.groups[0].replicas for c in found}

    assert sizes() == {4, 2}
    assert sizes(max=3) == {3, 2}
    assert sizes(min=3) == {4, 3}
    assert sizes(min=5) == set()


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
