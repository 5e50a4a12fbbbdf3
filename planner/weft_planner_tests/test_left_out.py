"""Parallelism strategies that a pool names and no layout can use are reported, with what would work instead."""

import pytest

from weft_core.parallelism import degree_of
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.programs.left_out import left_out_notes
from weft_planner.request.infeasible import Infeasible
from weft_planner.request.reading import RequestError, request_of
from weft_planner_tests.requests import body

R1 = {"name": "deepseek-ai/DeepSeek-R1", "maxModelLen": 16384}


def notes(*ways: dict[str, object], nodes: int = 8) -> list[str]:
    pool = {"name": "h200", "gpuType": "nvidia-h200", "gpusPerNode": nodes, "parallelism": list(ways)}
    request = request_of(body(model=R1, capacity={"gpus": 64, "pools": [pool]}))
    return left_out_notes(prepare_inputs(request))


def test_what_works_needs_no_note() -> None:
    assert notes({"tp": 8}, {"dp": 8, "ep": True}, {"tp": 8, "pp": 2}) == []


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ({"dp": 24, "ep": True}, "dp24ep is left out: 256 experts do not divide by 24 GPUs; dp16ep would work"),
        ({"tp": 1}, "1 is left out: the weights do not fit 1 x nvidia-h200"),
        ({"tp": 4, "pp": 3}, "tp4pp3 is left out: 12 GPUs are more than the 8 of a node and no multiple of them"),
    ],
)
def test_what_does_not_is_named_with_the_nearest_that_does(way: dict[str, object], words: str) -> None:
    (note,) = notes({"tp": 8}, way)
    assert note.startswith("spec.capacity.pools[0].parallelism: ")
    assert words in note


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
