"""Well-known models as facts: the dimensions that their public ``config.json`` files give.

Models with nothing but heads, experts and latents stand here; the others are read from their ``known_configs``.
"""

from collections.abc import Mapping
from types import MappingProxyType

from weft_core.dimensions import LatentAttention, ModelDimensions
from weft_core.hf_config import dimensions_of_config
from weft_core.known_configs import KNOWN_CONFIGS
from weft_core.quantization import FP8_BLOCKS_BYTES as FP8_BLOCKS
from weft_core.quantization import MXFP4_BYTES

__all__ = ["MODELS", "ModelDimensions"]


def _catalogue(*models: ModelDimensions) -> Mapping[str, ModelDimensions]:
    return MappingProxyType({model.name: model for model in models})


V3_LATENT = LatentAttention(kv_rank=512, rope_dim=64, nope_dim=128, value_dim=128, query_rank=1536)


def _deepseek_v3(name: str) -> ModelDimensions:
    return ModelDimensions(
        name, 61, 7168, 128, 128, 128, 2048, 129280,
        experts=256, active_experts=8, shared_intermediate=2048, dense_layers=3, dense_intermediate=18432,
        latent=V3_LATENT, attention_bytes=FP8_BLOCKS, ffn_bytes=FP8_BLOCKS, eight_bit_products=True,
        prediction_layers=1,
    )  # fmt: skip


MODELS: Mapping[str, ModelDimensions] = _catalogue(
    ModelDimensions("meta-llama/Llama-3.2-1B-Instruct", 16, 2048, 32, 8, 64, 8192, 128256, tied_embeddings=True),
    ModelDimensions("meta-llama/Llama-3.2-3B-Instruct", 28, 3072, 24, 8, 128, 8192, 128256, tied_embeddings=True),
    ModelDimensions("meta-llama/Llama-3.1-8B-Instruct", 32, 4096, 32, 8, 128, 14336, 128256),
    ModelDimensions("meta-llama/Llama-3.1-70B-Instruct", 80, 8192, 64, 8, 128, 28672, 128256),
    ModelDimensions("meta-llama/Llama-3.3-70B-Instruct", 80, 8192, 64, 8, 128, 28672, 128256),
    ModelDimensions("meta-llama/Llama-3.1-405B-Instruct", 126, 16384, 128, 8, 128, 53248, 128256),
    ModelDimensions("Qwen/Qwen2.5-7B-Instruct", 28, 3584, 28, 4, 128, 18944, 152064),
    ModelDimensions("Qwen/Qwen2.5-72B-Instruct", 80, 8192, 64, 8, 128, 29568, 152064),
    ModelDimensions("Qwen/Qwen3-8B", 36, 4096, 32, 8, 128, 12288, 151936),
    ModelDimensions("Qwen/Qwen3-14B", 40, 5120, 40, 8, 128, 17408, 151936),
    ModelDimensions("Qwen/Qwen3-32B", 64, 5120, 64, 8, 128, 25600, 151936),
    ModelDimensions("Qwen/Qwen3-30B-A3B", 48, 2048, 32, 4, 128, 768, 151936, experts=128, active_experts=8),
    ModelDimensions("Qwen/Qwen3-235B-A22B", 94, 4096, 64, 4, 128, 1536, 151936, experts=128, active_experts=8),
    ModelDimensions("mistralai/Mistral-7B-Instruct-v0.3", 32, 4096, 32, 8, 128, 14336, 32768),
    ModelDimensions("mistralai/Mistral-Small-24B-Instruct-2501", 40, 5120, 32, 8, 128, 32768, 131072),
    ModelDimensions(
        "mistralai/Mixtral-8x7B-Instruct-v0.1", 32, 4096, 32, 8, 128, 14336, 32000, experts=8, active_experts=2
    ),
    ModelDimensions(
        "mistralai/Mixtral-8x22B-Instruct-v0.1", 56, 6144, 48, 8, 128, 16384, 32768, experts=8, active_experts=2
    ),
    ModelDimensions(
        "openai/gpt-oss-20b", 24, 2880, 64, 8, 64, 2880, 201088,
        experts=32, active_experts=4, windowed_layers=12, window=128, ffn_bytes=MXFP4_BYTES,
    ),
    ModelDimensions(
        "openai/gpt-oss-120b", 36, 2880, 64, 8, 64, 2880, 201088,
        experts=128, active_experts=4, windowed_layers=18, window=128, ffn_bytes=MXFP4_BYTES,
    ),
    ModelDimensions("microsoft/phi-4", 40, 5120, 40, 10, 128, 17920, 100352),
    ModelDimensions(
        "google/gemma-2-9b-it", 42, 3584, 16, 8, 256, 14336, 256000,
        tied_embeddings=True, windowed_layers=21, window=4096,
    ),
    ModelDimensions(
        "deepseek-ai/DeepSeek-V2-Lite-Chat", 27, 2048, 16, 16, 128, 1408, 102400,
        experts=64, active_experts=6, shared_intermediate=2816, dense_layers=1, dense_intermediate=10944,
        latent=LatentAttention(kv_rank=512, rope_dim=64, nope_dim=128, value_dim=128),
    ),
    _deepseek_v3("deepseek-ai/DeepSeek-V3"),
    _deepseek_v3("deepseek-ai/DeepSeek-R1"),
    ModelDimensions(
        "moonshotai/Kimi-K2-Instruct", 61, 7168, 64, 64, 128, 2048, 163840,
        experts=384, active_experts=8, shared_intermediate=2048, dense_layers=1, dense_intermediate=18432,
        latent=V3_LATENT, attention_bytes=FP8_BLOCKS, ffn_bytes=FP8_BLOCKS, eight_bit_products=True,
    ),
    ModelDimensions(
        "zai-org/GLM-4.5", 92, 5120, 96, 8, 128, 1536, 151552,
        experts=160, active_experts=8, shared_intermediate=1536, dense_layers=3, dense_intermediate=12288,
        prediction_layers=1,
    ),
    ModelDimensions(
        "zai-org/GLM-4.5-Air", 46, 4096, 96, 8, 128, 1408, 151552,
        experts=128, active_experts=8, shared_intermediate=1408, dense_layers=1, dense_intermediate=10944,
        prediction_layers=1,
    ),
    *(dimensions_of_config(name, config) for name, config in KNOWN_CONFIGS.items()),
)  # fmt: skip
"""Well-known models by their Hugging Face name, at the precision of their published weights."""
