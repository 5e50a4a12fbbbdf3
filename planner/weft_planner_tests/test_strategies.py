"""Of many parallelism strategies those are simulated that carry most, by costs alone; few are all simulated."""

from functools import cache
from typing import Any

import pytest

from weft_core.parallelism import Degree, gpus_of, parse_degree
from weft_core.plan import PlannedGroup
from weft_planner.programs.inputs import PlanInputs, prepare_inputs
from weft_planner.programs.slo_capacity import SloCapacity
from weft_planner.programs.strategies import FEW, OF_A_ROLE, with_best_strategies
from weft_planner.request.reading import request_of
from weft_planner_tests.requests import body

MANY = ("8", "tp8ep", "16", "tp16ep", "dp8", "dp8ep", "dp16", "dp16ep", "tp2dp4", "tp2dp4ep", "tp2dp8ep", "tp4dp2ep")


def _split(text: str) -> dict[str, Any]:
    degree = parse_degree(text)
    if isinstance(degree, int):
        return {"tp": degree}
    return {"tp": degree.tp, "pp": degree.pp, "dp": degree.dp, "ep": degree.ep}


@cache
def inputs(*names: str, current: str = "") -> PlanInputs:
    pool = {"name": "h200", "gpuType": "nvidia-h200", "gpusPerNode": 8, "parallelism": [_split(name) for name in names]}
    running = [{"role": "decode", "degree": current, "replicas": 1, "pool": "h200"}] if current else []
    asked = body(
        model={"name": "deepseek-ai/DeepSeek-R1", "maxModelLen": 16384},
        capacity={"gpus": 64, "pools": [pool]},
        current=running,
    )
    return prepare_inputs(request_of(asked))


def kept(found: PlanInputs) -> list[Degree]:
    return with_best_strategies(found).degrees["h200"]


def test_few_are_all_simulated() -> None:
    some = inputs(*MANY[:FEW])
    assert kept(some) == some.degrees["h200"]


@pytest.mark.parametrize("role", ["prefilled", "decoded"])
def test_of_many_those_that_carry_most_per_gpu_are(role: str) -> None:
    every = inputs(*MANY)
    promise = SloCapacity(every)

    def carried(degree: Degree) -> float:
        group = PlannedGroup("decode", degree, 32 // gpus_of(degree), "h200")
        return float(getattr(promise, role)(group)) / group.gpus

    best = sorted(every.degrees["h200"], key=carried, reverse=True)[:OF_A_ROLE]
    assert {carried(degree) for degree in best} <= {carried(degree) for degree in kept(every)}
    assert len(kept(every)) < len(every.degrees["h200"])


def test_what_runs_is_simulated_whatever_it_carries() -> None:
    weak = next(name for name in MANY if parse_degree(name) not in kept(inputs(*MANY)))
    assert parse_degree(weak) in kept(inputs(*MANY, current=weak))
