"""Which parts of a model a quantised checkpoint leaves alone, by the names in its quantization_config."""

import pytest

from weft_core.config_fields import ModelConfigError
from weft_core.dimensions import ModelDimensions
from weft_core.hf_config import dimensions_of_config
from weft_core.known_configs import KNOWN_CONFIGS
from weft_core.memory import weight_bytes
from weft_core_tests.model_configs import CONFIGS

GLM = {key: value for key, value in KNOWN_CONFIGS["zai-org/GLM-5"].items() if key != "quantization_config"}
NVFP4: dict[str, object] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
FOUR = 0.5625
BLOCKS = 1.000244140625


def read(config: dict[str, object], quantization: dict[str, object]) -> ModelDimensions:
    return dimensions_of_config("quantised", config | {"quantization_config": quantization})


def of_each_layer(pattern: str, layers: int) -> list[str]:
    return [pattern.replace("N", str(layer)) for layer in range(layers)]


@pytest.mark.parametrize(
    ("names", "attention", "ffn", "experts"),
    [
        ([], FOUR, FOUR, None),
        (["lm_head", "model.embed_tokens"], FOUR, FOUR, None),
        (of_each_layer("model.layers.N.self_attn*", 78), None, FOUR, None),
        (of_each_layer("model.layers.N.self_attn*", 77), FOUR, FOUR, None),
        # One layer by itself, as a whole.
        (["model.layers.0*", *of_each_layer("model.layers.N.self_attn*", 78)[1:]], None, FOUR, None),
        (["re:.*self_attn.*", "re:.*shared_experts.*"], None, None, FOUR),
        (["*.mlp.shared_experts.*"], FOUR, None, FOUR),
        # Routers, norms, biases and indexers are small.
        (of_each_layer("model.layers.N.mlp.gate", 78), FOUR, FOUR, None),
        (of_each_layer("model.layers.N.mlp.shared_expert_gate", 78), FOUR, FOUR, None),
        (of_each_layer("model.layers.N.self_attn.q_proj.bias", 78), FOUR, FOUR, None),
        (of_each_layer("model.layers.N.self_attn.kv_a_layernorm", 78), FOUR, FOUR, None),
        (of_each_layer("model.layers.N.self_attn.indexer*", 78), FOUR, FOUR, None),
    ],
)
def test_names_say_which_parts_are_not_quantised(
    names: list[str], attention: float | None, ffn: float | None, experts: float | None
) -> None:
    for key in ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules"):
        model = read(GLM, NVFP4 | {key: names})
        assert (model.attention_bytes, model.ffn_bytes, model.expert_bytes) == (attention, ffn, experts)


def test_an_output_projection_may_have_a_precision_of_its_own() -> None:
    inputs = [
        f"model.layers.{layer}.self_attn.{name}"
        for layer in range(78)
        for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
    ]
    outputs = of_each_layer("model.layers.N.self_attn.o_proj", 78)
    without_inputs, without_outputs = (read(GLM, NVFP4 | {"ignore": names}) for names in (inputs, outputs))
    share = without_inputs.attention_output_params / without_inputs.attention_params
    assert 0.5 < share < 0.6
    assert without_inputs.attention_bytes == pytest.approx(2 * (1 - share) + FOUR * share)
    assert without_outputs.attention_bytes == pytest.approx(FOUR * (1 - share) + 2 * share)
    assert read(GLM, NVFP4 | {"ignore": inputs + outputs}).attention_bytes is None


@pytest.mark.parametrize(
    ("quantization", "size", "products"),
    [
        ({"quant_algo": "FP8"}, 1, True),  # without quant_method, as early ModelOpt checkpoints
        ({"quant_method": "mxfp8", "weight_block_size": [1, 32]}, 8.25 / 8, True),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, FOUR, False),
    ],
)
def test_one_precision_for_all(quantization: dict[str, object], size: float, products: bool) -> None:
    model = read(CONFIGS["meta-llama/Llama-3.1-70B-Instruct"], quantization)
    assert (model.attention_bytes, model.ffn_bytes, model.eight_bit_products) == (size, size, products)


@pytest.mark.parametrize(
    ("weights", "size"),
    [
        ({"num_bits": 4, "type": "float", "group_size": 16}, 4.5 / 8),  # NVFP4
        ({"num_bits": 4, "type": "float", "group_size": 32}, 4.25 / 8),  # MXFP4
        ({"num_bits": 4, "type": "int", "group_size": 32}, 4.5 / 8),
    ],
)
def test_scales_of_4_bit_floats_have_8_bits(weights: dict[str, object], size: float) -> None:
    groups = {"group_0": {"weights": weights}}
    model = read(GLM, {"quant_method": "compressed-tensors", "config_groups": groups})
    assert (model.attention_bytes, model.ffn_bytes) == (size, size)


def test_a_precision_for_every_module() -> None:
    def modules(layer: int) -> dict[str, dict[str, str]]:
        at = f"model.layers.{layer}"
        return {
            f"{at}.linear_attn.in_proj_qkv": {"quant_algo": "FP8"},
            f"{at}.self_attn.o_proj": {"quant_algo": "MXFP8"},
            f"{at}.mlp.experts.0.up_proj": {"quant_algo": "NVFP4"},
            f"{at}.mlp.gate": {"quant_algo": "FP8"},
        }

    config = dict(KNOWN_CONFIGS["Qwen/Qwen3-Next-80B-A3B-Instruct"])
    layers = {name: value for layer in range(48) for name, value in modules(layer).items()}
    mixed: dict[str, object] = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    model = read(config, mixed | {"quantized_layers": layers})
    assert model.linear is not None
    assert model.linear.weight_bytes == 1
    assert (model.attention_bytes, model.ffn_bytes, model.expert_bytes) == (8.25 / 8, None, FOUR)
    assert model.eight_bit_products
    with pytest.raises(ModelConfigError, match=r"quantization_config\.quantized_layers: is missing"):
        read(config, mixed)
    with pytest.raises(ModelConfigError, match=r"quantized_layers\.lm\.experts\.quant_algo: 'INT3' is not one of FP8"):
        read(config, mixed | {"quantized_layers": {"lm.experts": {"quant_algo": "INT3"}}})


def test_experts_of_4_bits_in_an_8_bit_checkpoint() -> None:
    config = dict(KNOWN_CONFIGS["deepseek-ai/DeepSeek-V4-Flash"])
    eight: dict[str, object] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    model = read(config, eight)
    assert (model.attention_bytes, model.ffn_bytes, model.expert_bytes) == (BLOCKS, BLOCKS, 4.25 / 8)
    # What NVIDIA's lists is what has not 4 bits: it stays at 8.
    nvidia = read(config, eight | {"moe_quant_algo": "NVFP4", "ignore": ["*.attn.*", "*.ffn.shared_experts.*"]})
    assert (nvidia.attention_bytes, nvidia.ffn_bytes, nvidia.expert_bytes) == (BLOCKS, BLOCKS, FOUR)
    base = dimensions_of_config("base", config | {"expert_dtype": "fp8"})
    assert base.expert_bytes is None
    assert weight_bytes(model) < weight_bytes(nvidia) < weight_bytes(base)
