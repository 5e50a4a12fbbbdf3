"""Workers larger than a node: they take whole nodes, in the programs as in the packing that proves their plans."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_planner.programs.group_options import PlanLimits
from weft_planner.request.capacity import Pool
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
