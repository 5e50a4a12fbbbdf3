"""Every seeded refusal names what binds and becomes a plan when that is relaxed as told."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from weft_core.analytic import derive_profile
from weft_core.cost import LINKS, TransferCost
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_core.profile_json import profile_to_json
from weft_core.shortfall import Constraint
from weft_planner.evaluation.shortlist import prune
from weft_planner.plan.field_search import with_field
from weft_planner.plan.relaxing import explain_no_layout
from weft_planner.programs import scip
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.programs.search import LayoutSearch
from weft_planner.request.capacity import Split
from weft_planner.request.infeasible import Infeasible
from weft_planner.request.reading import Request
from weft_planner_tests.requests import request

POOL = {"gpuType": "nvidia-h20", "gpusPerNode": 8}


def pools(*given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**POOL, "name": f"p{i}", **pool} for i, pool in enumerate(given)]


STAGES = pools({"parallelism": [{"tp": 4, "pp": 2}]})
CASES: list[tuple[Constraint, str, dict[str, Any]]] = [
    ("gpus", "TooFewGpus", {"capacity.gpus": 3}),
    ("gpus", "TooFewGpus", {"capacity.pools": pools({"degrees": [2, 4], "gpus": 3})}),
    ("gpus", "TooFewGpus", {"capacity.gpus": 4, "capacity.pools.0.degrees": [4]}),
    ("bounds", "BoundsUnsatisfiable", {"capacity.gpus": 8, "bounds": {"prefill": {"min": 4}}}),
    ("bounds", "BoundsUnsatisfiable", {"bounds": {"decode": {"min": 9}}}),
    ("bounds", "BoundsUnsatisfiable", {"bounds": {"ratio": {"min": 9}}}),
    ("bounds", "BoundsUnsatisfiable", {"bounds": {"ratio": {"min": 3}, "prefill": {"max": 2}}}),
    ("node-shape", "NotPlaceable", {"capacity.pools": pools({"degrees": [4], "nodes": [3, 3, 3, 3, 4]})}),
    ("node-shape", "NotPlaceable", {"capacity.pools": pools({"degrees": [2], "nodes": [1, 1, 1, 1]})}),
    (
        "node-shape",
        "NotPlaceable",
        {"capacity.gpus": 9, "capacity.pools": pools({"degrees": [4], "gpusPerNode": 6})},
    ),
    ("memory", "ContextDoesNotFit", {"model.maxModelLen": 10_000_000}),
    ("memory", "ModelDoesNotFit", {"capacity.pools.0.degrees": [1]}),
    ("engine", "NoPairOfDegrees", {"engine.type": "vllm", "capacity.pools": STAGES}),
    (
        "engine",
        "NoPairOfDegrees",
        {
            "engine.type": "vllm",
            "capacity.pools": pools(
                {"parallelism": [{"tp": 4, "pp": 2}], "roles": ["prefill"]}, {"degrees": [4, 8], "roles": ["decode"]}
            ),
        },
    ),
    ("gpus", "TooFewGpus", {"engine.type": "sglang", "capacity.pools": pools({"parallelism": [{"tp": 8, "pp": 2}]})}),
    ("bounds", "BoundsUnsatisfiable", {"engine.type": "vllm", "capacity.gpus": 4, "capacity.pools": STAGES}),
    (
        "node-shape",
        "NotPlaceable",
        {"capacity.pools": pools({"parallelism": [{"tp": 4, "pp": 2}], "nodes": [4, 4, 4, 4]})},
    ),
    ("roles", "NoPoolForRole", {"capacity.pools.0.roles": ["decode"]}),
    (
        "engine",
        "NoPairOfDegrees",
        {
            "engine.type": "vllm",
            "capacity.gpus": 32,
            "capacity.pools": pools(
                {"degrees": [2], "roles": ["prefill"]}, {"degrees": [3], "roles": ["decode"], "gpusPerNode": 6}
            ),
            "model.name": "x",
        },
    ),
    ("engine", "NoPairOfDegrees", {"engine.pairs": [[1, 1]]}),
    ("engine", "NoPairOfDegrees", {"engine.blockSizes": {"prefill": 16, "decode": 32}, "engine.type": "vllm"}),
    ("budget", "OverBudget", {"budgetPerHour": 5.0, "capacity.pools.0.pricePerGpuHour": 2.0}),
]


def refusal(asked: Request) -> Infeasible | None:
    """Return why no layout keeps the limits, None when one does; no simulation is needed for that."""
    try:
        inputs = prepare_inputs(asked)
        space = prune(inputs, LayoutSearch(scip))
        return explain_no_layout(asked, inputs.profiles) if space is None else None
    except Infeasible as error:
        return error


def relaxed(asked: Request, path: str, value: object) -> Request:
    if path.endswith("parallelism") and isinstance(value, list):
        return with_field(asked, path, tuple(Split.model_validate(yaml.safe_load(text)) for text in value))
    return with_field(asked, path, tuple(value) if isinstance(value, list) else value)


def case(changes: dict[str, Any]) -> Request:
    if changes.get("model.name") == "x":  # a model of which any degree is known
        return request(**{**changes, "model.name": "Qwen/Qwen2.5-7B-Instruct", "profile": any_degree()})
    return request(**changes)


def any_degree() -> dict[str, Any]:
    given = derive_profile(MODELS["Qwen/Qwen2.5-7B-Instruct"], GPUS["nvidia-h20"], degrees=(2,))
    two = given.degrees[2]
    transfer = TransferCost(alpha=0.001, per_token=1e-7)
    pairs = [(a, b, link) for a in (2, 3) for b in (2, 3) for link in LINKS]
    return profile_to_json(replace(given, degrees={2: two, 3: two}, transfers=dict.fromkeys(pairs, transfer)))


@pytest.mark.parametrize(("binding", "reason", "changes"), CASES)
def test_each_refusal_is_lifted_by_each_of_its_remedies(
    binding: Constraint, reason: str, changes: dict[str, Any]
) -> None:
    asked = case(changes)
    error = refusal(asked)
    assert error is not None
    assert (error.reason, error.shortfall.binding) == (reason, binding)
    assert len(error.message) > 40
    assert error.shortfall.remedies, error.message
    for remedy in error.shortfall.remedies:
        assert refusal(relaxed(asked, remedy.path, remedy.value)) is None, remedy


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine.pairs": [[1, 1]], "capacity.pools.0.degrees": [2, 4]}, ", 4 with 2, 4 with 4 (only 1 with 1 may)"),
        (CASES[-4][2], "not 2 with 3 (in vllm one tensor-parallel degree divides the other"),
        (CASES[-2][2], "engine vllm pairs no blocks of 16 tokens with those of 32"),
        (
            {"engine.type": "vllm", "capacity.pools": STAGES},
            (
                "not tp4pp2 with tp4pp2 (in vllm one tensor-parallel degree divides the other, and workers that "
                "exchange KV have no pipeline stages); capacity.pools.0.parallelism [{tp: 4, pp: 2}, {tp: 4}] would do"
            ),
        ),
    ],
)
def test_degrees_that_do_not_pair_are_named(changes: dict[str, Any], words: str) -> None:
    error = refusal(case(changes))
    assert error is not None
    assert error.reason == "NoPairOfDegrees"
    assert words in error.message


@pytest.mark.parametrize(
    "changes",
    [
        {"capacity.gpus": 3},
        {"capacity.gpus": 9, "capacity.pools": pools({"degrees": [4], "gpusPerNode": 6})},
        {"bounds": {"decode": {"min": 9}}},
        {"budgetPerHour": 5.0, "capacity.pools.0.pricePerGpuHour": 2.0},
    ],
)
def test_a_remedy_is_the_nearest_that_does(changes: dict[str, Any]) -> None:
    asked = case(changes)
    error = refusal(asked)
    assert error is not None
    (remedy,) = error.shortfall.remedies
    assert isinstance(remedy.value, int | float)
    step = 1 if isinstance(remedy.value, int) else 0.5
    nearer = remedy.value + step if remedy.path == "bounds.decode.min" else remedy.value - step
    assert refusal(relaxed(asked, remedy.path, nearer)) is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"engine.type": "sglang", "capacity.pools": pools({"parallelism": [{"tp": 8, "pp": 2}]})},
            "need 32; allow 32 GPUs, set capacity.pools.0.parallelism [{tp: 8, pp: 2}, {tp: 8}], or",
        ),
        (
            {"capacity.pools": pools({"parallelism": [{"tp": 4, "pp": 2}], "nodes": [4, 4, 4, 4]})},
            "capacity.pools.0.parallelism [{tp: 4, pp: 2}, {tp: 4}] would do",
        ),
        (
            {"engine.type": "vllm", "capacity.gpus": 4, "capacity.pools": STAGES},
            "set capacity.pools.0.parallelism [{tp: 4, pp: 2}, {tp: 2}], or allow more GPUs",
        ),
    ],
)
def test_strategies_that_have_no_room_are_answered_with_the_nearest_that_has(
    changes: dict[str, Any], words: str
) -> None:
    error = refusal(case(changes))
    assert error is not None
    assert words in error.message


def test_limits_that_bind_only_together_are_told_as_such() -> None:
    asked = request(**{"capacity.gpus": 3, "budgetPerHour": 2.0, "capacity.pools.0.pricePerGpuHour": 2.0})
    error = refusal(asked)
    assert error is not None
    assert "several limits at once" in error.message
