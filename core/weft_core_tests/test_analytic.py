import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weft_core.analytic import (
    ModelDoesNotFit,
    derive_profile,
    expert_copy_bytes,
    kv_capacity_tokens,
    smallest_degree,
)
from weft_core.communication import all_reduce_seconds
from weft_core.cost import CostProfile, CostProfileError
from weft_core.dimensions import ModelDimensions
from weft_core.efficiency import DEFAULTS, Efficiency, efficiency_for
from weft_core.gpus import GPUS
from weft_core.memory import kv_layout, state_bytes, weight_bytes
from weft_core.models import MODELS
from weft_core.parallelism import parallelism_of, parse_degree
from weft_core.profile_json import profile_from_json, profile_to_json

H20 = GPUS["nvidia-h20"]
LLAMA_70B = MODELS["meta-llama/Llama-3.1-70B-Instruct"]
DEGREES = (1, 2, 4, 8)

# Worked by hand from the formulas in analytic.py on 8 x H20: T_pre of 512 new tokens and one step of 16 sequences
# that hold 2,048 tokens each, in ms; KV capacity in thousands of tokens. Of Mixtral on 2 GPUs,
# for example: 15 overhead, 1.8 all-reduces, 7.7 matrices of attention, 15.0 reading all experts, 78.0 computing those
# chosen, 0.7 copying tokens to them, 0.6 attention.
BY_HAND = [
    ("Qwen/Qwen3-32B", 2, 201, 20.3, 394),
    ("Qwen/Qwen3-32B", 4, 112, 14.7, 1038),
    ("Qwen/Qwen3-32B", 8, 67, 12.2, 2326),
    ("meta-llama/Llama-3.1-70B-Instruct", 2, 419, 33.8, 84.5),
    ("meta-llama/Llama-3.1-70B-Instruct", 4, 223, 21.8, 600),
    ("meta-llama/Llama-3.1-70B-Instruct", 8, 125, 16.3, 1630),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", 2, 118.8, 25.6, 575),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", 4, 68.8, 16.5, 1863),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", 8, 44.0, 12.2, 4439),
]


@pytest.mark.parametrize(("name", "degree", "prefill_ms", "decode_ms", "thousand_tokens"), BY_HAND)
def test_figures_worked_by_hand(
    name: str, degree: int, prefill_ms: float, decode_ms: float, thousand_tokens: float
) -> None:
    profile = derive_profile(MODELS[name], H20, degrees=DEGREES)
    assert profile.t_pre(history=0, increment=512, degree=degree) * 1e3 == pytest.approx(prefill_ms, rel=0.01)
    assert profile.t_dec(batch=16, context=16 * 2048, degree=degree) * 1e3 == pytest.approx(decode_ms, rel=0.01)
    assert profile.kv_capacity(degree) / 1e3 == pytest.approx(thousand_tokens, rel=0.01)


def test_a_degree_without_room_for_the_weights_is_left_out() -> None:
    assert sorted(derive_profile(LLAMA_70B, H20, degrees=DEGREES).degrees) == [2, 4, 8]


def test_a_model_that_fits_nowhere_says_what_is_needed_and_what_would_do() -> None:
    with pytest.raises(
        ModelDoesNotFit, match=r"needs 145\.1 GB at degree 2 .*offer 86\.4 GB.*degree 4 would do"
    ) as fault:
        derive_profile(LLAMA_70B, GPUS["nvidia-l40s"], degrees=(1, 2))
    assert fault.value.needed_gb == pytest.approx(145.1, abs=0.1)
    assert fault.value.available_gb == pytest.approx(86.4)
    assert fault.value.smallest_degree == 4


def test_the_degree_it_names_does_fit() -> None:
    for model in MODELS.values():
        for gpu in GPUS.values():
            least = smallest_degree(model, gpu, efficiency=Efficiency())
            if least is not None:
                assert least in derive_profile(model, gpu, degrees=(least,)).degrees
                if least > 1 and model.splits(least // 2):
                    with pytest.raises(ModelDoesNotFit):
                        derive_profile(model, gpu, degrees=(least // 2,))


def test_heads_that_do_not_split_are_refused_with_a_degree_that_does() -> None:
    with pytest.raises(
        ModelDoesNotFit, match=r"degree 8 \(28 heads and 4 KV heads do not split over 8 GPUs\); degree 1 would do"
    ):
        derive_profile(MODELS["Qwen/Qwen2.5-7B-Instruct"], H20, degrees=(8,))


def test_kv_is_stored_twice_when_gpus_outnumber_kv_heads() -> None:
    model = MODELS["Qwen/Qwen3-30B-A3B"]
    profile = derive_profile(model, H20, degrees=(4, 8))
    free = {n: n * 96e9 * 0.9 - n * 2e9 - weight_bytes(model) for n in (4, 8)}
    per_token = kv_layout(model).per_token
    assert profile.kv_capacity(4) == pytest.approx(free[4] / per_token, abs=1)
    assert profile.kv_capacity(8) == pytest.approx(free[8] / (2 * per_token), abs=1)


def test_no_degrees_is_an_error() -> None:
    with pytest.raises(CostProfileError, match="degrees"):
        derive_profile(LLAMA_70B, H20, degrees=())


def test_transfers_take_the_pace_of_the_smaller_worker_and_the_slower_link() -> None:
    profile = derive_profile(LLAMA_70B, H20, degrees=(2, 8))
    across = profile.t_kv(1000, source=2, destination=8)
    assert across == pytest.approx(0.005 + 1000 * 327680 / (2 * 25e9 * 0.7), rel=1e-6)
    assert across == profile.t_kv(1000, source=8, destination=2)
    assert profile.t_kv(1000, source=2, destination=8, link="intra-node") < across


@given(
    st.sampled_from(sorted(MODELS)),
    st.sampled_from(sorted(GPUS)),
    st.integers(0, 100_000),
    st.integers(1, 100_000),
    st.integers(1, 256),
)
def test_more_gpus_never_prefill_slower_when_the_work_is_large(
    model: str, gpu: str, history: int, increment: int, batch: int
) -> None:
    no_latency = replace(Efficiency(), all_reduce_latency_s=0.0, all_reduce_link=1.0)
    fast_link = replace(GPUS[gpu], scale_up=1e15)
    try:
        profile = derive_profile(MODELS[model], fast_link, degrees=DEGREES, efficiency=no_latency)
    except ModelDoesNotFit:
        assert weight_bytes(MODELS[model]) > max(DEGREES) * GPUS[gpu].memory_bytes / 2
        return
    degrees = sorted(profile.degrees)
    for small, large in pairwise(degrees):
        slower = profile.t_pre(history=history, increment=increment, degree=small)
        assert profile.t_pre(history=history, increment=increment, degree=large) <= slower * (1 + 1e-6)
        slower = profile.t_dec(batch=batch, context=batch * 1000, degree=small)
        assert profile.t_dec(batch=batch, context=batch * 1000, degree=large) <= slower * (1 + 1e-6)
        assert profile.kv_capacity(large) >= profile.kv_capacity(small)


@given(
    st.sampled_from(sorted(MODELS)),
    st.sampled_from(["nvidia-h20", "nvidia-h200", "amd-mi300x"]),
    st.integers(0, 50_000),
    st.lists(st.integers(1, 8192), min_size=2, max_size=8),
    st.sampled_from([None, 2000.0, 60_000.0]),
)
def test_chunks_never_take_less_than_the_whole_but_for_its_overhead(
    model: str, gpu: str, history: int, chunks: list[int], sequence: float | None
) -> None:
    chunks = [1000, *chunks]  # enough tokens to touch every expert, as a whole prefill is taken to do
    assume(smallest_degree(MODELS[model], GPUS[gpu], efficiency=efficiency_for(gpu)) is not None)
    profile = derive_profile(MODELS[model], GPUS[gpu], degrees=(1, 2, 4, 8, 16, 32, 64), sequence_tokens=sequence)
    degree = max(profile.degrees)
    held, total = history, 0.0
    for chunk in chunks:
        total += profile.t_step(batch=0, context=0, chunk=chunk, chunk_history=held, degree=degree)
        held += chunk
    extra = DEFAULTS.prefill_overhead_s - DEFAULTS.decode_overhead_s
    whole = profile.t_pre(history=history, increment=sum(chunks), degree=degree)
    assert total + extra >= whole * (1 - 1e-6)


@given(
    st.sampled_from(sorted(MODELS)),
    st.sampled_from([None, 2000.0, 60_000.0]),
    *(st.floats(min_value=0, max_value=most) for most in (300, 1e6, 8192, 1e5)),
    st.floats(min_value=0, max_value=1e5),
)
def test_a_step_is_monotone_in_every_length(
    model: str, sequence: float | None, batch: float, context: float, chunk: float, history: float, more: float
) -> None:
    profile = derive_profile(MODELS[model], GPUS["amd-mi300x"], degrees=(2, 4, 8, 16), sequence_tokens=sequence)
    degree = min(profile.degrees)
    lengths = {"batch": batch, "context": context, "chunk": chunk, "chunk_history": history}
    step = profile.t_step(**lengths, degree=degree)
    assert step >= profile.t_dec(batch=batch, context=context, degree=degree)
    for key in lengths:
        longer = lengths | {key: lengths[key] + more}
        assert profile.t_step(**longer, degree=degree) >= step * (1 - 1e-12)
    again = profile_from_json(json.loads(json.dumps(profile_to_json(profile))))
    assert again == profile


def test_the_mixed_step_worked_by_hand() -> None:
    # Llama-3.1-70B on 4 x H20: 16 sequences of 2,048 tokens decode, 512 tokens after 1,024 are prefilled beside them.
    profile = derive_profile(LLAMA_70B, H20, degrees=(4,))
    tokens, flops = 16 + 512, 4 * 148e12
    pairs = 512 * (1024 + 256)
    # two all-reduces per layer: 15 us, a quarter more for the doubling to 4; 1.5 x 8,192 x 2 bytes at 3/4 of 450 GB/s
    reduce = 160 * (15e-6 * 1.25 + tokens * 1.5 * 8192 * 2 / (450e9 * 0.75))
    matrices = 2 * LLAMA_70B.active_params * tokens / (flops * 0.6)
    attention = 4 * 80 * 64 * 128 * pairs / (flops * 0.4)
    kv_read = 80 * 2 * 8 * 128 * 2 * (1024 + 512) / (4 * 4000e9 * 0.75)  # of the chunk's sequence
    decodes = 80 * 2 * 8 * 128 * 2 * 16 * 2048 / (4 * 4000e9 * 0.75)  # reading takes longer than computing
    by_hand = 0.006 + reduce + matrices + attention + kv_read + decodes
    step = profile.t_step(batch=16, context=16 * 2048, chunk=512, chunk_history=1024, degree=4)
    assert step == pytest.approx(by_hand, rel=1e-6)
    assert step > profile.t_dec(batch=16, context=16 * 2048, degree=4)


def test_a_worker_over_nodes_computes_as_fast_and_reduces_more_slowly() -> None:
    inside = derive_profile(LLAMA_70B, H20, degrees=(8, 16)).degrees
    over = derive_profile(LLAMA_70B, H20, degrees=(8, 16), node_gpus=8)
    assert over.degrees[8] == inside[8], "a worker on one node costs what it did"
    assert over.degrees[16].kv_capacity_tokens == inside[16].kv_capacity_tokens
    assert over.degrees[16].prefill[0].alpha > inside[16].prefill[0].alpha
    assert over.degrees[16].decode[0].alpha > inside[16].decode[0].alpha
    # By hand: 7/8 x 2 x 8192 x 2 bytes over 450 GB/s x 0.75, then an eighth of it over 25 GB/s x 0.75, 160 times.
    moved = LLAMA_70B.hidden * 2 * 2
    by_hand = 160 * (moved * 7 / 8 / (450e9 * 0.75) + moved / 8 * 1 / 2 / (25e9 * 0.75))
    assert over.degrees[16].prefill[1].per_token == pytest.approx(by_hand, rel=1e-6)
    assert "assumed" in over.provenance["nodes"]
    assert "nodes" not in derive_profile(LLAMA_70B, H20, degrees=(8,), node_gpus=8).provenance


def test_one_gpu_on_each_node_reduces_over_the_network_alone() -> None:
    wide = derive_profile(LLAMA_70B, H20, degrees=(4,), node_gpus=1).degrees[4]
    narrow = derive_profile(LLAMA_70B, H20, degrees=(4,)).degrees[4]
    assert wide.prefill[1].per_token == pytest.approx(narrow.prefill[1].per_token * 450 / 25, rel=1e-6)


def test_a_step_reads_no_embeddings_of_layers_and_no_encoders() -> None:
    whole = MODELS["google/gemma-4-E2B-it"]
    per_pass = derive_profile(whole, H20, degrees=(1,)).degrees[1].decode[1].alpha
    read = per_pass - derive_profile(replace(whole, encoder_params=0), H20, degrees=(1,)).degrees[1].decode[0].alpha
    rate = H20.memory_rate * efficiency_for(H20.name).memory
    assert read * rate == pytest.approx(2 * (whole.params - whole.encoder_params - 262144 * 35 * 256), rel=1e-6)


def test_linear_attention_has_no_pairs_and_reads_its_states_in_every_decode_step() -> None:
    model = MODELS["Qwen/Qwen3-Next-80B-A3B-Instruct"]
    profile = derive_profile(model, GPUS["nvidia-h200"], degrees=(2,), efficiency=DEFAULTS, sequence_tokens=8000)
    costs, gpu = profile.degrees[2], GPUS["nvidia-h200"]
    attention = 2 * gpu.flops * DEFAULTS.attention
    assert costs.prefill[0].per_pair == pytest.approx(12 * 4 * 16 * 256 / attention, rel=1e-6)
    state = state_bytes(model)
    reading = 2 * state / (2 * gpu.memory_rate * DEFAULTS.memory)
    assert costs.decode[1].per_sequence - costs.prefill[1].per_token == pytest.approx(reading, rel=1e-6)
    assert profile.kv_bytes_per_token == 24576
    assert profile.kv_capacity(2) == kv_capacity_tokens(model, gpu, 2, DEFAULTS, 8000)
    assert profile.kv_capacity(2) < 0.8 * kv_capacity_tokens(model, gpu, 2, DEFAULTS)
    moved = profile.transfers[2, 2, "inter-node"]
    link = 2 * gpu.kv_across_nodes * DEFAULTS.kv_link
    assert moved.alpha == pytest.approx(DEFAULTS.kv_latency_s + state / link, rel=1e-6)
    assert moved.per_token == pytest.approx(24576 / link, rel=1e-6)
    assert (
        profile.provenance["state"] == "77.3 MB per sequence, whatever its length; counted for sequences of 8000 tokens"
    )


def test_sparse_attention_attends_a_window_but_caches_everything() -> None:
    sparse = MODELS["deepseek-ai/DeepSeek-V3.2"]
    full = replace(sparse, sparse=None)
    h200 = GPUS["nvidia-h200"]

    def costs(model: ModelDimensions, tokens: float | None) -> CostProfile:
        return derive_profile(model, h200, degrees=(16,), efficiency=DEFAULTS, sequence_tokens=tokens)

    attention = 16 * h200.flops * DEFAULTS.attention
    scores = 61 * 2 * 64 * 128 / attention
    long = costs(sparse, 100_000).degrees[16]
    # Pairs are the indexer's alone, which scores all; the rest is per new token.
    assert long.prefill[0].per_pair == pytest.approx(scores, rel=1e-6)
    assert long.prefill[0].per_token > costs(full, 100_000).degrees[16].prefill[0].per_token
    # Sequences shorter than the choice gain nothing.
    short = costs(sparse, 2000).degrees[16].prefill[0].per_pair
    assert short == pytest.approx(costs(full, 2000).degrees[16].prefill[0].per_pair + scores, rel=1e-6)
    # What is cached, and read by a prefill, is all; a decode step reads the choice and the index keys.
    read = (61 * 132 + 61 * 576 * 2 * 2048 / 100_000) * 16 / (16 * h200.memory_rate * DEFAULTS.memory)
    assert long.decode[1].per_context_token == pytest.approx(read, rel=1e-6)
    assert long.prefill[1].per_context_token > 4 * long.decode[1].per_context_token
    assert costs(sparse, 100_000).kv_bytes_per_token == 61 * (576 * 2 + 132)
    assert costs(sparse, 100_000).provenance["sparse"].startswith("61 of 61 layers attend 2048 tokens; counted for")


def test_compressed_attention_counts_entries() -> None:
    model = MODELS["deepseek-ai/DeepSeek-V4-Flash"]
    h200 = GPUS["nvidia-h200"]
    costs = derive_profile(model, h200, degrees=(8,), efficiency=DEFAULTS, sequence_tokens=100_000).degrees[8]
    attention = 8 * h200.flops * DEFAULTS.attention
    pair = 4 * 64 * 512
    # 20 layers attend every 128th entry, and 21 indexers score every 4th.
    assert costs.prefill[0].per_pair == pytest.approx((20 * pair / 128 + 21 * 2 * 64 * 128 / 4) / attention, rel=1e-6)
    windows = 43 * 128 * pair + 21 * 512 * pair
    experts = model.expert_params * model.active_experts / model.experts
    products = 2 * (model.active_params - experts) / (8 * h200.flops_8bit * DEFAULTS.compute)
    assert costs.prefill[0].per_token - costs.prefill[1].per_token == pytest.approx(products, rel=1e-6)
    within = costs.prefill[0].per_token - costs.decode[0].per_sequence  # decodes count windows by their context
    assert within == pytest.approx(windows / attention, rel=1e-3)


@given(st.sampled_from(sorted(MODELS)), st.floats(2000, 200_000), st.floats(1.1, 20))
def test_longer_sequences_cost_no_more_per_token(name: str, tokens: float, factor: float) -> None:
    model = MODELS[name]
    degrees = (1, 2, 4, 8, 16, 32)
    shorter, longer = (
        derive_profile(model, GPUS["nvidia-gb200"], degrees=degrees, sequence_tokens=length)
        for length in (tokens, tokens * factor)
    )
    for degree in shorter.degrees:
        assert longer.kv_capacity(degree) >= shorter.kv_capacity(degree)
        for before, after in zip(shorter.degrees[degree].decode, longer.degrees[degree].decode, strict=True):
            assert after.per_context_token <= before.per_context_token * (1 + 1e-6)


def test_experts_are_read_and_computed_beside_the_matrices_of_all_tokens() -> None:
    model, gpu = MODELS["Qwen/Qwen3-30B-A3B"], GPUS["nvidia-h200"]
    plain = derive_profile(model, gpu, degrees=(4,), efficiency=DEFAULTS).degrees[4]
    slow = derive_profile(model, gpu, degrees=(4,), efficiency=replace(DEFAULTS, expert_compute=0.25)).degrees[4]
    computed = 2 * model.expert_params * 8 / 128 / (4 * gpu.flops * 0.5)
    for before, after in zip(plain.prefill, slow.prefill, strict=True):
        assert after.per_token - before.per_token == pytest.approx(computed, rel=1e-5)
        assert before.experts_seconds == pytest.approx(2 * model.expert_params / (4 * gpu.memory_rate * 0.75), rel=1e-6)
    # Copies of a token: all on each GPU where experts are divided, those of its own experts where they are whole.
    assert expert_copy_bytes(model, parallelism_of(4)) == 48 * 8 * 8 * 2048 * 2
    assert expert_copy_bytes(model, parallelism_of(parse_degree("tp4ep"))) == 48 * 8 * 8 * 2048 * 2 / 4
    assert expert_copy_bytes(model, parallelism_of(parse_degree("dp4"))) == 48 * 8 * 8 * 2048 * 2 * 4
    assert expert_copy_bytes(LLAMA_70B, parallelism_of(4)) == 0


def test_every_layer_takes_its_least_time() -> None:
    efficiency = replace(
        DEFAULTS, prefill_layer_s=60e-6, decode_layer_s=40e-6, expert_layer_s=20e-6, sparse_layer_s=1e-3
    )
    for name, experts, sparse in (
        ("Qwen/Qwen3-30B-A3B", 48, 0),
        ("Qwen/Qwen3-32B", 0, 0),
        ("deepseek-ai/DeepSeek-V3.2", 58, 61),
    ):
        model = MODELS[name]
        plain, layered = (
            derive_profile(model, H20, degrees=(16,), efficiency=each).degrees[16] for each in (DEFAULTS, efficiency)
        )
        prefill = layered.prefill[0].alpha - plain.prefill[0].alpha
        decode = layered.decode[0].alpha - plain.decode[0].alpha
        assert prefill == pytest.approx(model.layers * 60e-6 + experts * 20e-6 + sparse * 1e-3, rel=1e-6)
        assert decode == pytest.approx(model.layers * 40e-6 + experts * 20e-6, rel=1e-6)
        assert layered.decode[0].per_chunk == pytest.approx(sparse * 1e-3)


def test_gpus_without_a_switch_crowd_the_host() -> None:
    crowded = replace(DEFAULTS, all_reduce_crowding=1.5)
    for degree, factor in ((2, 1.0), (4, 4.0), (8, 10.0)):
        plain, slow = (
            all_reduce_seconds(LLAMA_70B, GPUS["nvidia-l40s"], degree, each)[1] for each in (DEFAULTS, crowded)
        )
        assert slow == pytest.approx(factor * plain)
    # Over nodes of two GPUs only pairs share a host.
    pairs = [all_reduce_seconds(LLAMA_70B, GPUS["nvidia-l40s"], 4, each, node_gpus=2) for each in (DEFAULTS, crowded)]
    assert pairs[0] == pairs[1]
