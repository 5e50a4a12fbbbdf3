"""Sizes of models as published: weights within 2 percent, and what one sequence caches exactly.

``weights_gb`` are decimal GB of the tensors in the safetensors files of a checkpoint, without the heads that predict
further tokens (``mtp.*``, or the layer after the last): engines load those for speculative decoding only. They were
summed from the list of tensors, shapes and types of each checkpoint that the repository gogongxt/python shows in its
folder scripts/models; of releases with equal configs, one's list stands for all. Others are sizes of the files as
huggingface.co lists them. Where there is none, ``billions`` are weights as the model's card or report states them.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.dimensions import ModelDimensions
from weft_core.hf_config import dimensions_of_config
from weft_core.known_configs import KNOWN_CONFIGS
from weft_core.memory import KvLayout, kv_layout, weight_bytes
from weft_core.models import MODELS
from weft_core_tests.model_configs import CONFIGS

FOLDER = Path(__file__).parent / "published_configs"
FILES = sorted(FOLDER.glob("*.json"))
GIB = 2**30 / 1e9


@dataclass(frozen=True)
class Published:
    """What is published of one model; ``active`` are billions of weights per token with ``embeddings`` matrices."""

    kv: KvLayout
    weights_gb: float = 0.0
    billions: float = 0.0
    active: float = 0.0
    embeddings: int = 0


def latent(layers: int, width: int = 512 + 64) -> int:
    return layers * width * 2


def heads(layers: int, kv_heads: int, dim: int) -> int:
    return layers * 2 * kv_heads * dim * 2


INDEX_KEY = 128 + 4
"""Bytes of an index key of DeepSeek's indexer: 128 elements of 8 bits, and a scale (vLLM's DeepseekV32IndexerCache)."""


def delta_net(layers: int, value_heads: int) -> int:
    """Return the states of gated delta nets: 32 bits recurrent, 16 bits of three inputs of the convolution."""
    return layers * (value_heads * 128 * 128 * 4 + 3 * (2 * 16 + value_heads) * 128 * 2)


def mamba2(layers: int, mamba_heads: int, size: int = 128) -> int:
    return layers * (mamba_heads * 64 * size * 4 + 3 * (mamba_heads * 64 + 2 * 8 * size) * 2)


def merging(chosen: int, rest: int) -> int:
    """Return what DeepSeek-V4's layers keep of tokens that are not merged yet (vLLM's CompressorStateCache)."""
    return 4 * (chosen * 8 * 2 * 2 * (512 + 128) + rest * 128 * 2 * 512)


GLM_5 = KvLayout(latent(78) + 78 * INDEX_KEY)
GLM_5_2 = KvLayout(latent(78) + 21 * INDEX_KEY)
KIMI_K2 = KvLayout(latent(61))
QWEN3_VL_235B = KvLayout(heads(94, 4, 128))
QWEN3_5_27B = Published(KvLayout(heads(16, 4, 256), state=delta_net(48, 48)), 2 * (27.7814 - 0.4247))
QWEN3_5_35B = Published(KvLayout(heads(10, 2, 256), state=delta_net(30, 32)), 2 * (35.9518 - 0.8440))

PUBLISHED: dict[str, Published] = {
    "deepseek-ai/DeepSeek-V3.1": Published(KvLayout(latent(61)), (641.29 - 14.36) * GIB, active=37, embeddings=1),
    "deepseek-ai/DeepSeek-V3.2": Published(
        KvLayout(latent(61) + 61 * INDEX_KEY), (642.12 - 14.38) * GIB, active=37, embeddings=0
    ),
    "deepseek-ai/DeepSeek-V4-Flash": Published(
        KvLayout(round(21 * (1024 + INDEX_KEY) / 4 + 20 * 1024 / 128), state=43 * 128 * 1024 + merging(21, 20)),
        (148.65 - 3.35) * GIB, billions=284, active=13, embeddings=1,
    ),
    "deepseek-ai/DeepSeek-V4-Pro": Published(
        KvLayout(round(30 * (1024 + INDEX_KEY) / 4 + 31 * 1024 / 128), state=61 * 128 * 1024 + merging(30, 31)),
        (805.32 - 12.99) * GIB, billions=1600, active=49, embeddings=1,
    ),
    "moonshotai/Kimi-K2-Instruct": Published(KIMI_K2, 958.49 * GIB, active=32, embeddings=1),
    "moonshotai/Kimi-K2.5": Published(KIMI_K2, 554.27 * GIB, active=32, embeddings=1),
    "moonshotai/Kimi-K2.6": Published(KIMI_K2, 554.27 * GIB, active=32, embeddings=1),
    "moonshotai/Kimi-K2.7-Code": Published(KIMI_K2, 554.27 * GIB, active=32, embeddings=1),
    "moonshotai/Kimi-K3": Published(
        KvLayout(latent(24), state=69 * (96 * 128 * 128 * 4 + 3 * 3 * 96 * 128 * 2)), 1453.66 * GIB, billions=2800
    ),
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": Published(
        KvLayout(latent(7), state=20 * (32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2)),
        2 * 49.1227, active=3, embeddings=1,
    ),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": Published(KvLayout(heads(48, 4, 128)), 56.87 * GIB),
    "Qwen/Qwen3-235B-A22B-Instruct-2507": Published(
        KvLayout(heads(94, 4, 128)), billions=235, active=22, embeddings=2
    ),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": Published(
        KvLayout(heads(62, 8, 128)), billions=480, active=35.5, embeddings=2
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": Published(
        KvLayout(heads(12, 2, 256), state=delta_net(36, 32)), (151.48 - 3.07) * GIB, billions=80
    ),
    "Qwen/Qwen3-VL-8B-Instruct": Published(KvLayout(heads(36, 8, 128)), 2 * 8.7671),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": Published(KvLayout(heads(48, 4, 128)), 2 * 31.0708),
    # Qwen3-32B with the encoder by which Qwen3-VL-8B is larger than Qwen3-8B.
    "Qwen/Qwen3-VL-32B-Instruct": Published(KvLayout(heads(64, 8, 128)), 2 * (32.7621 + 8.7671 - 8.1907)),
    "Qwen/Qwen3-VL-235B-A22B-Instruct": Published(QWEN3_VL_235B, 2 * 235.6700, active=22, embeddings=2),
    "Qwen/Qwen3.5-27B": QWEN3_5_27B,
    "Qwen/Qwen3.5-35B-A3B": QWEN3_5_35B,
    "Qwen/Qwen3.6-27B": QWEN3_5_27B,
    "Qwen/Qwen3.6-35B-A3B": QWEN3_5_35B,
    "Qwen/Qwen3.5-122B-A10B": Published(
        KvLayout(heads(12, 2, 256), state=delta_net(36, 64)), billions=122, active=10, embeddings=2
    ),
    "Qwen/Qwen3.5-397B-A17B": Published(
        KvLayout(heads(15, 2, 256), state=delta_net(45, 64)), billions=397, active=17, embeddings=2
    ),
    "zai-org/GLM-4.7-Flash": Published(KvLayout(latent(47)), 2 * (31.2215 - 1.2781)),
    "zai-org/GLM-5": Published(GLM_5, 2 * (753.8641 - 9.9527), billions=744, active=40),
    "zai-org/GLM-5-FP8": Published(GLM_5, billions=744, active=40),
    "zai-org/GLM-5.1": Published(GLM_5, 2 * (753.8641 - 9.9527), billions=744, active=40),
    "zai-org/GLM-5.1-FP8": Published(GLM_5, billions=744, active=40),
    "zai-org/GLM-5.2": Published(GLM_5_2, 2 * (753.3299 - 9.9527), billions=744, active=40),
    "zai-org/GLM-5.2-FP8": Published(GLM_5_2, billions=744, active=40),
    "zai-org/GLM-5.3": Published(GLM_5_2, 2 * (753.3299 - 9.9527)),
    "zai-org/GLM-5.3-FP8": Published(GLM_5_2, billions=744),
    "MiniMaxAI/MiniMax-Text-01": Published(
        KvLayout(heads(10, 8, 128), state=70 * 64 * 128 * 128 * 4), billions=456, active=45.9
    ),
    "MiniMaxAI/MiniMax-M2.5": Published(KvLayout(heads(62, 8, 128)), 214.32 * GIB, billions=230, active=10),
    "MiniMaxAI/MiniMax-M2.7": Published(KvLayout(heads(62, 8, 128)), 214.32 * GIB, billions=230, active=10),
    "MiniMaxAI/MiniMax-M3": Published(
        KvLayout(heads(60, 4, 128) + 57 * 128 * 2), 795.51 * GIB, billions=428, active=23
    ),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": Published(
        KvLayout(heads(12, 8, 128), heads(36, 8, 128), 8192), billions=109, active=17, embeddings=2
    ),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": Published(
        KvLayout(heads(12, 8, 128), heads(36, 8, 128), 8192), billions=400, active=17, embeddings=2
    ),
    # The language model's 16-bit files (OpenPipe/gemma-3-12b-it-text-only, ggml-org/gemma-3-27b-it-GGUF) and the
    # encoder's (the latter's mmproj-model-f16.gguf).
    "google/gemma-3-12b-it": Published(KvLayout(heads(8, 8, 256), heads(40, 8, 256), 1024), 23.53 + 0.858),
    "google/gemma-3-27b-it": Published(KvLayout(heads(10, 16, 128), heads(52, 16, 128), 1024), 54.0 + 0.858),
    # Hugging Face's collection (5.98 and 8.39 billion) counts a copy of the tied embedding; Ollama's library has the
    # language model alone (4.46 and 6.87 billion).
    "google/gemma-3n-E2B-it": Published(
        KvLayout(heads(4, 2, 256), heads(16, 2, 256), 512), billions=5.98 - 0.537, active=4.46 - 2.013, embeddings=1
    ),
    "google/gemma-3n-E4B-it": Published(
        KvLayout(heads(4, 2, 256), heads(16, 2, 256), 512), billions=8.39 - 0.537, active=6.87 - 2.349, embeddings=1
    ),
    # Cards state 2.3 and 4.5 billion "effective" weights: all of the language model but the embeddings of layers.
    "google/gemma-4-E2B-it": Published(
        KvLayout(heads(3, 1, 512), heads(12, 1, 256), 512), 10.246621918, billions=5.1, active=2.3, embeddings=1
    ),
    "google/gemma-4-E4B-it": Published(
        KvLayout(heads(4, 2, 512), heads(20, 2, 256), 512), 15.992595884, billions=8, active=4.5, embeddings=1
    ),
    "google/gemma-4-26B-A4B-it": Published(
        KvLayout(heads(5, 2, 512), heads(25, 8, 256), 1024), billions=25.2 + 0.55, active=3.8, embeddings=1
    ),
    "google/gemma-4-31B-it": Published(
        KvLayout(heads(10, 4, 512), heads(50, 16, 256), 1024), 2 * 31.2731, billions=30.7 + 0.55
    ),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": Published(
        KvLayout(heads(6, 2, 128), state=mamba2(23, 64)), billions=31.6, active=3.6, embeddings=2
    ),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": Published(
        KvLayout(heads(8, 2, 128), state=mamba2(40, 128)), billions=120, active=12
    ),
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": Published(
        KvLayout(heads(12, 2, 128), state=mamba2(48, 256)), billions=550, active=55, embeddings=1
    ),
    "XiaomiMiMo/MiMo-V2-Flash": Published(
        KvLayout(9 * 4 * 320 * 2, 39 * 8 * 320 * 2, 128), billions=309, active=15, embeddings=1
    ),
    "XiaomiMiMo/MiMo-V2.5": Published(
        KvLayout(9 * 4 * 320 * 2, 39 * 8 * 320 * 2, 128), (293.40 - 1.11) * GIB, billions=310, active=15, embeddings=1
    ),
}  # fmt: skip
"""Models of the catalogue by their Hugging Face name."""


def model_of(path: Path) -> ModelDimensions:
    name = path.stem.replace("--", "/")
    return dimensions_of_config(name, json.loads(path.read_text(encoding="utf-8")))


def test_every_model_that_is_read_from_a_config_has_a_published_size() -> None:
    assert set(KNOWN_CONFIGS) <= set(PUBLISHED) <= set(MODELS)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_weights_are_within_2_percent_of_the_published_size(name: str) -> None:
    model, published = MODELS[name], PUBLISHED[name]
    assert published.weights_gb or published.billions
    if published.weights_gb:
        assert weight_bytes(model) / 1e9 == pytest.approx(published.weights_gb, rel=0.02)
    if published.billions:
        assert model.params / 1e9 == pytest.approx(published.billions, rel=0.02)
    if published.active:
        # Cards round to whole billions.
        matrices = published.embeddings * model.vocab * model.hidden
        assert (model.active_params + matrices) / 1e9 == pytest.approx(published.active, rel=0.045)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_sequence_caches_what_the_engines_allocate(name: str) -> None:
    assert kv_layout(MODELS[name]) == PUBLISHED[name].kv


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_published_config_gives_the_dimensions_in_the_catalogue(path: Path) -> None:
    model = model_of(path)
    if model.name not in MODELS:
        assert model.name in OTHERS
        return
    known = MODELS[model.name]
    if model.name == "MiniMaxAI/MiniMax-M3":  # the file is of the language model alone
        known = replace(known, encoder_params=0)
    assert model == known


OTHERS: dict[str, tuple[float | None, tuple[float | None, ...]]] = {
    # Billions (None: no figure finer than the name is published), and bytes per weight of attention, of dense layers
    # and shared experts, of routed experts where they differ, and of linear attention.
    "Qwen/Qwen3-235B-A22B-FP8": (235, (1.000244140625, 1.000244140625, None, None)),
    "Qwen/Qwen3-VL-2B-Instruct": (None, (None, None, None, None)),
    "XiaomiMiMo/MiMo-7B-Base": (None, (None, None, None, None)),
    "google/gemma-4-26B-A4B": (25.2 + 0.55, (None, None, None, None)),
    "mistralai/Mixtral-8x22B-v0.1": (141, (None, None, None, None)),
    "nvidia/Gemma-4-31B-IT-NVFP4": (31.27, (None, 0.5625, None, None)),
    "nvidia/Kimi-K2.6-NVFP4": (1027, (None, None, 0.5625, None)),
    "nvidia/Nemotron-H-56B-Base-8K": (56, (None, None, None, None)),
    "nvidia/Qwen3.5-397B-A17B-NVFP4": (397, (None, None, 0.5625, None)),
}
"""Published configs of models outside of the catalogue."""


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_a_config_outside_of_the_catalogue_is_read(name: str) -> None:
    model = model_of(FOLDER / f"{name.replace('/', '--')}.json")
    billions, precisions = OTHERS[name]
    assert billions is None or model.params / 1e9 == pytest.approx(billions, rel=0.02)
    linear = model.linear.weight_bytes if model.linear is not None else None
    assert (model.attention_bytes, model.ffn_bytes, model.expert_bytes, linear) == precisions


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
QWEN2_72B = {
    "model_type": "qwen2", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "intermediate_size": 29696, "vocab_size": 152064,
}  # fmt: skip
QUANTISED: dict[str, tuple[dict[str, object], float]] = {
    "thesven/Qwen2-7B-Instruct-awq": (
        QWEN2_72B | {
            "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
            "intermediate_size": 18944, "quantization_config": AWQ,
        },
        4.48 + 1.09,
    ),
    "Orion-zhen/QwQ-32B-Preview-AWQ": (
        QWEN2_72B | {
            "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 40, "intermediate_size": 27648,
            "quantization_config": AWQ,
        },
        4.96 + 4.99 + 4.96 + 4.42,
    ),
    "Qwen/Qwen2-72B-Instruct-GPTQ-Int4": (
        QWEN2_72B | {"quantization_config": GPTQ},
        3.94 + 3.92 + 4.00 + 4.00 + 3.92 + 4.00 + 4.00 + 3.92 + 4.00 + 3.46 + 2.49,
    ),
    "openai/gpt-oss-20b": (CONFIGS["openai/gpt-oss-20b"] | {"quantization_config": MXFP4}, 13.761264768),
    "openai/gpt-oss-120b": (CONFIGS["openai/gpt-oss-120b"] | {"quantization_config": MXFP4}, 65.248815744),
}  # fmt: skip
"""Quantised checkpoints: what their config.json says of shapes and quantisation, and GB of their safetensors files.

GB are sums of the files that huggingface.co lists in the repository, gpt-oss's the total_size of its
model.safetensors.index.json.
"""


@pytest.mark.parametrize("name", sorted(QUANTISED))
def test_a_quantised_checkpoint_takes_the_bytes_of_its_files(name: str) -> None:
    config, published_gb = QUANTISED[name]
    assert weight_bytes(dimensions_of_config(name, config)) / 1e9 == pytest.approx(published_gb, rel=0.02)
    if name in MODELS:
        assert weight_bytes(MODELS[name]) / 1e9 == pytest.approx(published_gb, rel=0.02)


def test_deepseek_v4_caches_a_million_tokens_in_what_vllm_states() -> None:
    """vLLM's post on DeepSeek-V4 states 9.62 GiB for V4-Pro with everything in 16 bits."""
    pro = MODELS["deepseek-ai/DeepSeek-V4-Pro"]
    assert pro.sparse is not None
    sixteen = replace(pro, sparse=replace(pro.sparse, key_bytes=256))
    assert kv_layout(sixteen).sequence_bytes(2**20) / 2**30 == pytest.approx(9.62, rel=0.005)


@given(st.sampled_from(sorted(PUBLISHED)), st.sampled_from([1, 2, 4, 8, 16]))
def test_a_worker_holds_a_sequence_at_least_once_and_at_most_once_per_gpu(name: str, degree: int) -> None:
    model = MODELS[name]
    if not model.splits(degree):
        return
    one, all_gpus = kv_layout(model), kv_layout(model, degree)
    for tokens in (1, 1000, 100_000):
        assert one.sequence_bytes(tokens) <= all_gpus.sequence_bytes(tokens) <= degree * one.sequence_bytes(tokens)
    if model.linear is not None:
        assert all_gpus.state == one.state  # heads of linear attention are divided
