"""What a Hugging Face ``model_type`` implies beyond the fields of its ``config.json``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Windows = Literal["none", "all", "switched", "pattern"]


@dataclass(frozen=True, slots=True)
class Family:
    """How to read one family's config; the names of fields are those of Llama's config unless ``renamed``.

    * ``matrices``: 3 for a gated feed-forward, 2 for a plain one; ``tied``: what an absent tie_word_embeddings means.
    * ``experts``: the field that holds the number of routed experts, empty for dense families; ``expert_width``: the
      field of their width.
    * ``windows``: no layer has a sliding window, all have, those from max_window_layers on where use_sliding_window
      says so, or all but each ``pattern``-th.
    * ``positions``: learned position embeddings beyond max_position_embeddings, None where there are none.
    * ``every_head``: an absent num_key_value_heads means one per head; elsewhere it must be given.
    * ``defaults``: fields that the family's own configs leave out.
    """

    matrices: int = 3
    tied: bool = False
    experts: str = ""
    expert_width: str = "moe_intermediate_size"
    windows: Windows = "none"
    pattern: int = 0
    latent: bool = False
    positions: int | None = None
    every_head: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)


_GEMMA3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "sliding_window": 4096,
}
_CHATGLM = {
    "num_hidden_layers": "num_layers",
    "intermediate_size": "ffn_hidden_size",
    "vocab_size": "padded_vocab_size",
    "num_key_value_heads": "multi_query_group_num",
    "head_dim": "kv_channels",
}
_GPT2 = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}
_QWEN2 = Family(windows="switched")
_QWEN_MOE = Family(windows="switched", experts="num_experts")
_DEEPSEEK = Family(latent=True, experts="n_routed_experts", every_head=True)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(every_head=True),
        "mistral": Family(windows="all"),
        "mixtral": Family(windows="all", experts="num_local_experts", expert_width="intermediate_size"),
        "qwen2": _QWEN2,
        "qwen2_vl": _QWEN2,
        "qwen2_vl_text": _QWEN2,
        "qwen2_5_vl": _QWEN2,
        "qwen2_5_vl_text": _QWEN2,
        "qwen2_moe": _QWEN_MOE,
        "qwen3": _QWEN2,
        "qwen3_vl_text": _QWEN2,
        "qwen3_moe": _QWEN_MOE,
        "qwen3_vl_moe_text": _QWEN_MOE,
        "gemma": Family(tied=True),
        "gemma2": Family(tied=True, windows="pattern", pattern=2),
        "gemma3_text": Family(tied=True, windows="pattern", pattern=6, defaults=_GEMMA3),
        "phi3": Family(windows="all", every_head=True),
        "phimoe": Family(windows="all", experts="num_local_experts", expert_width="intermediate_size"),
        "deepseek_v2": _DEEPSEEK,
        "deepseek_v3": _DEEPSEEK,
        "kimi_k2": _DEEPSEEK,
        "glm": Family(),
        "glm4": Family(),
        "glm4_moe": Family(experts="n_routed_experts"),
        "chatglm": Family(renamed=_CHATGLM),
        "gpt_oss": Family(windows="pattern", pattern=2, experts="num_local_experts", expert_width="intermediate_size"),
        "opt": Family(matrices=2, tied=True, positions=2, every_head=True, renamed={"intermediate_size": "ffn_dim"}),
        "gpt_neox": Family(matrices=2, every_head=True),
        "gpt_bigcode": Family(matrices=2, tied=True, positions=0, every_head=True, renamed=_GPT2),
    }
)
"""The families that Weft reads, by ``model_type``."""
