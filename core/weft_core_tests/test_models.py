import pytest

from weft_core.gpus import GPUS
from weft_core.known_configs import KNOWN_CONFIGS
from weft_core.models import MODELS

# Billions of weights as each model's card or report states them: all, and active per token. Reports differ in whether
# the active ones include the two embedding matrices (input and head): the last figure says how many are counted.
PUBLISHED = {
    "meta-llama/Llama-3.2-1B-Instruct": (1.24, 1.24, 2),
    "meta-llama/Llama-3.2-3B-Instruct": (3.21, 3.21, 2),
    "meta-llama/Llama-3.1-8B-Instruct": (8.03, 8.03, 2),
    "meta-llama/Llama-3.1-70B-Instruct": (70.6, 70.6, 2),
    "meta-llama/Llama-3.3-70B-Instruct": (70.6, 70.6, 2),
    "meta-llama/Llama-3.1-405B-Instruct": (406, 406, 2),
    "Qwen/Qwen2.5-7B-Instruct": (7.61, 7.61, 2),
    "Qwen/Qwen2.5-72B-Instruct": (72.7, 72.7, 2),
    "Qwen/Qwen3-8B": (8.19, 8.19, 2),
    "Qwen/Qwen3-14B": (14.8, 14.8, 2),
    "Qwen/Qwen3-32B": (32.8, 32.8, 2),
    "Qwen/Qwen3-30B-A3B": (30.5, 3.35, 2),
    "Qwen/Qwen3-235B-A22B": (235, 22.2, 2),
    "mistralai/Mistral-7B-Instruct-v0.3": (7.25, 7.25, 2),
    "mistralai/Mistral-Small-24B-Instruct-2501": (23.6, 23.6, 2),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": (46.7, 12.9, 2),
    "mistralai/Mixtral-8x22B-Instruct-v0.1": (141, 39.2, 2),
    "microsoft/phi-4": (14.7, 14.7, 2),
    "google/gemma-2-9b-it": (9.24, 9.24, 2),
    "deepseek-ai/DeepSeek-V2-Lite-Chat": (15.7, 2.4, 1),
    "deepseek-ai/DeepSeek-V3": (671, 37, 1),
    "deepseek-ai/DeepSeek-R1": (671, 37, 1),
    "moonshotai/Kimi-K2-Instruct": (1040, 32, 1),
    "zai-org/GLM-4.5": (355, 32, 0),
    "zai-org/GLM-4.5-Air": (106, 12, 0),
    "openai/gpt-oss-20b": (20.91, 3.61, 1),
    "openai/gpt-oss-120b": (116.83, 5.13, 1),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_dimensions_give_the_published_number_of_weights(name: str) -> None:
    model = MODELS[name]
    total, active, embeddings = PUBLISHED[name]
    assert model.params / 1e9 == pytest.approx(total, rel=0.015)
    matrix = model.vocab * model.hidden
    counted = min(embeddings * matrix, model.embedding_params)
    assert (model.active_params + counted) / 1e9 == pytest.approx(active, rel=0.025)


def test_degrees_split_heads() -> None:
    model = MODELS["Qwen/Qwen2.5-7B-Instruct"]  # 28 heads, 4 KV heads
    assert [n for n in range(1, 29) if model.splits(n)] == [1, 2, 4, 28]


def test_names_are_keys_and_every_gpu_has_a_source() -> None:
    # Those that are read from a config are in test_published_models.
    assert set(PUBLISHED) | set(KNOWN_CONFIGS) == set(MODELS)
    assert all(model.name == name for name, model in MODELS.items())
    for name, gpu in GPUS.items():
        assert gpu.name == name
        assert len(gpu.source) > 20
        assert gpu.flops_8bit == 0 or 1.9 < gpu.flops_8bit / gpu.flops < 2.1 or name == "intel-gaudi3"
        assert gpu.kv_across_nodes <= gpu.kv_in_node <= gpu.scale_up < gpu.memory_rate


def test_the_experts_share_of_a_tokens_weights() -> None:
    assert MODELS["meta-llama/Llama-3.1-8B-Instruct"].expert_share == 0.0
    # 8 of 256 experts of 3 x 7168 x 2048 weights in 58 layers: 20.4 of 37 billion.
    assert MODELS["deepseek-ai/DeepSeek-R1"].expert_share == pytest.approx(0.56, abs=0.02)
