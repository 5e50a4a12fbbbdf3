"""Workers larger than a node: they take whole nodes, in the programs as in the packing that proves their plans."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_planner.programs.group_options import PlanLimits
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.programs.left_out import left_out_notes
from weft_planner.programs.limits import limits_of
from weft_planner.request.capacity import Pool
from weft_planner.request.costs import profiles_of
from weft_planner.request.reading import Request
from weft_planner_tests.effort import answered, solved
from weft_planner_tests.requests import request

WIDE: dict[str, Any] = {"capacity.pools.0.degrees": [16], "capacity.gpus": 32, "workload.arrivalRate": 0.2}


def limits(nodes: list[int], node_gpus: int) -> PlanLimits:
    return PlanLimits(gpus=sum(nodes), nodes={"a": nodes}, workers={}, node_gpus={"a": node_gpus})


def test_a_large_worker_takes_whole_nodes_wherever_they_are() -> None:
    two = limits([8, 8, 6, 4], 8)
    assert two.packs("a", [16])
    assert two.packs("a", [16, 4, 4])
    assert not two.packs("a", [16, 8])
    assert two.room_for("a", 16) == 1
    assert two.room_for("a", 4) == 6
    assert limits([8] * 5, 8).room_for("a", 16) == 2
    assert not limits([7, 9, 8], 8).packs("a", [32])


def racked(nodes: list[int], racks: list[int], node_gpus: int = 4) -> PlanLimits:
    return replace(limits(nodes, node_gpus), racks={"a": racks})


def test_a_worker_on_several_nodes_lies_in_one_rack() -> None:
    apart = racked([4] * 6, [3, 3])
    assert apart.room_for("a", 8) == 2, "six nodes, of which each rack has one left over"
    assert apart.room_for("a", 4) == 6
    assert apart.room_for("a", 16) == 0
    assert apart.packs("a", [8, 8, 4, 4])
    assert not apart.packs("a", [8, 8, 8])
    assert not apart.packs("a", [16, 4])
    assert limits([4] * 6, 4).packs("a", [16, 4])
    assert racked([4, 4, 2, 2], [2, 0]).packs("a", [8, 2, 2])


def in_racks(**changes: Any) -> Request:
    pool = {"name": "gb", "gpuType": "nvidia-gb200", "gpusPerNode": 4, "gpusPerRack": 24, "degrees": [16]}
    return request(**{"capacity.gpus": 48, "capacity.pools": [{**pool, **changes}], "workload.arrivalRate": 0.2})


def test_a_plan_fills_racks_one_by_one() -> None:
    """Two racks of six nodes hold one worker of 16 GPUs each, and one of them two nodes more."""
    asked = in_racks()
    assert limits_of(asked, {"gb": [16]}).racks == {"gb": [6, 6]}
    plan, profiles = solved(asked)
    assert [(group.degree, group.replicas) for group in plan.groups] == [(16, 1), (16, 1)]
    assert "nodes" not in profiles["gb"].provenance, "NVLink joins the nodes of a rack"
    reason = answered(in_racks(nodes=[4] * 12, racks=[3, 3, 3, 3]))
    assert reason["reason"] == "NotPlaceable"
    assert "take whole ones of one rack" in str(reason["message"])
    assert "in racks with 3 + 3 + 3 + 3 free nodes" in str(reason["message"])


def test_racks_that_were_seen_count() -> None:
    asked = in_racks(nodes=[4] * 12, racks=[3, 5, 0, 4])
    assert limits_of(asked, {"gb": [16]}).racks == {"gb": [5, 4, 3]}
    assert limits_of(asked, {"gb": [16]}).room_for("gb", 16) == 2


def test_workers_larger_than_a_rack_are_not_used_and_a_rack_has_whole_nodes() -> None:
    pool = {"name": "a", "gpuType": "nvidia-gb200", "gpusPerNode": 4, "gpusPerRack": 24, "degrees": [4, 16, 32]}
    assert Pool.model_validate(pool).usable_degrees == (4, 16)
    with pytest.raises(ValueError, match="within a rack of 24; add one"):
        Pool.model_validate({**pool, "degrees": [32]})
    with pytest.raises(ValueError, match=r"gpusPerRack: 22 is no multiple of gpusPerNode \(4\)"):
        Pool.model_validate({**pool, "gpusPerRack": 22})
    asked = in_racks(parallelism=[{"tp": 4}, {"tp": 4, "pp": 8}])
    assert "32 GPUs are more than the 24 of a rack" in left_out_notes(prepare_inputs(asked))[0]


def test_costs_of_a_rack_s_workers_are_those_of_its_fast_link() -> None:
    times = []
    for asked in (in_racks(), in_racks(gpusPerRack=None)):
        profile = profiles_of(asked)["gb"]
        times.append(profile.t_dec(batch=8, context=8000, degree=16))
    assert times[0] < times[1]


@given(st.lists(st.integers(1, 8), max_size=8), st.lists(st.sampled_from([1, 2, 4, 8, 16, 32]), max_size=5))
def test_what_packs_leaves_no_node_over_full(nodes: list[int], degrees: list[int]) -> None:
    here = limits(nodes, 8)
    full = sum(degree // 8 for degree in degrees if degree >= 8)
    enough = sum(size == 8 for size in nodes) >= full and sum(degrees) <= sum(nodes)
    assert not here.packs("a", degrees) or enough
    if all(degree >= 8 for degree in degrees):
        assert here.packs("a", degrees) == enough


def test_a_plan_may_have_workers_that_span_nodes() -> None:
    plan, profiles = solved(request(**WIDE))
    assert {group.degree for group in plan.groups} == {16}
    assert "nodes" in profiles["h20"].provenance
    reason = answered(request(**WIDE, **{"capacity.pools.0.nodes": [8, 8, 8, 4, 4]}))
    assert reason["reason"] == "NotPlaceable"
    assert "take whole ones" in str(reason["message"])
    assert "1 more free node of 8 GPUs" in str(reason["message"])


def test_the_cheapest_plan_stays_within_nodes_where_that_does() -> None:
    plan, _ = solved(request(**{**WIDE, "capacity.pools.0.degrees": [4, 16], "objective": "cost"}))
    assert all(group.degree == 4 for group in plan.groups)


def test_degrees_that_fill_a_node_in_part_are_not_used() -> None:
    pool = Pool.model_validate({"name": "a", "gpuType": "nvidia-h20", "gpusPerNode": 6, "degrees": [4, 8, 12]})
    assert pool.usable_degrees == (4, 12)
    assert pool.spans
    with pytest.raises(ValueError, match="multiple of them"):
        Pool.model_validate({"name": "a", "gpuType": "nvidia-h20", "gpusPerNode": 6, "degrees": [8]})
