from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.analytic import derive_profile
from weft_core.dimensions import ModelDimensions
from weft_core.gpus import GPUS
from weft_core.memory import (
    KvLayout,
    expert_bytes,
    expert_share,
    kv_capacity_tokens,
    kv_layout,
    weight_bytes,
)
from weft_core.models import MODELS

LLAMA = MODELS["meta-llama/Llama-3.1-70B-Instruct"]
GEMMA = MODELS["google/gemma-3-27b-it"]
DEEPSEEK = MODELS["deepseek-ai/DeepSeek-V3"]
GEMMA_4 = MODELS["google/gemma-4-26B-A4B-it"]
QWEN_NEXT = MODELS["Qwen/Qwen3-Next-80B-A3B-Instruct"]
GPT_OSS = MODELS["openai/gpt-oss-120b"]
OPT_30B = ModelDimensions("facebook/opt-30b", 48, 7168, 56, 56, 128, 28672, 50272, ffn_matrices=2)
STARCODER = ModelDimensions("bigcode/starcoder", 40, 6144, 48, 1, 128, 24576, 49152, ffn_matrices=2)


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        (LLAMA, KvLayout(2 * 80 * 8 * 128 * 2)),  # grouped queries
        (replace(LLAMA, kv_dtype_bytes=1), KvLayout(80 * 8 * 128 * 2)),  # 8-bit KV
        (OPT_30B, KvLayout(2 * 48 * 56 * 128 * 2)),  # every head its own keys
        (STARCODER, KvLayout(2 * 40 * 1 * 128 * 2)),  # one key for all heads
        (DEEPSEEK, KvLayout(61 * (512 + 64) * 2)),  # a latent: 70.272 KB, as DeepSeek states
        (GEMMA, KvLayout(10 * 2 * 16 * 128 * 2, 52 * 2 * 16 * 128 * 2, 1024)),  # one global layer in six
        (GPT_OSS, KvLayout(18 * 2 * 8 * 64 * 2, 18 * 2 * 8 * 64 * 2, 128)),  # every other one
    ],
    ids=["gqa", "gqa-fp8", "mha", "mqa", "mla", "gemma", "gpt-oss"],
)
def test_what_one_sequence_caches(model: ModelDimensions, layout: KvLayout) -> None:
    assert kv_layout(model) == layout


def test_a_window_caps_what_its_layers_hold() -> None:
    layout = KvLayout(per_token=10, per_window_token=50, window=100)
    assert layout.window_cap == 5000
    assert layout.sequence_bytes(80) == 80 * 60
    assert layout.sequence_bytes(1000) == 1000 * 10 + 5000
    assert layout.mean_per_token(1000) == 15
    assert layout.mean_per_token(None) == layout.mean_per_token(100) == 60


@given(
    st.sampled_from(sorted(MODELS)),
    st.floats(min_value=1, max_value=1e6),
    st.floats(min_value=0, max_value=1e6),
)
def test_a_longer_sequence_caches_more_but_never_more_per_token(name: str, tokens: float, more: float) -> None:
    layout = kv_layout(MODELS[name])
    assert layout.sequence_bytes(tokens + more) >= layout.sequence_bytes(tokens)
    assert layout.mean_per_token(tokens + more) <= layout.mean_per_token(tokens) * (1 + 1e-12)
    assert layout.token_bytes(tokens) <= layout.token_bytes(None)
    assert layout.mean_per_token(tokens) * tokens == pytest.approx(layout.sequence_bytes(tokens))


def test_tensor_parallelism_repeats_heads_that_it_outnumbers_and_always_a_latent() -> None:
    for model, copies in ((LLAMA, {1: 1, 8: 1, 16: 2}), (STARCODER, {2: 2, 4: 4}), (DEEPSEEK, {1: 1, 8: 8, 16: 16})):
        for degree, times in copies.items():
            assert kv_layout(model, degree).per_token == times * kv_layout(model).per_token
    # Gemma 4 has 2 KV heads in layers that cache everything and 8 in those with a window.
    once, copied = kv_layout(GEMMA_4), kv_layout(GEMMA_4, 4)
    assert (copied.per_token, copied.per_window_token) == (2 * once.per_token, once.per_window_token)
    assert DEEPSEEK.splits(16)
    assert not DEEPSEEK.splits(3)


def test_each_part_weighs_what_its_precision_says() -> None:
    four_bit = replace(LLAMA, attention_bytes=0.5, ffn_bytes=0.5)
    body = LLAMA.params - LLAMA.embedding_params
    assert weight_bytes(four_bit) == body // 2 + LLAMA.embedding_params * 2
    # gpt-oss-120b is 65.2 GB on disk by its card's 4.25 bits per expert weight.
    assert weight_bytes(GPT_OSS) / 1e9 == pytest.approx(65.2, rel=0.01)
    # DeepSeek-V3 without its prediction head: 671 billion weights at 8 bits, embeddings at 16.
    assert weight_bytes(DEEPSEEK) / 1e9 == pytest.approx(673, rel=0.01)


def test_a_token_chooses_a_share_of_the_routed_experts() -> None:
    assert expert_bytes(LLAMA) == 0
    assert expert_share(LLAMA) == 0
    assert expert_share(DEEPSEEK) == 8 / 256


def test_capacity_is_what_weights_and_activations_leave() -> None:
    def capacity(model: ModelDimensions) -> int:
        return kv_capacity_tokens(model, degree=4, gpu_bytes=80 * 10**9, fraction=0.9, reserve=10**9)

    assert capacity(LLAMA) == int((4 * (72e9 - 1e9) - weight_bytes(LLAMA)) // 327680)
    assert capacity(DEEPSEEK) < 0


def test_a_state_is_a_cost_of_each_sequence() -> None:
    layout = KvLayout(per_token=10, state=5000)
    assert layout.sequence_bytes(100) == 6000
    assert [layout.mean_per_token(tokens) for tokens in (100, 1000, None)] == [60, 15, 10]

    def capacity(tokens: float | None) -> int:
        return kv_capacity_tokens(
            QWEN_NEXT, degree=4, gpu_bytes=80 * 10**9, fraction=0.9, reserve=10**9, sequence_tokens=tokens
        )

    kept, free = kv_layout(QWEN_NEXT, 4), 4 * (72e9 - 1e9) - weight_bytes(QWEN_NEXT)
    assert kept.per_token == 2 * kv_layout(QWEN_NEXT).per_token  # 2 KV heads on 4 GPUs
    assert capacity(None) == int((free - kept.state) // kept.per_token)
    for tokens in (500, 8000):
        sequences = capacity(tokens) / tokens
        assert sequences * kept.sequence_bytes(tokens) == pytest.approx(free, rel=1e-3)
    assert capacity(500) < capacity(8000) / 2


def test_windows_multiply_the_capacity_for_long_sequences_only() -> None:
    h100 = GPUS["nvidia-h100"]
    ignored, short, long = (
        derive_profile(GEMMA, h100, degrees=(2,), sequence_tokens=tokens) for tokens in (None, 1000, 32_000)
    )
    assert short.degrees == ignored.degrees
    assert "not counted" in ignored.provenance["windows"]
    assert "32000 tokens" in long.provenance["windows"]
    assert long.kv_capacity(2) == pytest.approx(5.35 * ignored.kv_capacity(2), rel=0.01)
    for chunk in (1, 4096):
        seconds = [
            profile.t_step(batch=8, context=8 * 32_000, chunk=chunk, chunk_history=30_000, degree=2)
            for profile in (long, ignored)
        ]
        assert seconds[0] < seconds[1]
    assert long.t_pre(history=30_000, increment=2000, degree=2) < ignored.t_pre(
        history=30_000, increment=2000, degree=2
    )
    assert long.t_kv(32_000, source=2, destination=2) < ignored.t_kv(32_000, source=2, destination=2)


def test_eight_bit_products_compute_at_the_eight_bit_rate_where_there_is_one() -> None:
    stored = replace(LLAMA, attention_bytes=1, ffn_bytes=1)
    computed = replace(stored, eight_bit_products=True)
    for gpu, rate in (("nvidia-h100", 2.0), ("nvidia-a100-80", 1.0)):
        wired = replace(GPUS[gpu], scale_up=1e18)
        slow, quick = (derive_profile(m, wired, degrees=(2,)).degrees[2].decode[0] for m in (stored, computed))
        assert slow.per_sequence == pytest.approx(rate * quick.per_sequence, rel=1e-3)
        assert slow.per_chunk_pair == quick.per_chunk_pair  # attention itself stays at 16 bits
