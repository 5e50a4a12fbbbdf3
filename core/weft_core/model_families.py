"""What a Hugging Face ``model_type`` implies beyond the fields of its ``config.json``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Windows = Literal["none", "all", "switched", "pattern", "chunks", "listed"]
Linear = Literal["none", "delta-net", "delta-attention", "lightning", "mamba2"]
Sparse = Literal["none", "tokens", "blocks"]
OtherHeads = Literal["none", "swa", "global"]


@dataclass(frozen=True, slots=True)
class Family:
    """How to read one family's config; the names of fields are those of Llama's config unless ``renamed``.

    * ``matrices``: 3 for a gated feed-forward, 2 for a plain one; ``tied``: what an absent tie_word_embeddings means.
    * ``experts``: the field that holds the number of routed experts, empty for dense families; ``expert_width``: the
      field of their width, ``dense_width`` that of layers without experts. ``shared_width``: the field of the width of
      all shared experts, empty: n_shared_experts times the width of a routed one. ``expert_hidden``: the field of the
      width of what routed experts read and write, empty: hidden_size. ``sometimes``: some models have no experts.
    * ``windows``: no layer has a sliding window, all have, those from max_window_layers on where use_sliding_window
      says so, all but each ``pattern``-th, all but each ``pattern``-th attend in chunks, or those that
      hybrid_layer_pattern marks. ``other_heads``: whether layers with a window have heads of their own, named swa_*,
      or those without one, named global_*.
    * ``latent``, ``sparse``, ``compressed``: the kinds of attention of DeepSeek-V2, V3.2 (``blocks``: MiniMax-M3), V4.
    * ``linear``: the kind of the layers with linear attention.
    * ``gated_output``: attention has a gate for its output.
    * ``positions``: learned position embeddings beyond max_position_embeddings, None where there are none.
    * ``every_head``: an absent num_key_value_heads means one per head; elsewhere it must be given.
    * ``defaults``: fields that the family's own configs leave out.
    """

    matrices: int = 3
    tied: bool = False
    experts: str = ""
    expert_width: str = "moe_intermediate_size"
    dense_width: str = "intermediate_size"
    shared_width: str = ""
    expert_hidden: str = ""
    sometimes: bool = False
    windows: Windows = "none"
    pattern: int = 0
    other_heads: OtherHeads = "none"
    latent: bool = False
    sparse: Sparse = "none"
    compressed: bool = False
    linear: Linear = "none"
    gated_output: bool = False
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
_GEMMA4 = Family(
    tied=True,
    experts="num_experts",
    shared_width="intermediate_size",
    sometimes=True,
    windows="pattern",
    pattern=6,
    other_heads="global",
    renamed={"num_experts_per_tok": "top_k_experts"},
)
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
_KIMI_LINEAR = {"num_experts_per_tok": "num_experts_per_token", "n_shared_experts": "num_shared_experts"}
_NEMOTRON_H = Family(
    matrices=2,
    experts="n_routed_experts",
    shared_width="moe_shared_expert_intermediate_size",
    expert_hidden="moe_latent_size",
    sometimes=True,
    linear="mamba2",
)
_QWEN2 = Family(windows="switched")
_QWEN_MOE = Family(windows="switched", experts="num_experts")
_DEEPSEEK = Family(latent=True, experts="n_routed_experts", every_head=True)
_DEEPSEEK_SPARSE = Family(latent=True, experts="n_routed_experts", every_head=True, sparse="tokens")
_GLM_MOE = Family(experts="n_routed_experts")
_MINIMAX_01 = Family(experts="num_local_experts", expert_width="intermediate_size", linear="lightning")
_MINIMAX_M3 = Family(
    experts="num_local_experts",
    expert_width="intermediate_size",
    dense_width="dense_intermediate_size",
    sparse="blocks",
)
# Checkpoints have next-token-prediction layers that the config does not name; engines take the first one.
_ONE_PREDICTION_LAYER = {"num_nextn_predict_layers": 1}
_MIMO_V2 = Family(experts="n_routed_experts", windows="listed", other_heads="swa", defaults=_ONE_PREDICTION_LAYER)
_QWEN_35 = {"num_nextn_predict_layers": "mtp_num_hidden_layers"}

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(every_head=True),
        "llama4_text": Family(
            experts="num_local_experts",
            expert_width="intermediate_size",
            dense_width="intermediate_size_mlp",
            windows="chunks",
            pattern=4,
            defaults={"n_shared_experts": 1},
        ),
        "mistral": Family(windows="all"),
        "ministral3": Family(windows="all"),
        "mistral4": _DEEPSEEK,
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
        "qwen3_next": Family(
            experts="num_experts", linear="delta-net", gated_output=True, defaults=_ONE_PREDICTION_LAYER
        ),
        "qwen3_5_text": Family(linear="delta-net", gated_output=True, renamed=_QWEN_35),
        "qwen3_5_moe_text": Family(experts="num_experts", linear="delta-net", gated_output=True, renamed=_QWEN_35),
        "gemma": Family(tied=True),
        "gemma2": Family(tied=True, windows="pattern", pattern=2),
        "gemma3_text": Family(tied=True, windows="pattern", pattern=6, defaults=_GEMMA3),
        "gemma3n_text": Family(tied=True, windows="pattern", pattern=5),
        "gemma4_text": _GEMMA4,
        "phi3": Family(windows="all", every_head=True),
        "phimoe": Family(windows="all", experts="num_local_experts", expert_width="intermediate_size"),
        "deepseek_v2": _DEEPSEEK,
        "deepseek_v3": _DEEPSEEK,
        "deepseek_v32": _DEEPSEEK_SPARSE,
        "deepseek_v4": Family(experts="n_routed_experts", compressed=True, sparse="tokens"),
        "kimi_k2": _DEEPSEEK,
        "kimi_linear": Family(
            latent=True,
            experts="num_experts",
            every_head=True,
            expert_hidden="routed_expert_hidden_size",
            linear="delta-attention",
            renamed=_KIMI_LINEAR,
        ),
        "glm": Family(),
        "glm4": Family(),
        "glm4_moe": _GLM_MOE,
        "glm4v_moe_text": _GLM_MOE,
        "glm4_moe_lite": _DEEPSEEK,
        "glm_moe_dsa": _DEEPSEEK_SPARSE,
        "chatglm": Family(renamed=_CHATGLM),
        "minimax": _MINIMAX_01,
        "minimax_text_01": _MINIMAX_01,
        "minimax_m1": _MINIMAX_01,
        "minimax_m2": Family(experts="num_local_experts", expert_width="intermediate_size"),
        "minimax_m3": _MINIMAX_M3,
        "minimax_m3_vl": _MINIMAX_M3,
        "mimo": _QWEN2,
        "mimo_v2": _MIMO_V2,
        "mimo_v2_flash": _MIMO_V2,
        "nemotron_h": _NEMOTRON_H,
        "gpt_oss": Family(windows="pattern", pattern=2, experts="num_local_experts", expert_width="intermediate_size"),
        "opt": Family(matrices=2, tied=True, positions=2, every_head=True, renamed={"intermediate_size": "ffn_dim"}),
        "gpt_neox": Family(matrices=2, every_head=True),
        "gpt_bigcode": Family(matrices=2, tied=True, positions=0, every_head=True, renamed=_GPT2),
    }
)
"""The families that Weft reads, by ``model_type``."""
