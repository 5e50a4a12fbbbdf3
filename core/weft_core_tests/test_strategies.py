"""Strategies that are looked at where none are named: few, of a form that names of workers have room for."""

from hypothesis import given
from hypothesis import strategies as st

from weft_core.analytic import LARGEST_DEGREE
from weft_core.models import MODELS
from weft_core.parallelism import Degree, degree_of, gpus_of, parallelism_of
from weft_core.spans import MAX_NODES, fits_nodes, nodes_spanned
from weft_core.strategies import LONGEST_TEXT, candidate_strategies, most_similar, near_strategies, powers_of_two

R1, LLAMA, MIXTRAL = (
    MODELS[name]
    for name in (
        "deepseek-ai/DeepSeek-R1",
        "meta-llama/Llama-3.1-70B-Instruct",
        "mistralai/Mixtral-8x7B-Instruct-v0.1",
    )
)


def _texts(found: tuple[Degree, ...]) -> list[str]:
    return [str(degree) for degree in found]


def test_powers_of_two() -> None:
    assert [powers_of_two(n) for n in (1, 2, 6, 8)] == [(1,), (1, 2), (1, 2, 4), (1, 2, 4, 8)]


def test_a_dense_model_is_split_by_tensors_within_a_node() -> None:
    found = candidate_strategies(LLAMA, node_gpus=8, holds=lambda degree: gpus_of(degree) >= 2)
    assert _texts(found) == ["2", "4", "8"]


def test_a_mixture_has_whole_experts_on_a_node_and_on_the_fewest_gpus_that_hold_it() -> None:
    found = candidate_strategies(MIXTRAL, node_gpus=8, holds=lambda degree: gpus_of(degree) >= 4)
    assert _texts(found) == ["4", "8", "tp4ep", "dp4ep", "tp2dp2ep", "tp8ep", "dp8ep", "tp2dp4ep"]


def test_a_mixture_that_needs_a_node_has_ranks_over_two() -> None:
    found = candidate_strategies(R1, node_gpus=8, holds=lambda degree: gpus_of(degree) >= 8)
    assert _texts(found) == ["8", "tp8ep", "dp8ep", "tp2dp4ep", "dp16ep", "tp2dp8ep"]


def test_ranks_and_tensors_go_over_the_nodes_of_a_rack() -> None:
    found = candidate_strategies(R1, node_gpus=4, rack_gpus=72, holds=lambda degree: gpus_of(degree) >= 4)
    assert [n for n in found if isinstance(n, int)] == [4, 8]
    assert {str(n) for n in found if gpus_of(n) > 8} == {"dp16ep", "tp2dp8ep", "dp32ep", "tp2dp16ep"}
    dense = candidate_strategies(LLAMA, node_gpus=4, rack_gpus=72, holds=lambda degree: gpus_of(degree) >= 2)
    assert dense == (2, 4, 8)
    assert candidate_strategies(LLAMA, node_gpus=4, holds=lambda degree: gpus_of(degree) >= 2) == (2, 4)


def test_stages_and_several_nodes_come_only_where_a_node_does_not_hold_the_model() -> None:
    dense = candidate_strategies(LLAMA, node_gpus=8, holds=lambda degree: gpus_of(degree) >= 12)
    assert _texts(dense) == ["16", "tp8pp2"]
    mixture = candidate_strategies(R1, node_gpus=8, holds=lambda degree: gpus_of(degree) >= 32)
    assert _texts(mixture) == ["32", "tp8pp4", "tp32ep", "tp8dp4ep", "dp32ep"]


def test_what_nothing_holds_has_none() -> None:
    assert candidate_strategies(R1, node_gpus=8, holds=lambda _: False) == ()


def test_all_of_them_fit_nodes_and_names() -> None:
    for node_gpus in (1, 2, 4, 6, 8, 16, 32, 64):
        for least in (1, 3, 8, 16, 33, 64):
            found = candidate_strategies(R1, node_gpus=node_gpus, holds=lambda n, least=least: gpus_of(n) >= least)  # type: ignore[misc]
            for degree in found:
                assert fits_nodes(degree, node_gpus)
                assert gpus_of(degree) <= LARGEST_DEGREE
                assert len(str(degree)) <= LONGEST_TEXT
                assert node_gpus % parallelism_of(degree).tp == 0 or parallelism_of(degree).dp == 1


@given(
    st.builds(degree_of, tp=st.integers(1, 16), pp=st.integers(1, 8), dp=st.integers(1, 64), ep=st.booleans()),
    st.integers(1, 16),
)
def test_near_strategies_lie_on_the_nodes(wanted: Degree, node_gpus: int) -> None:
    found = near_strategies(wanted, node_gpus=node_gpus)
    assert wanted not in found
    assert found == most_similar(wanted, found)
    for degree in found:
        parts = parallelism_of(degree)
        assert nodes_spanned(degree, node_gpus) <= MAX_NODES
        assert parts.tp * parts.pp <= node_gpus
        assert parts.gpus <= 2 * gpus_of(wanted)


def test_the_most_similar_strategy_comes_first() -> None:
    assert near_strategies(degree_of(tp=4, pp=3), node_gpus=8)[0] == degree_of(tp=4, pp=2)
    assert near_strategies(degree_of(dp=24, ep=True), node_gpus=8)[0] == degree_of(dp=16, ep=True)
    assert near_strategies(degree_of(tp=8, dp=65), node_gpus=8)[0] == degree_of(tp=8, dp=64)
