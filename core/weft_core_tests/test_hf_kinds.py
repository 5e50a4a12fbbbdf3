"""Fields of linear, sparse, compressed and windowed attention that are missing or wrong are named with the fix."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.config_fields import ModelConfigError
from weft_core.hf_config import dimensions_of_config
from weft_core.known_configs import KNOWN_CONFIGS
from weft_core.memory import decode_read_per_token, kv_layout, weight_bytes
from weft_core_tests.test_hf_config import junk


def config(name: str, *without: str, **changed: object) -> dict[str, object]:
    """Return a known config without some fields of its language model, and with others changed."""
    body = dict(KNOWN_CONFIGS[name])
    inner = body.get("text_config")
    fields = dict(inner) if isinstance(inner, Mapping) else body
    for key in without:
        fields.pop(key, None)
    fields |= changed
    return body | {"text_config": fields} if inner is not None else fields


QWEN, KIMI, NANO = "Qwen/Qwen3.5-27B", "moonshotai/Kimi-K3", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
V4, GLM_5, M3 = "deepseek-ai/DeepSeek-V4-Flash", "zai-org/GLM-5", "MiniMaxAI/MiniMax-M3"
MIMO, GEMMA, LLAMA_4 = "XiaomiMiMo/MiMo-V2-Flash", "google/gemma-4-31B-it", "meta-llama/Llama-4-Scout-17B-16E-Instruct"
GEMMA_3N, GEMMA_E2B = "google/gemma-3n-E2B-it", "google/gemma-4-E2B-it"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (config(QWEN, "linear_num_value_heads"), r"text_config\.linear_num_value_heads: is missing; add it"),
        (config(QWEN, layer_types=["linear_attention"] * 64), "num_hidden_layers: 64 leaves no layer with full attent"),
        (config(QWEN, layer_types=["full_attention"] * 3), r"text_config\.layer_types: has 3 entries for .* 64"),
        (config(QWEN, layer_types=["sparse"] * 64), "layer_types: sparse is not full_attention or linear_attention"),
        (config(QWEN, mamba_ssm_dtype="int8"), "mamba_ssm_dtype: 'int8' is not float32, bfloat16, float16; correct it"),
        (config(KIMI, "linear_attn_config"), "linear_attn_config: has no kda_layers; add it"),
        (config(KIMI, linear_attn_config={"kda_layers": [1]}), r"linear_attn_config\.num_heads: is missing"),
        (config("MiniMaxAI/MiniMax-Text-01", "attn_type_list"), "attn_type_list: is missing; add it"),
        (config(NANO, "hybrid_override_pattern"), "hybrid_override_pattern: is missing; add it"),
        (config(NANO, hybrid_override_pattern="MEX*"), "hybrid_override_pattern: X is not one of M, "),
        (config(NANO, hybrid_override_pattern="MEM"), "hybrid_override_pattern: has no layer with attention"),
        (config(NANO, "mamba_num_heads"), "mamba_num_heads: is missing"),
        (config(GLM_5, "index_topk"), "index_topk: is missing"),
        (config(GLM_5, indexer_types=["full"]), "indexer_types: has 1 entries for num_hidden_layers 78; make them eq"),
        (config(V4, "compress_ratios"), "compress_ratios: must have a whole number for each of the 43 layers"),
        (config(V4, compress_ratios=[0] * 43), "compress_ratios: compresses no layer"),
        (config(V4, "o_groups"), "o_groups: is missing"),
        (config(M3, sparse_attention_config={}), r"sparse_attention_config\.sparse_num_index_heads: is missing"),
        (config(M3, moe_layer_freq=[0] * 60), "moe_layer_freq: leaves no layer with experts"),
        (config(MIMO, "hybrid_layer_pattern"), "hybrid_layer_pattern: is missing"),
        (config(MIMO, swa_num_attention_heads=32), "swa_num_attention_heads: is not num_attention_heads, 64"),
        (config(GEMMA, num_kv_shared_layers=59), "num_kv_shared_layers: 59 of 60 layers leave no earlier layer of the"),
        (config(GEMMA_3N, intermediate_size=[8192] * 29), "intermediate_size: must be a width, or a list of one for e"),
        (config(GEMMA_3N, intermediate_size=[1, 2, 3] * 10), "intermediate_size: .*, of at most two widths"),
        (config(LLAMA_4, no_rope_layers=[1] * 47), "no_rope_layers: has 47 entries"),
    ],
)  # fmt: skip
def test_a_field_that_is_missing_or_wrong_is_named_with_the_fix(body: dict[str, object], named: str) -> None:
    with pytest.raises(ModelConfigError, match=named):
        dimensions_of_config("bad", body)


def test_layers_are_chunked_as_the_config_lists_them() -> None:
    by_default = dimensions_of_config("llama", config(LLAMA_4))
    assert (by_default.windowed_layers, by_default.window) == (36, 8192)
    rotated = config(LLAMA_4, no_rope_layers=[1, 1, 1, 0] * 12)
    assert dimensions_of_config("llama", rotated) == by_default
    named = config(LLAMA_4, layer_types=(["chunked_attention"] * 3 + ["full_attention"]) * 12)
    assert dimensions_of_config("llama", named) == by_default
    whole = dimensions_of_config("llama", config(LLAMA_4, attention_chunk_size=None))
    assert (whole.windowed_layers, whole.window) == (0, 0)


def test_layers_that_share_an_earlier_layers_cache_add_none_and_are_read_in_every_step() -> None:
    own = dimensions_of_config("gemma", config(GEMMA_3N, num_kv_shared_layers=0))
    sharing = dimensions_of_config("gemma", config(GEMMA_3N))
    assert (sharing.sharing_layers, sharing.sharing_windowed) == (10, 8)
    assert kv_layout(sharing).per_token * 6 == kv_layout(own).per_token * 4
    assert kv_layout(sharing).per_window_token * 24 == kv_layout(own).per_window_token * 16
    assert decode_read_per_token(sharing, 1, 4000) == decode_read_per_token(own, 1, 4000)
    assert weight_bytes(sharing) == weight_bytes(own)
    listed = config(GEMMA_3N, layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 6)
    assert dimensions_of_config("gemma", listed) == sharing


def test_feed_forwards_of_two_widths_are_counted_each() -> None:
    plain = dimensions_of_config("gemma", config(GEMMA_3N))
    assert dimensions_of_config("gemma", config(GEMMA_3N, intermediate_size=[8192] * 30)) == plain
    mixed = dimensions_of_config("gemma", config(GEMMA_3N, intermediate_size=[8192] * 20 + [16384] * 10))
    assert mixed.params - plain.params == 10 * 3 * 2048 * 8192


def test_sparse_attention_that_is_off_is_none() -> None:
    off = config(M3, sparse_attention_config={"use_sparse_attention": False})
    assert dimensions_of_config("m3", off).sparse is None


def test_degrees_split_what_tensor_parallelism_divides() -> None:
    def degrees(name: str) -> list[int]:
        model = dimensions_of_config(name, config(name))
        return [n for n in range(1, 129) if model.splits(n)]

    assert degrees(QWEN) == [1, 2, 4, 8]  # 24 heads, 4 KV heads, 16 key heads of delta nets
    assert degrees(V4) == [1, 2, 4, 8]  # 64 heads, 8 groups of the output
    assert degrees(NANO) == [1, 2, 4, 8, 16, 32]  # 32 heads, 2 KV heads, 64 Mamba heads
    assert degrees(KIMI)[:8] == [1, 2, 3, 4, 6, 8, 12, 16]  # 96 heads of both kinds


def test_shapes_of_images_count_where_they_are_given() -> None:
    whole = dimensions_of_config("qwen", config("Qwen/Qwen3-VL-8B-Instruct"))
    assert 0.5e9 < whole.encoder_params < 0.6e9
    unknown = config("Qwen/Qwen3-VL-8B-Instruct") | {"vision_config": {"hidden_size": 1152}}
    assert dimensions_of_config("qwen", unknown).encoder_params == 0


@given(st.sampled_from([QWEN, KIMI, NANO, V4, GLM_5, M3, MIMO, GEMMA, GEMMA_3N, GEMMA_E2B, LLAMA_4]), st.data())
def test_any_value_in_any_field_is_read_or_refused(name: str, data: st.DataObject) -> None:
    body = dict(KNOWN_CONFIGS[name])
    inner = body.get("text_config")
    fields = inner if isinstance(inner, Mapping) else body
    key = data.draw(st.sampled_from(sorted(fields)))
    changed = config(name, **{key: data.draw(junk)})
    faults: tuple[str, ...] = ()
    try:
        model = dimensions_of_config(name, changed)
    except ModelConfigError as error:
        model, faults = dimensions_of_config(name, body), error.faults
    assert all(": " in fault for fault in faults)
    assert weight_bytes(model) > 0
    assert kv_layout(model).sequence_bytes(1000) > 0
