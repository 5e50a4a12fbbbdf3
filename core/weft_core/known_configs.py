"""Configs of well-known models: the fields of their public ``config.json`` files that say how large they are.

Facts, nothing else, as ``hf_config`` reads them; what is written as an expression (``[...] * 12``) is a list there.
"""

from collections.abc import Mapping
from types import MappingProxyType

Config = Mapping[str, object]

_FP8: Config = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def _qwen_vision(width: int, depth: int, feed_forward: int, out: int, deep: list[int]) -> Config:
    return {
        "hidden_size": width, "depth": depth, "intermediate_size": feed_forward, "out_hidden_size": out,
        "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304,
        "deepstack_visual_indexes": deep,
    }  # fmt: skip


_DEEPSEEK_V3: Config = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1, "vocab_size": 129280, "quantization_config": _FP8,
}  # fmt: skip
_DEEPSEEK_V32 = {
    **_DEEPSEEK_V3, "model_type": "deepseek_v32", "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048,
}  # fmt: skip
_DEEPSEEK_V4: Config = {
    "model_type": "deepseek_v4", "head_dim": 512, "num_key_value_heads": 1, "qk_rope_head_dim": 64,
    "n_shared_experts": 1, "num_experts_per_tok": 6, "index_n_heads": 64, "index_head_dim": 128,
    "sliding_window": 128, "o_lora_rank": 1024, "vocab_size": 129280, "expert_dtype": "fp4",
    "num_nextn_predict_layers": 1, "quantization_config": _FP8,
}  # fmt: skip
_KIMI_INT4: Config = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
}
_KIMI_MXFP4: Config = {
    **_KIMI_INT4, "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 32}}},
}  # fmt: skip
_KIMI_K25: Config = {
    "model_type": "kimi_k25",
    "text_config": {
        **_DEEPSEEK_V3, "model_type": "kimi_k2", "num_attention_heads": 64, "num_key_value_heads": 64,
        "n_routed_experts": 384, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "vocab_size": 163840,
        "quantization_config": _KIMI_INT4,
    },
    "vision_config": {
        "vt_hidden_size": 1152, "vt_intermediate_size": 4304, "vt_num_hidden_layers": 27, "patch_size": 14,
    },
}  # fmt: skip
_KIMI_LINEAR: Config = {
    "model_type": "kimi_linear", "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "first_k_dense_replace": 1, "vocab_size": 163840,
}  # fmt: skip
_QWEN3_MOE: Config = {
    "model_type": "qwen3_moe", "head_dim": 128, "num_experts_per_tok": 8, "vocab_size": 151936,
}  # fmt: skip
_DELTA_NET: Config = {
    "head_dim": 256, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
}  # fmt: skip
_QWEN3_NEXT: Config = {
    **_DELTA_NET, "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16,
    "num_key_value_heads": 2, "linear_num_value_heads": 32, "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "intermediate_size": 5120,
    "vocab_size": 151936,
}  # fmt: skip


def _qwen3_5_moe(
    hidden: int, layers: int, heads: int, value_heads: int, width: int, experts: int, active: int
) -> Config:
    return {
        "model_type": "qwen3_5_moe",
        "text_config": {
            **_DELTA_NET, "model_type": "qwen3_5_moe_text", "mamba_ssm_dtype": "float32", "hidden_size": hidden,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 2,
            "linear_num_value_heads": value_heads, "moe_intermediate_size": width,
            "shared_expert_intermediate_size": width, "num_experts": experts, "num_experts_per_tok": active,
            "mtp_num_hidden_layers": 1, "vocab_size": 248320,
        },
        "vision_config": _qwen_vision(1152, 27, 4304, hidden, []),
    }  # fmt: skip


_QWEN3_5_27B: Config = {
    "model_type": "qwen3_5",
    "text_config": {
        **_DELTA_NET, "model_type": "qwen3_5_text", "mamba_ssm_dtype": "float32", "hidden_size": 5120,
        "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4,
        "linear_num_value_heads": 48, "intermediate_size": 17408, "mtp_num_hidden_layers": 1, "vocab_size": 248320,
    },
    "vision_config": _qwen_vision(1152, 27, 4304, 5120, []),
}  # fmt: skip
_QWEN3_5_35B = _qwen3_5_moe(2048, 40, 16, 32, 512, 256, 8)


def _qwen3_vl(hidden: int, layers: int, heads: int, kv_heads: int, feed_forward: int) -> Config:
    return {
        "model_type": "qwen3_vl",
        "text_config": {
            "model_type": "qwen3_vl_text", "hidden_size": hidden, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 128,
            "intermediate_size": feed_forward, "vocab_size": 151936,
        },
        "vision_config": _qwen_vision(1152, 27, 4304, hidden, [8, 16, 24]),
    }  # fmt: skip


def _qwen3_vl_moe(hidden: int, layers: int, heads: int, width: int) -> Config:
    return {
        "model_type": "qwen3_vl_moe",
        "text_config": {
            **_QWEN3_MOE, "model_type": "qwen3_vl_moe_text", "hidden_size": hidden, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": 4, "num_experts": 128, "moe_intermediate_size": width,
        },
        "vision_config": _qwen_vision(1152, 27, 4304, hidden, [8, 16, 24]),
    }  # fmt: skip


_GLM_5: Config = {
    "model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78, "num_attention_heads": 64,
    "num_key_value_heads": 64, "kv_lora_rank": 512, "q_lora_rank": 2048, "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64, "v_head_dim": 256, "intermediate_size": 12288, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3,
    "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "num_nextn_predict_layers": 1,
    "vocab_size": 154880,
}  # fmt: skip
_GLM_5_2: Config = {
    **_GLM_5,
    "indexer_types": ["full"] * 3 + ["shared", "shared", "shared", "full"] * 18 + ["shared"] * 3,
}
_MINIMAX_M2: Config = {
    "model_type": "minimax_m2", "hidden_size": 3072, "num_hidden_layers": 62, "num_attention_heads": 48,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 1536, "num_local_experts": 256,
    "num_experts_per_tok": 8, "vocab_size": 200064, "quantization_config": _FP8,
}  # fmt: skip
_MINIMAX_M3: Config = {
    "model_type": "minimax_m3_vl",
    "text_config": {
        "hidden_size": 6144, "num_hidden_layers": 60, "num_attention_heads": 64, "num_key_value_heads": 4,
        "head_dim": 128, "intermediate_size": 3072, "dense_intermediate_size": 12288, "n_shared_experts": 1,
        "num_local_experts": 128, "num_experts_per_tok": 4, "moe_layer_freq": [0] * 3 + [1] * 57,
        "num_nextn_predict_layers": 1, "vocab_size": 200064,
        "sparse_attention_config": {
            "sparse_index_dim": 128, "sparse_num_index_heads": 4, "sparse_topk_blocks": 16, "sparse_block_size": 128,
            "sparse_attention_freq": [0] * 3 + [1] * 57,
        },
    },
    "vision_config": {
        "hidden_size": 1280, "num_hidden_layers": 32, "intermediate_size": 5120, "patch_size": 14,
    },
}  # fmt: skip
_LLAMA_4: Config = {
    "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8,
    "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_experts_per_tok": 1,
    "attention_chunk_size": 8192, "vocab_size": 202048, "model_type": "llama4_text",
}  # fmt: skip
_GEMMA_4: Config = {
    "model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": True,
    "sliding_window": 1024, "vocab_size": 262144,
}  # fmt: skip
_GEMMA_4_E: Config = {
    "model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512, "num_attention_heads": 8,
    "sliding_window": 512, "hidden_size_per_layer_input": 256, "vocab_size": 262144,
}  # fmt: skip
_GEMMA_4_E_ENCODERS: Config = {
    "vision_config": {
        "model_type": "gemma4_vision", "hidden_size": 768, "num_hidden_layers": 16, "intermediate_size": 3072,
        "patch_size": 16, "position_embedding_size": 10240,
    },
    "audio_config": {"model_type": "gemma4_audio", "hidden_size": 1024, "num_hidden_layers": 12},
}  # fmt: skip
_GEMMA_3N: Config = {
    "model_type": "gemma3n_text", "hidden_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 256, "sliding_window": 512, "hidden_size_per_layer_input": 256, "vocab_size": 262400,
}  # fmt: skip
_GEMMA_3N_ENCODERS: Config = {
    "vision_config": {"model_type": "gemma3n_vision"},
    "audio_config": {"model_type": "gemma3n_audio", "hidden_size": 1536, "conf_num_hidden_layers": 12},
}
_GEMMA_4_VISION: Config = {
    "model_type": "gemma4_vision", "hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304,
    "patch_size": 16,
}  # fmt: skip
_GEMMA_3_VISION: Config = {
    "hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304, "patch_size": 14, "image_size": 896,
}  # fmt: skip
_NEMOTRON_3: Config = {
    "model_type": "nemotron_h", "head_dim": 128, "num_key_value_heads": 2, "mamba_head_dim": 64, "n_groups": 8,
    "ssm_state_size": 128, "conv_kernel": 4, "mamba_ssm_cache_dtype": "float32", "vocab_size": 131072,
}  # fmt: skip
_SUPER = "MEMEMEM*" + "EMEMEMEM*" * 2 + "EMEMEMEMEM*" * 4 + "EMEMEMEM*EMEMEMEME"
_ULTRA = "MEMEMEM*EMEMEM*EMEMEMEM*" + "EMEMEMEM*EMEMEM*EMEMEMEM*" * 3 + "EMEMEMEME"
_MIMO_V2: Config = {
    "hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4,
    "head_dim": 192, "v_head_dim": 128, "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128,
    "sliding_window": 128, "hybrid_layer_pattern": [0, 1, 1, 1, 1] + [0, 1, 1, 1, 1, 1] * 7 + [0],
    "moe_layer_freq": [0] + [1] * 47, "intermediate_size": 16384, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "vocab_size": 152576, "quantization_config": _FP8,
}  # fmt: skip

KNOWN_CONFIGS: Mapping[str, Config] = MappingProxyType(
    {
        "deepseek-ai/DeepSeek-V3.1": _DEEPSEEK_V3,
        "deepseek-ai/DeepSeek-V3.2": _DEEPSEEK_V32,
        "deepseek-ai/DeepSeek-V4-Flash": {
            **_DEEPSEEK_V4, "hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64,
            "q_lora_rank": 1024, "o_groups": 8, "moe_intermediate_size": 2048, "n_routed_experts": 256,
            "index_topk": 512, "compress_ratios": [0, 0] + [4, 128] * 20 + [4],
        },
        "deepseek-ai/DeepSeek-V4-Pro": {
            **_DEEPSEEK_V4, "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
            "q_lora_rank": 1536, "o_groups": 16, "moe_intermediate_size": 3072, "n_routed_experts": 384,
            "index_topk": 1024, "compress_ratios": [128, 128] + [4, 128] * 29 + [4],
        },
        "moonshotai/Kimi-K2.5": _KIMI_K25,
        "moonshotai/Kimi-K2.6": _KIMI_K25,
        "moonshotai/Kimi-K2.7-Code": _KIMI_K25,
        "moonshotai/Kimi-K3": {
            "model_type": "kimi_k3",
            "text_config": {
                **_KIMI_LINEAR, "hidden_size": 7168, "num_hidden_layers": 93, "num_attention_heads": 96,
                "num_key_value_heads": 96, "q_lora_rank": 1536, "mla_use_output_gate": True,
                "intermediate_size": 33792, "moe_intermediate_size": 3072, "routed_expert_hidden_size": 3584,
                "num_experts": 896, "num_experts_per_token": 16, "num_shared_experts": 2,
                "linear_attn_config": {
                    "kda_layers": [i for i in range(1, 93) if i % 4], "num_heads": 96, "head_dim": 128,
                    "short_conv_kernel_size": 4, "use_full_rank_gate": True,
                },
                "quantization_config": _KIMI_MXFP4,
            },
            "vision_config": {
                "vt_hidden_size": 1024, "vt_intermediate_size": 4096, "vt_num_hidden_layers": 27,
                "qkv_hidden_size": 1536, "patch_size": 14,
            },
        },
        "moonshotai/Kimi-Linear-48B-A3B-Instruct": {
            **_KIMI_LINEAR, "hidden_size": 2304, "num_hidden_layers": 27, "num_attention_heads": 32,
            "num_key_value_heads": 32, "q_lora_rank": None, "intermediate_size": 9216, "moe_intermediate_size": 1024,
            "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1,
            "linear_attn_config": {
                "kda_layers": [i for i in range(1, 27) if i % 4], "num_heads": 32, "head_dim": 128,
                "short_conv_kernel_size": 4,
            },
        },
        "Qwen/Qwen3-30B-A3B-Instruct-2507": {
            **_QWEN3_MOE, "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
            "num_key_value_heads": 4, "num_experts": 128, "moe_intermediate_size": 768,
        },
        "Qwen/Qwen3-235B-A22B-Instruct-2507": {
            **_QWEN3_MOE, "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
            "num_key_value_heads": 4, "num_experts": 128, "moe_intermediate_size": 1536,
        },
        "Qwen/Qwen3-Coder-480B-A35B-Instruct": {
            **_QWEN3_MOE, "hidden_size": 6144, "num_hidden_layers": 62, "num_attention_heads": 96,
            "num_key_value_heads": 8, "num_experts": 160, "moe_intermediate_size": 2560,
        },
        "Qwen/Qwen3-Next-80B-A3B-Instruct": _QWEN3_NEXT,
        "Qwen/Qwen3-VL-8B-Instruct": _qwen3_vl(4096, 36, 32, 8, 12288),
        "Qwen/Qwen3-VL-30B-A3B-Instruct": _qwen3_vl_moe(2048, 48, 32, 768),
        "Qwen/Qwen3-VL-32B-Instruct": _qwen3_vl(5120, 64, 64, 8, 25600),
        "Qwen/Qwen3-VL-235B-A22B-Instruct": _qwen3_vl_moe(4096, 94, 64, 1536),
        "Qwen/Qwen3.5-27B": _QWEN3_5_27B,
        "Qwen/Qwen3.5-35B-A3B": _QWEN3_5_35B,
        "Qwen/Qwen3.5-122B-A10B": _qwen3_5_moe(3072, 48, 32, 64, 1024, 256, 8),
        "Qwen/Qwen3.5-397B-A17B": _qwen3_5_moe(4096, 60, 32, 64, 1024, 512, 10),
        "Qwen/Qwen3.6-27B": _QWEN3_5_27B,
        "Qwen/Qwen3.6-35B-A3B": _QWEN3_5_35B,
        "zai-org/GLM-4.7-Flash": {
            **_GLM_5, "model_type": "glm4_moe_lite", "hidden_size": 2048, "num_hidden_layers": 47,
            "num_attention_heads": 20, "num_key_value_heads": 20, "q_lora_rank": 768, "intermediate_size": 10240,
            "moe_intermediate_size": 1536, "n_routed_experts": 64, "num_experts_per_tok": 4,
            "first_k_dense_replace": 1,
        },
        "zai-org/GLM-5": _GLM_5,
        "zai-org/GLM-5-FP8": {**_GLM_5, "quantization_config": _FP8},
        "zai-org/GLM-5.1": _GLM_5,
        "zai-org/GLM-5.1-FP8": {**_GLM_5, "quantization_config": _FP8},
        "zai-org/GLM-5.2": _GLM_5_2,
        "zai-org/GLM-5.2-FP8": {**_GLM_5_2, "quantization_config": _FP8},
        "zai-org/GLM-5.3": _GLM_5_2,
        "zai-org/GLM-5.3-FP8": {**_GLM_5_2, "quantization_config": _FP8},
        "MiniMaxAI/MiniMax-Text-01": {
            "model_type": "minimax_text_01", "hidden_size": 6144, "num_hidden_layers": 80, "num_attention_heads": 64,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9216, "num_local_experts": 32,
            "num_experts_per_tok": 2, "attn_type_list": ([0] * 7 + [1]) * 10, "vocab_size": 200064,
        },
        "MiniMaxAI/MiniMax-M2.5": _MINIMAX_M2,
        "MiniMaxAI/MiniMax-M2.7": _MINIMAX_M2,
        "MiniMaxAI/MiniMax-M3": _MINIMAX_M3,
        "meta-llama/Llama-4-Scout-17B-16E-Instruct": {**_LLAMA_4, "num_local_experts": 16},
        "meta-llama/Llama-4-Maverick-17B-128E-Instruct": {
            **_LLAMA_4, "num_local_experts": 128, "interleave_moe_layer_step": 2,
        },
        "google/gemma-3-12b-it": {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text", "hidden_size": 3840, "num_hidden_layers": 48, "num_attention_heads": 16,
                "num_key_value_heads": 8, "intermediate_size": 15360, "sliding_window": 1024,
            },
            "vision_config": _GEMMA_3_VISION,
        },
        "google/gemma-3-27b-it": {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 62, "num_attention_heads": 32,
                "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 21504, "sliding_window": 1024,
            },
            "vision_config": _GEMMA_3_VISION,
        },
        "google/gemma-3n-E2B-it": {
            "model_type": "gemma3n",
            "text_config": {
                **_GEMMA_3N, "num_hidden_layers": 30, "intermediate_size": 8192, "num_kv_shared_layers": 10,
            },
            **_GEMMA_3N_ENCODERS,
        },
        "google/gemma-3n-E4B-it": {
            "model_type": "gemma3n",
            "text_config": {
                **_GEMMA_3N, "num_hidden_layers": 35, "intermediate_size": 16384, "num_kv_shared_layers": 15,
            },
            **_GEMMA_3N_ENCODERS,
        },
        "google/gemma-4-E2B-it": {
            "model_type": "gemma4",
            "text_config": {
                **_GEMMA_4_E, "hidden_size": 1536, "num_hidden_layers": 35, "num_key_value_heads": 1,
                "intermediate_size": 6144, "num_kv_shared_layers": 20, "use_double_wide_mlp": True,
                "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
            },
            **_GEMMA_4_E_ENCODERS,
        },
        "google/gemma-4-E4B-it": {
            "model_type": "gemma4",
            "text_config": {
                **_GEMMA_4_E, "hidden_size": 2560, "num_hidden_layers": 42, "num_key_value_heads": 2,
                "intermediate_size": 10240, "num_kv_shared_layers": 18,
            },
            **_GEMMA_4_E_ENCODERS,
        },
        "google/gemma-4-26B-A4B-it": {
            "model_type": "gemma4",
            "text_config": {
                **_GEMMA_4, "hidden_size": 2816, "num_hidden_layers": 30, "num_attention_heads": 16,
                "num_key_value_heads": 8, "num_global_key_value_heads": 2, "intermediate_size": 2112,
                "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
            },
            "vision_config": _GEMMA_4_VISION,
        },
        "google/gemma-4-31B-it": {
            "model_type": "gemma4",
            "text_config": {
                **_GEMMA_4, "hidden_size": 5376, "num_hidden_layers": 60, "num_attention_heads": 32,
                "num_key_value_heads": 16, "num_global_key_value_heads": 4, "intermediate_size": 21504,
            },
            "vision_config": _GEMMA_4_VISION,
        },
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": {
            **_NEMOTRON_3, "hidden_size": 2688, "num_attention_heads": 32, "mamba_num_heads": 64,
            "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_routed_experts": 128,
            "num_experts_per_tok": 6,
            "hybrid_override_pattern": "MEMEM*" + "EMEMEM*" * 4 + "EMEMEMEM*EMEMEMEME",
        },
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": {
            **_NEMOTRON_3, "hidden_size": 4096, "num_attention_heads": 32, "mamba_num_heads": 128,
            "moe_intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376, "moe_latent_size": 1024,
            "n_routed_experts": 512, "num_experts_per_tok": 22, "num_nextn_predict_layers": 1,
            "hybrid_override_pattern": _SUPER,
        },
        "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": {
            **_NEMOTRON_3, "hidden_size": 8192, "num_attention_heads": 64, "mamba_num_heads": 256,
            "moe_intermediate_size": 5120, "moe_shared_expert_intermediate_size": 10240, "moe_latent_size": 2048,
            "n_routed_experts": 512, "num_experts_per_tok": 22, "num_nextn_predict_layers": 1,
            "hybrid_override_pattern": _ULTRA,
        },
        "XiaomiMiMo/MiMo-V2-Flash": {**_MIMO_V2, "model_type": "mimo_v2_flash"},
        "XiaomiMiMo/MiMo-V2.5": {
            **_MIMO_V2, "model_type": "mimo_v2",
            "quantization_config": {
                **_FP8, "ignored_layers": [f"model.layers.{i}.self_attn.o_proj" for i in range(48)],
            },
            "vision_config": {
                "hidden_size": 1280, "depth": 28, "intermediate_size": 4608, "out_hidden_size": 4096,
                "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2,
            },
        },
    }
)  # fmt: skip
"""Configs by the Hugging Face name of their model."""
