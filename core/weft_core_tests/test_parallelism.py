"""How a worker splits a model: its text, its order, and what its memory, costs and transfers follow from."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.analytic import derive_profile
from weft_core.communication import communication_seconds
from weft_core.efficiency import efficiency_for
from weft_core.gpus import GPUS
from weft_core.memory import expert_bytes, kv_layout, weight_bytes, worker_weight_bytes
from weft_core.models import MODELS
from weft_core.parallelism import (
    Degree,
    Parallelism,
    batches_of,
    degree_from_json,
    degree_of,
    degree_to_json,
    gpus_of,
    links_between,
    parallelism_of,
    parse_degree,
)
from weft_core.policies.estimates import EngineEstimate

R1 = MODELS["deepseek-ai/DeepSeek-R1"]
LLAMA = MODELS["meta-llama/Llama-3.1-70B-Instruct"]
H200 = GPUS["nvidia-h200"]
TP8, DP8 = 8, degree_of(dp=8, ep=True)

parts = st.integers(1, 64)
degrees = st.builds(lambda tp, pp, dp, ep: degree_of(tp=tp, pp=pp, dp=dp, ep=ep), parts, parts, parts, st.booleans())


@given(degrees)
def test_a_degree_is_read_from_its_text_and_from_its_json(degree: Degree) -> None:
    assert parse_degree(str(degree)) == degree
    assert degree_from_json(degree_to_json(degree)) == degree
    assert isinstance(degree, int) == (parallelism_of(degree) == Parallelism(gpus_of(degree)))


@given(st.lists(degrees, min_size=1))
def test_degrees_are_ordered_by_their_gpus_and_no_two_are_equal_in_order(found: list[Degree]) -> None:
    ordered = sorted(set(found))
    assert [gpus_of(one) for one in ordered] == sorted(gpus_of(one) for one in ordered)
    assert all(a < b and b > a for a, b in itertools.pairwise(ordered))


@pytest.mark.parametrize(
    ("text", "gpus", "batches", "spread"),
    [("8", 8, 1, 8), ("tp4pp2", 8, 2, 4), ("dp16ep", 16, 16, 16), ("tp2dp8ep", 16, 8, 16), ("tp8ep", 8, 1, 8)],
)
def test_gpus_batches_and_what_experts_lie_over_are_counted(text: str, gpus: int, batches: int, spread: int) -> None:
    degree = parse_degree(text)
    assert (gpus_of(degree), batches_of(degree), parallelism_of(degree).expert_gpus) == (gpus, batches, spread)


@pytest.mark.parametrize("text", ["", "0", "tp0", "tp", "pp2tp4", "ep8", "-1", "8x", "dp1.5", "tp4 pp2", "٤"])
def test_a_text_that_is_no_degree_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape("tp4pp2") + "|below 1"):
        parse_degree(text)


@pytest.mark.parametrize("value", [0, -1, True, 1.5, None, "8", [8]])
def test_json_of_a_degree_has_one_form(value: object) -> None:
    with pytest.raises(ValueError, match="is not a degree"):
        degree_from_json(value)


@pytest.mark.parametrize(
    ("model", "degree", "words"),
    [
        (R1, parse_degree("dp24ep"), "256 experts do not divide by 24 GPUs"),
        (R1, parse_degree("dp3"), "experts of width 2048 do not divide by 3 GPUs"),
        (R1, parse_degree("pp62"), "61 layers do not fill 62 stages"),
        (LLAMA, parse_degree("dp2"), "no routed experts: take more workers instead of ranks"),
        (LLAMA, 7, "64 heads and 8 KV heads do not split over 7 GPUs"),
    ],
)
def test_a_split_that_cannot_be_says_why(model: object, degree: Degree, words: str) -> None:
    assert words in model.why_not(degree)  # type: ignore[attr-defined]
    assert not model.splits(degree)  # type: ignore[attr-defined]


def test_ranks_hold_their_own_attention_and_share_the_experts() -> None:
    own = weight_bytes(R1) - expert_bytes(R1)
    assert worker_weight_bytes(R1, TP8) == weight_bytes(R1)
    assert worker_weight_bytes(R1, DP8) == 8 * own + expert_bytes(R1)
    # Latents are on every GPU of a tensor-parallel worker, and on one of a worker of ranks.
    assert kv_layout(R1, TP8).per_token == 8 * kv_layout(R1, DP8).per_token


def test_ranks_trade_latency_for_kv_cache() -> None:
    profile = derive_profile(R1, H200, degrees=[TP8, DP8], node_gpus=8)
    assert profile.kv_capacity(DP8) > 4 * profile.kv_capacity(TP8)
    assert profile.t_pre(history=0, increment=4096, degree=DP8) > profile.t_pre(history=0, increment=4096, degree=TP8)


def test_stages_take_as_long_for_a_batch_and_run_several() -> None:
    two = degree_of(tp=4, pp=2)
    profile = derive_profile(LLAMA, H200, degrees=[4, 8, two], node_gpus=8)
    alone = profile.t_pre(history=0, increment=2048, degree=4)
    assert alone < profile.t_pre(history=0, increment=2048, degree=two) < 1.05 * alone
    assert profile.degrees[two].weight_bytes_per_gpu == profile.degrees[8].weight_bytes_per_gpu
    assert batches_of(two) == 2


def test_a_prompt_moves_over_the_gpus_of_one_rank() -> None:
    assert links_between(8, DP8) == 1
    assert links_between(degree_of(tp=4, pp=2), 8) == 8
    profile = derive_profile(R1, H200, degrees=[TP8, DP8], node_gpus=8)
    there = profile.transfers[TP8, TP8, "inter-node"].per_token
    # One GPU needs the latents once, 8 GPUs need them each: an eighth of the bytes, over an eighth of the links.
    assert profile.transfers[TP8, DP8, "inter-node"].per_token == pytest.approx(there)


def test_ranks_across_nodes_pay_for_the_slower_link() -> None:
    wide = degree_of(dp=16, ep=True)
    efficiency = efficiency_for(H200.name)
    within = communication_seconds(R1, H200, wide, efficiency, node_gpus=16)
    across = communication_seconds(R1, H200, wide, efficiency, node_gpus=8)
    assert across[1] > 2 * within[1]


def test_live_estimates_count_a_batch_and_its_share_of_the_queue() -> None:
    profile = derive_profile(R1, H200, degrees=[TP8, DP8], node_gpus=8)
    ranks = EngineEstimate(profile, DP8, None)
    assert ranks.step(64, 64 * 1000) == profile.t_dec(batch=8, context=8 * 1000, degree=DP8)
    assert ranks.queue(4.0) == 0.5
    assert EngineEstimate(profile, TP8, None).queue(4.0) == 4.0
