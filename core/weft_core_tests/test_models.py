import pytest

from weft_core.gpus import GPUS
from weft_core.models import MODELS

# Billions of weights as each model's card states them: all, and active per token (embeddings included).
PUBLISHED = {
    "meta-llama/Llama-3.2-1B-Instruct": (1.24, 1.24),
    "meta-llama/Llama-3.2-3B-Instruct": (3.21, 3.21),
    "meta-llama/Llama-3.1-8B-Instruct": (8.03, 8.03),
    "meta-llama/Llama-3.1-70B-Instruct": (70.6, 70.6),
    "meta-llama/Llama-3.3-70B-Instruct": (70.6, 70.6),
    "meta-llama/Llama-3.1-405B-Instruct": (406, 406),
    "Qwen/Qwen2.5-7B-Instruct": (7.61, 7.61),
    "Qwen/Qwen2.5-72B-Instruct": (72.7, 72.7),
    "Qwen/Qwen3-8B": (8.19, 8.19),
    "Qwen/Qwen3-14B": (14.8, 14.8),
    "Qwen/Qwen3-32B": (32.8, 32.8),
    "Qwen/Qwen3-30B-A3B": (30.5, 3.35),
    "Qwen/Qwen3-235B-A22B": (235, 22.2),
    "mistralai/Mistral-7B-Instruct-v0.3": (7.25, 7.25),
    "mistralai/Mistral-Small-24B-Instruct-2501": (23.6, 23.6),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": (46.7, 12.9),
    "mistralai/Mixtral-8x22B-Instruct-v0.1": (141, 39.2),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_dimensions_give_the_published_number_of_weights(name: str) -> None:
    model = MODELS[name]
    total, active = PUBLISHED[name]
    assert model.params / 1e9 == pytest.approx(total, rel=0.01)
    embeddings = model.embedding_params
    assert (model.active_params + embeddings) / 1e9 == pytest.approx(active, rel=0.01)


def test_kv_of_one_token() -> None:
    assert MODELS["meta-llama/Llama-3.1-70B-Instruct"].kv_bytes_per_token == 2 * 80 * 8 * 128 * 2


def test_degrees_split_heads() -> None:
    model = MODELS["Qwen/Qwen2.5-7B-Instruct"]  # 28 heads, 4 KV heads
    assert [n for n in range(1, 29) if model.splits(n)] == [1, 2, 4, 28]


def test_names_are_keys_and_every_gpu_has_a_source() -> None:
    assert len(MODELS) >= 8
    assert all(model.name == name for name, model in MODELS.items())
    for name, gpu in GPUS.items():
        assert gpu.name == name
        assert len(gpu.source) > 20
        assert gpu.kv_across_nodes <= gpu.kv_in_node <= gpu.scale_up < gpu.memory_rate
