"""Dimensions of language models, and how many bytes and operations follow from them.

The facts are those of each model's public ``config.json``. Every model here is a decoder-only transformer
with grouped-query attention and a gated feed-forward (three matrices), dense or mixture of experts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ModelDimensions:
    """What a cost model must know of a model; ``intermediate`` is one expert's width where there are experts."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    experts: int = 1
    active_experts: int = 1
    tied_embeddings: bool = False
    dtype_bytes: int = 2
    kv_dtype_bytes: int = 2

    @property
    def attention_params(self) -> int:
        """Return the weights of all query, key, value and output projections."""
        per_layer = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * per_layer

    @property
    def expert_params(self) -> int:
        """Return the feed-forward weights of all layers, all experts counted."""
        return self.layers * self.experts * 3 * self.hidden * self.intermediate

    @property
    def embedding_params(self) -> int:
        """Return the weights of the token embedding and of the output head, one matrix when they are tied."""
        return (1 if self.tied_embeddings else 2) * self.vocab * self.hidden

    @property
    def router_params(self) -> int:
        """Return the weights that choose experts; a dense model has none."""
        return self.layers * self.hidden * self.experts if self.experts > 1 else 0

    @property
    def params(self) -> int:
        """Return all weights (norms and biases, under 0.1 percent, are left out)."""
        return self.attention_params + self.expert_params + self.embedding_params + self.router_params

    @property
    def active_params(self) -> int:
        """Return the weights that one token is multiplied with, embeddings left out."""
        chosen = self.expert_params * self.active_experts // self.experts
        return self.attention_params + chosen + self.router_params

    @property
    def weight_bytes(self) -> int:
        """Return the memory that all weights take."""
        return self.params * self.dtype_bytes

    @property
    def expert_bytes(self) -> int:
        """Return the memory of the experts; 0 for a dense model, which reads all its weights in every step."""
        return self.expert_params * self.dtype_bytes if self.experts > 1 else 0

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the KV cache of one token: 2 (key and value) x layers x kv_heads x head_dim x bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_dtype_bytes

    def kv_copies(self, degree: int) -> float:
        """Return how often tensor parallelism stores each KV head: more than once when GPUs outnumber KV heads."""
        return max(1.0, degree / self.kv_heads)

    def splits(self, degree: int) -> bool:
        """Tell whether tensor parallelism over ``degree`` GPUs is possible: heads divide, KV heads divide or repeat."""
        return self.heads % degree == 0 and (self.kv_heads % degree == 0 or degree % self.kv_heads == 0)


def _catalogue(*models: ModelDimensions) -> Mapping[str, ModelDimensions]:
    return MappingProxyType({model.name: model for model in models})


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
)
"""Well-known models by their Hugging Face name."""
