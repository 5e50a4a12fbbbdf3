import copy
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.config_fields import ModelConfigError
from weft_core.hf_config import config_of_text, dimensions_of_config
from weft_core.memory import KvLayout, kv_layout, weight_bytes
from weft_core.models import MODELS
from weft_core_tests.model_configs import CONFIGS, OTHERS

LLAMA = CONFIGS["meta-llama/Llama-3.1-70B-Instruct"]
DEEPSEEK = CONFIGS["deepseek-ai/DeepSeek-V3"]


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_config_gives_the_dimensions_in_the_catalogue(name: str) -> None:
    assert dimensions_of_config(name, CONFIGS[name]) == MODELS[name]


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_a_model_outside_the_catalogue_has_the_published_number_of_weights(name: str) -> None:
    billions, config = OTHERS[name]
    assert dimensions_of_config(name, config).params / 1e9 == pytest.approx(billions, rel=0.01)


def test_one_key_for_all_heads_and_one_for_each() -> None:
    one = dimensions_of_config("starcoder", OTHERS["bigcode/starcoder"][1])
    each = dimensions_of_config("opt", OTHERS["facebook/opt-30b"][1])
    assert (one.kv_heads, each.kv_heads) == (1, 56)
    assert each.positions == 2050


def test_windows_of_all_layers_of_a_pattern_and_of_the_last_ones() -> None:
    phi = dimensions_of_config("phi", OTHERS["microsoft/Phi-3-mini-4k-instruct"][1])
    assert (phi.windowed_layers, phi.window) == (32, 2047)
    gemma = dimensions_of_config("gemma", OTHERS["google/gemma-3-4b-it"][1])
    assert (gemma.windowed_layers, gemma.window) == (29, 1024)
    qwen = CONFIGS["Qwen/Qwen2.5-72B-Instruct"] | {"use_sliding_window": True}
    windowed = dimensions_of_config("qwen", qwen)
    assert (windowed.windowed_layers, windowed.window) == (10, 131072)
    layer = 2 * 8 * 128 * 2
    assert kv_layout(windowed) == KvLayout(70 * layer, 10 * layer, 131072)
    inner = {"sliding_window_pattern": 4}
    wider = copy.deepcopy(CONFIGS["google/gemma-3-12b-it"])
    wider["text_config"] |= inner  # type: ignore[operator]
    assert dimensions_of_config("gemma", wider).windowed_layers == 36


def test_later_releases_of_transformers_name_experts_otherwise() -> None:
    config = CONFIGS["Qwen/Qwen3-30B-A3B"]
    renamed = {key: value for key, value in config.items() if key != "num_experts"} | {"num_local_experts": 128}
    assert dimensions_of_config("Qwen/Qwen3-30B-A3B", renamed) == MODELS["Qwen/Qwen3-30B-A3B"]


def test_layers_between_experts_are_dense() -> None:
    config = CONFIGS["Qwen/Qwen3-30B-A3B"] | {"decoder_sparse_step": 2, "mlp_only_layers": [1, 3]}
    model = dimensions_of_config("sparse", config)
    assert (model.dense_layers, model.expert_layers, model.dense_intermediate) == (26, 22, 6144)


@pytest.mark.parametrize(
    ("quantization", "attention", "ffn", "products"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, 1, 1, True),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.51953125, 0.51953125, False),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 1, 1, False),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.53125, 0.53125, False),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["layers.*.self_attn*"]}, None, 0.5625, True),
        (
            {
                "quant_method": "fbgemm_fp8",
                "modules_to_not_convert": [
                    f"model.layers.{i}.self_attn.{name}_proj" for i in range(80) for name in "qkvo"
                ],
            },
            None, 1, True,
        ),
        (
            {
                "quant_method": "fp8",
                "modules_to_not_convert": ["layers.0.self_attn.q_proj", "layers.1.post_attention_layernorm"],
            },
            1, 1, True,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}, "input_activations": None}
                },
                "ignore": ["lm_head"],
            },
            0.515625, 0.515625, False,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {"num_bits": 8, "type": "float"},
                        "input_activations": {"num_bits": 8, "type": "float"},
                    }
                },
            },
            1, 1, True,
        ),
    ],
)  # fmt: skip
def test_a_quantised_checkpoint_weighs_what_its_bits_say(
    quantization: dict[str, object], attention: float | None, ffn: float, products: bool
) -> None:
    model = dimensions_of_config("quantised", LLAMA | {"quantization_config": quantization})
    plain = dimensions_of_config("quantised", LLAMA)
    assert model == replace(plain, attention_bytes=attention, ffn_bytes=ffn, eight_bit_products=products)
    assert weight_bytes(model) < weight_bytes(plain)


def _without(config: dict[str, object], *keys: str) -> dict[str, object]:
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({}, r"model_type: is missing; give the model's own Hugging Face config\.json"),
        (LLAMA | {"model_type": "mamba2"}, "model_type: 'mamba2' is not one of chatglm, .*a CostProfile .*kvBytes"),
        (_without(LLAMA, "num_hidden_layers"), "num_hidden_layers: is missing; add it"),
        (LLAMA | {"hidden_size": "8192"}, "hidden_size: '8192' is not a whole number"),
        (LLAMA | {"hidden_size": 8192.0}, r"hidden_size: 8192\.0 is not a whole number"),
        (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers: True is not a whole number"),
        (LLAMA | {"num_hidden_layers": 80_000}, "num_hidden_layers: 80000 is not between 1 and 1000"),
        (LLAMA | {"vocab_size": 0}, "vocab_size: 0 is not between 1 and"),
        (LLAMA | {"num_key_value_heads": 7}, "num_key_value_heads: 7 does not divide num_attention_heads, 64"),
        (LLAMA | {"num_attention_heads": 24, "num_key_value_heads": 8}, "head_dim: is missing, and hidden_size 8192"),
        (LLAMA | {"tie_word_embeddings": "yes"}, "tie_word_embeddings: 'yes' is not true or false"),
        (LLAMA | {"torch_dtype": "int3"}, "torch_dtype: 'int3' is not bfloat16, float16 or float32"),
        (_without(CONFIGS["Qwen/Qwen3-8B"], "num_key_value_heads"), "num_key_value_heads: is missing"),
        (_without(DEEPSEEK, "kv_lora_rank"), "kv_lora_rank: is missing"),
        (DEEPSEEK | {"n_routed_experts": None}, "n_routed_experts: is missing"),
        (DEEPSEEK | {"num_experts_per_tok": 300}, "num_experts_per_tok: 300 is above n_routed_experts, 256"),
        (DEEPSEEK | {"first_k_dense_replace": 61}, "first_k_dense_replace: leaves no layer with experts"),
        (
            CONFIGS["openai/gpt-oss-20b"] | {"layer_types": ["full_attention", "linear_attention"]},
            "layer_types: linear_attention is not .*; layer_types: has 2 entries for num_hidden_layers 24",
        ),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, r"text_config\.hidden_size: is miss"),
        (OTHERS["facebook/opt-30b"][1] | {"word_embed_proj_dim": 512}, "word_embed_proj_dim: 512 is not hidden_size"),
        (_without(OTHERS["bigcode/starcoder"][1], "n_layer"), "n_layer: is missing"),
        (LLAMA | {"quantization_config": {"quant_method": "aqlm"}}, r"quantization_config\.quant_method: 'aqlm' is"),
        (LLAMA | {"quantization_config": {"quant_method": "awq"}}, r"quantization_config\.bits: is missing"),
        (LLAMA | {"quantization_config": [4]}, r"quantization_config: \[4\] is not an object"),
        (
            LLAMA | {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {}}},
            r"quantization_config\.config_groups: has no group with weights",
        ),
        (LLAMA | {"quantization_config": {"quant_method": "modelopt"}}, r"quantization_config\.quant_algo: None is"),
    ],
)  # fmt: skip
def test_a_field_that_is_missing_or_wrong_is_named_with_the_fix(config: dict[str, object], named: str) -> None:
    with pytest.raises(ModelConfigError, match=named):
        dimensions_of_config("bad", config)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ModelConfigError) as caught:
        dimensions_of_config("bad", {"model_type": "llama", "hidden_size": -1})
    named = [fault.split(":")[0] for fault in caught.value.faults]
    assert named == ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]


def test_text_that_is_no_config_is_refused() -> None:
    assert config_of_text(json.dumps(LLAMA)) == LLAMA
    with pytest.raises(ModelConfigError, match=r"config\.json: not JSON"):
        config_of_text("{")
    with pytest.raises(ModelConfigError, match=r"config\.json: must be an object"):
        config_of_text("[1]")


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_any_value_in_any_field_is_read_or_refused_by_name(name: str, data: st.DataObject) -> None:
    config = CONFIGS[name]
    key = data.draw(st.sampled_from(sorted(config)))
    value = data.draw(junk)
    assert dimensions_of_config(name, config | {"read_by_nobody": value}) == MODELS[name]
    faults: tuple[str, ...] = ()
    try:
        model = dimensions_of_config(name, config | {key: value})
    except ModelConfigError as error:
        model, faults = MODELS[name], error.faults
        # Another type has other fields, and what is inside of an object has names of its own.
        named = any(key in fault for fault in faults)
        assert named or key == "model_type" or isinstance(config[key], dict), faults
    assert all(": " in fault for fault in faults)
    assert model.params > 0
    assert weight_bytes(model) > 0
    assert kv_layout(model).mean_per_token(None) > 0
