"""Parallelism strategies that a pool names and no layout can use are reported, with what would work instead."""

from typing import Any

import pytest

from weft_core.analytic import derive_profile
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_core.parallelism import degree_of
from weft_core.profile_json import profile_to_json
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.programs.left_out import left_out_notes
from weft_planner.request.infeasible import Infeasible
from weft_planner.request.reading import RequestError, request_of
from weft_planner_tests.requests import body

R1: dict[str, Any] = {"name": "deepseek-ai/DeepSeek-R1", "maxModelLen": 16384}


def notes(*ways: dict[str, Any], **changes: Any) -> list[str]:
    pool = {"name": "h200", "gpuType": "nvidia-h200", "gpusPerNode": 8, "parallelism": list(ways)}
    asked = body(model=R1, capacity={"gpus": 64, "pools": [pool]})
    request = request_of({**asked, **changes})
    return left_out_notes(prepare_inputs(request))


def test_what_works_needs_no_note() -> None:
    assert notes({"tp": 8}, {"dp": 8, "ep": True}, {"tp": 8, "pp": 2}) == []


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ({"dp": 24, "ep": True}, "dp24ep is left out: 256 experts do not divide by 24 GPUs; dp16ep would work"),
        ({"tp": 1}, "1 is left out: the weights do not fit 1 x nvidia-h200"),
        (
            {"tp": 4, "pp": 3},
            "tp4pp3 is left out: 12 GPUs are more than the 8 of a node and no multiple of them; tp4pp2 would work",
        ),
        (
            {"tp": 8, "pp": 16},
            (
                "tp8pp16 is left out: a worker takes 128 GPUs, and the pool has 64, of which at most 8 are free on one "
                "node; 8 would work"
            ),
        ),
    ],
)
def test_what_does_not_is_named_with_the_nearest_that_does(way: dict[str, object], words: str) -> None:
    (note,) = notes({"tp": 8}, way)
    assert note.startswith("spec.capacity.pools[0].parallelism: ")
    assert words in note


VLLM = "in vllm one tensor-parallel degree divides the other, and workers that exchange KV have no pipeline stages"


@pytest.mark.parametrize(
    ("engine", "ways", "words"),
    [
        (
            {"type": "vllm"},
            ({"tp": 8}, {"tp": 8, "pp": 2}),
            (
                f"tp8pp2 is left out of all but co-located layouts: it exchanges KV with none of 8, tp8pp2 ({VLLM}); 8 "
                "would work"
            ),
        ),
        (
            {"type": "vllm", "layouts": ["disaggregated"]},
            ({"tp": 8}, {"tp": 8, "pp": 2}),
            f"tp8pp2 is left out: it exchanges KV with none of 8, tp8pp2 ({VLLM}); 8 would work",
        ),
        (
            {"type": "tensorrt-llm"},
            ({"tp": 8}, {"tp": 2, "dp": 4, "ep": True}),
            (
                "tp2dp4ep is left out of all but co-located layouts: it exchanges KV with none of tp2dp4ep, 8 (in "
                "tensorrt-llm any degrees, data-parallel ranks of one GPU each); dp8ep would work"
            ),
        ),
        (
            {"type": "vllm", "pairs": [[8, 8]]},
            ({"tp": 8}, {"dp": 8, "ep": True}),
            (
                "dp8ep is left out of all but co-located layouts: it exchanges KV with none of dp8ep, 8 (only 8 with 8 "
                "may); 8 would work"
            ),
        ),
    ],
)
def test_what_pairs_with_nothing_is_named_with_the_rule_and_the_nearest_that_does(
    engine: dict[str, Any], ways: tuple[dict[str, Any], ...], words: str
) -> None:
    (note,) = notes(*ways, engine=engine)
    assert note == f"spec.capacity.pools[0].parallelism: {words}"


def test_stages_that_pair_by_one_role_need_no_note() -> None:
    """SGLang's prefill workers may have stages where decode workers have none."""
    assert notes({"tp": 8}, {"tp": 8, "pp": 2}, engine={"type": "sglang"}) == []


def test_of_a_given_profile_only_rows_are_proposed() -> None:
    given = derive_profile(MODELS[R1["name"]], GPUS["nvidia-h200"], degrees=(8, degree_of(dp=8, ep=True)))
    (note,) = notes({"tp": 8}, {"dp": 16, "ep": True}, profile=profile_to_json(given))
    assert note.endswith("dp16ep is left out: the cost profile has no row of it; dp8ep would work")


def test_a_pool_without_any_strategy_on_its_nodes_is_refused_with_one_that_is() -> None:
    pool = {"name": "a", "gpuType": "nvidia-h200", "gpusPerNode": 8, "parallelism": [{"tp": 4, "pp": 3}]}
    with pytest.raises(RequestError, match=r"parallelism: none of \[tp4pp3\] fits a node of 8 GPUs .*such as tp4pp2"):
        request_of(body(capacity={"gpus": 64, "pools": [pool]}))


def test_ways_to_split_take_the_place_of_degrees() -> None:
    pool = {"name": "a", "gpuType": "nvidia-h200", "degrees": [8], "parallelism": [{"dp": 8, "ep": True}]}
    request = request_of(body(model=R1, capacity={"gpus": 16, "pools": [pool]}))
    assert request.capacity.pools[0].all_degrees == (degree_of(dp=8, ep=True),)


def test_ranks_of_a_dense_model_are_refused_with_the_reason() -> None:
    pool = {"name": "a", "gpuType": "nvidia-h200", "parallelism": [{"tp": 2, "dp": 4}]}
    with pytest.raises(Infeasible, match="no routed experts: take more workers instead of ranks"):
        prepare_inputs(request_of(body(capacity={"gpus": 16, "pools": [pool]})))


@pytest.mark.parametrize("way", [{"tp": 0}, {"pp": 65}, {"sp": 2}, {"ep": 8}])
def test_a_way_that_is_none_is_refused_by_its_path(way: dict[str, object]) -> None:
    pool = {"name": "a", "gpuType": "nvidia-h200", "parallelism": [way]}
    with pytest.raises(RequestError, match=r"capacity\.pools\.0\.parallelism\.0"):
        request_of(body(capacity={"gpus": 16, "pools": [pool]}))


def test_a_context_must_fit_one_rank() -> None:
    """All ranks of a worker together hold more than the longest context, each of them less."""
    pool = {"name": "a", "gpuType": "nvidia-h200", "parallelism": [{"tp": 8}, {"dp": 8, "ep": True}]}
    model = {"name": "zai-org/GLM-4.5", "maxModelLen": 131072}
    (note,) = left_out_notes(prepare_inputs(request_of(body(model=model, capacity={"gpus": 16, "pools": [pool]}))))
    assert "dp8ep is left out: it holds" in note
    assert "fewer than spec.model.maxModelLen (131072)" in note
