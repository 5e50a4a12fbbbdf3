"""The table of degrees and block sizes that may exchange KV."""

from typing import Any

import pytest

from weft_core.parallelism import degree_of
from weft_planner.request.engines import TABLE, barred_pairs, blocks_pair
from weft_planner.request.parts import Engine


def engine(**fields: Any) -> Engine:
    return Engine.model_validate(fields)


def test_vllm_pairs_degrees_of_which_one_divides_the_other() -> None:
    assert barred_pairs(engine(type="vllm"), [2, 4], [2, 3, 8]) == {(2, 3), (4, 3)}
    assert barred_pairs(engine(type="mock"), [2, 4], [3]) == frozenset()
    assert barred_pairs(engine(), [2], [3]) == frozenset()


def test_neuron_pairs_degrees_that_divide_a_model_by_tensors_alone() -> None:
    assert barred_pairs(engine(type="neuron"), [16, 32], [8, 32]) == frozenset()
    assert barred_pairs(engine(type="neuron"), [16], [24]) == {(16, 24)}
    for other in (degree_of(tp=8, pp=2), degree_of(tp=8, dp=2), degree_of(tp=8, ep=True)):
        assert barred_pairs(engine(type="neuron"), [8, other], [8]) == {(other, 8)}


def test_a_request_s_own_table_replaces_it() -> None:
    own = engine(type="vllm", pairs=[(4, 4), (2, 3)])
    assert barred_pairs(own, [2, 4], [3, 4]) == {(2, 4), (4, 3)}


@pytest.mark.parametrize(
    ("fields", "pair"),
    [
        ({}, True),
        ({"blockSizes": {"prefill": 16, "decode": 16}, "type": "vllm"}, True),
        ({"blockSizes": {"prefill": 16, "decode": 32}, "type": "vllm"}, False),
        ({"blockSizes": {"prefill": 16, "decode": 32}, "type": "vllm", "blockPairs": [(16, 32)]}, True),
        ({"blockSizes": {"prefill": 32, "decode": 16}, "type": "vllm", "blockPairs": [(16, 32)]}, False),
        ({"blockSizes": {"prefill": 16, "decode": 32}, "type": "mock"}, True),
        ({"blockSizes": {"prefill": 16}, "type": "vllm"}, True),
    ],
)
def test_block_sizes_are_equal_listed_or_free(fields: dict[str, Any], pair: bool) -> None:
    assert blocks_pair(engine(**fields)) == pair
    assert (barred_pairs(engine(**fields), [4], [4]) == frozenset()) == pair


def test_every_row_says_where_it_is_from() -> None:
    assert all(row.source and row.words for row in TABLE.values())
