"""What a layout promises rises with its workers and with the SLO, and lies between both ways of sharing work."""

from functools import cache

import numpy as np
import pytest

from weft_planner.evaluation.shortlist import SearchSpace, prune
from weft_planner.programs import scip
from weft_planner.programs.inputs import PlanInputs, prepare_inputs
from weft_planner.programs.search import LayoutSearch
from weft_planner.programs.slo_capacity import SloCapacity
from weft_planner_tests.requests import request


@cache
def space(ttft: float = 5.0, policy: str = "weft") -> SearchSpace:
    found = prune(prepare_inputs(request(**{"slo.ttft": ttft, "routing": {"policy": policy}})), LayoutSearch(scip))
    assert found is not None
    return found


def prefilled(inputs: PlanInputs, degree: int) -> list[float]:
    promise = SloCapacity(inputs)
    return [promise.prefilled(c) for c in space().sides["prefill"] if c.degree == degree]


@pytest.mark.parametrize("degree", [2, 4])
def test_workers_together_carry_more_than_each_alone(degree: int) -> None:
    carried = prefilled(space().inputs, degree)
    alone = carried[0]
    assert all(one > k * alone for k, one in enumerate(carried[1:], start=2))


def test_a_tighter_slo_promises_less() -> None:
    for lax, tight in zip(prefilled(space(5.0).inputs, 4), prefilled(space(1.0).inputs, 4), strict=True):
        assert 0 < tight < lax


def test_shared_work_lies_between_prefilling_apart_and_everything_at_once() -> None:
    sides = space().sides
    promise = SloCapacity(space().inputs)
    apart = promise.carried(sides["prefill"], sides["decode"], shared=False)
    shared = promise.carried(sides["prefill"], sides["decode"], shared=True)
    most = [[min(promise.decoded(d), promise.prefilled(p) + promise.prefilled(d)) for d in sides["decode"]]
            for p in sides["prefill"]]  # fmt: skip
    assert (shared >= apart - 1e-9).all()
    assert (shared <= np.maximum(most, apart) + 1e-9).all()


def test_each_kind_of_rules_has_its_best_splits_among_those_of_both() -> None:
    both = space().promising(8)  # policy weft may run modes of both kinds
    for policy in ("remote-jsq", "always-local"):
        assert set(space(policy=policy).promising(4)) <= set(both)


def test_no_pair_of_degrees_takes_all_places() -> None:
    pairs = [(groups[0].degree, groups[1].degree) for groups in space().promising(12)]
    assert max(pairs.count(pair) for pair in pairs) <= 4  # two by each measure
    assert len(set(pairs)) >= 3
