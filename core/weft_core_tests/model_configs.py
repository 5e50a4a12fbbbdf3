"""The fields of well-known models' public ``config.json`` files that say how large the models are: facts, nothing else.

Values that a published file leaves out are left out here too.
"""

LLAMA: dict[str, object] = {"model_type": "llama", "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
QWEN2: dict[str, object] = {
    "model_type": "qwen2",
    "sliding_window": 131072,
    "use_sliding_window": False,
    "max_window_layers": 28,
    "tie_word_embeddings": False,
}
QWEN3: dict[str, object] = {
    "model_type": "qwen3",
    "head_dim": 128,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
DEEPSEEK: dict[str, object] = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_layer_freq": 1,
    "tie_word_embeddings": False,
}
FP8_BLOCKS: dict[str, object] = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
DEEPSEEK_V3: dict[str, object] = DEEPSEEK | {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
    "quantization_config": FP8_BLOCKS,
}
GEMMA3_VISION: dict[str, object] = {
    "hidden_size": 1152,
    "image_size": 896,
    "intermediate_size": 4304,
    "model_type": "siglip_vision_model",
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
}
GPT_OSS: dict[str, object] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "experts_per_token": 4,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "vocab_size": 201088,
    "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    },
}


def _sizes(layers: int, hidden: int, heads: int, kv_heads: int, width: int, vocab: int) -> dict[str, object]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": width,
        "vocab_size": vocab,
    }


CONFIGS: dict[str, dict[str, object]] = {
    "meta-llama/Llama-3.2-1B-Instruct": LLAMA
    | _sizes(16, 2048, 32, 8, 8192, 128256)
    | {"head_dim": 64, "tie_word_embeddings": True},
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA | _sizes(32, 4096, 32, 8, 14336, 128256),
    "meta-llama/Llama-3.1-70B-Instruct": LLAMA | _sizes(80, 8192, 64, 8, 28672, 128256),
    "meta-llama/Llama-3.1-405B-Instruct": LLAMA | _sizes(126, 16384, 128, 8, 53248, 128256),
    "mistralai/Mistral-7B-Instruct-v0.3": _sizes(32, 4096, 32, 8, 14336, 32768)
    | {"model_type": "mistral", "sliding_window": None, "tie_word_embeddings": False},
    "mistralai/Mistral-Small-24B-Instruct-2501": _sizes(40, 5120, 32, 8, 32768, 131072)
    | {"model_type": "mistral", "head_dim": 128, "sliding_window": None, "tie_word_embeddings": False},
    "mistralai/Mixtral-8x7B-Instruct-v0.1": _sizes(32, 4096, 32, 8, 14336, 32000)
    | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    "Qwen/Qwen2.5-7B-Instruct": QWEN2 | _sizes(28, 3584, 28, 4, 18944, 152064),
    "Qwen/Qwen2.5-72B-Instruct": QWEN2 | _sizes(80, 8192, 64, 8, 29568, 152064) | {"max_window_layers": 70},
    "Qwen/Qwen3-8B": QWEN3 | _sizes(36, 4096, 32, 8, 12288, 151936),
    "Qwen/Qwen3-32B": QWEN3 | _sizes(64, 5120, 64, 8, 25600, 151936),
    "Qwen/Qwen3-30B-A3B": QWEN3
    | _sizes(48, 2048, 32, 4, 6144, 151936)
    | {
        "model_type": "qwen3_moe",
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "microsoft/phi-4": _sizes(40, 5120, 40, 10, 17920, 100352)
    | {"model_type": "phi3", "sliding_window": None, "tie_word_embeddings": False},
    "google/gemma-2-9b-it": _sizes(42, 3584, 16, 8, 14336, 256000)
    | {"model_type": "gemma2", "head_dim": 256, "sliding_window": 4096},
    "google/gemma-3-12b-it": {
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 3840,
            "intermediate_size": 15360,
            "model_type": "gemma3_text",
            "num_attention_heads": 16,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "sliding_window": 1024,
        },
        "torch_dtype": "bfloat16",
        "vision_config": GEMMA3_VISION,
    },
    "google/gemma-3-27b-it": {
        "model_type": "gemma3",
        "text_config": {
            "head_dim": 128,
            "hidden_size": 5376,
            "intermediate_size": 21504,
            "model_type": "gemma3_text",
            "num_attention_heads": 32,
            "num_hidden_layers": 62,
            "num_key_value_heads": 16,
            "sliding_window": 1024,
        },
        "torch_dtype": "bfloat16",
        "vision_config": GEMMA3_VISION,
    },
    "deepseek-ai/DeepSeek-V2-Lite-Chat": DEEPSEEK
    | _sizes(27, 2048, 16, 16, 10944, 102400)
    | {
        "model_type": "deepseek_v2",
        "q_lora_rank": None,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
    },
    "deepseek-ai/DeepSeek-V3": DEEPSEEK_V3,
    "deepseek-ai/DeepSeek-R1": DEEPSEEK_V3,
    "moonshotai/Kimi-K2-Instruct": DEEPSEEK_V3
    | {
        "model_type": "kimi_k2",
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 384,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 0,
        "vocab_size": 163840,
    },
    "zai-org/GLM-4.5": _sizes(92, 5120, 96, 8, 12288, 151552)
    | {
        "model_type": "glm4_moe",
        "head_dim": 128,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 160,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    },
    "openai/gpt-oss-20b": GPT_OSS
    | {
        "num_hidden_layers": 24,
        "num_local_experts": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
    },
    "openai/gpt-oss-120b": GPT_OSS
    | {
        "num_hidden_layers": 36,
        "num_local_experts": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
    },
}
"""Configs of models in the catalogue."""

OTHERS: dict[str, tuple[float, dict[str, object]]] = {
    "facebook/opt-30b": (
        29.97,
        {
            "model_type": "opt",
            "hidden_size": 7168,
            "ffn_dim": 28672,
            "num_hidden_layers": 48,
            "num_attention_heads": 56,
            "max_position_embeddings": 2048,
            "vocab_size": 50272,
            "word_embed_proj_dim": 7168,
            "torch_dtype": "float16",
        },
    ),
    "EleutherAI/gpt-neox-20b": (
        20.55,
        {
            "model_type": "gpt_neox",
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "vocab_size": 50432,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
        },
    ),
    "bigcode/starcoder": (
        15.52,
        {
            "model_type": "gpt_bigcode",
            "n_embd": 6144,
            "n_head": 48,
            "n_inner": 24576,
            "n_layer": 40,
            "n_positions": 8192,
            "multi_query": True,
            "vocab_size": 49152,
        },
    ),
    "google/gemma-3-4b-it": (
        3.88,
        {
            "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "sliding_window": 1024,
            },
            "torch_dtype": "bfloat16",
        },
    ),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": (
        23.6,
        {
            "model_type": "mistral3",
            "text_config": _sizes(40, 5120, 32, 8, 32768, 131072)
            | {"model_type": "mistral", "head_dim": 128, "sliding_window": None},
            "torch_dtype": "bfloat16",
            "vision_config": {"hidden_size": 1024},
        },
    ),
    "mistralai/Mistral-Small-4-119B-2603": (
        119,
        DEEPSEEK
        | _sizes(36, 4096, 32, 32, 12288, 131072)
        | {
            "model_type": "mistral4",
            "kv_lora_rank": 256,
            "q_lora_rank": 1024,
            "qk_nope_head_dim": 64,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 128,
            "num_experts_per_tok": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 0,
        },
    ),
    "Qwen/Qwen2.5-VL-7B-Instruct": (
        7.62,
        QWEN2 | _sizes(28, 3584, 28, 4, 18944, 152064) | {"model_type": "qwen2_5_vl", "vision_config": {"depth": 32}},
    ),
    "Qwen/Qwen2-57B-A14B-Instruct": (
        57.4,
        QWEN2
        | _sizes(28, 3584, 28, 4, 18944, 151936)
        | {
            "model_type": "qwen2_moe",
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2560,
            "shared_expert_intermediate_size": 20480,
            "decoder_sparse_step": 1,
        },
    ),
    "microsoft/Phi-3-mini-4k-instruct": (
        3.82,
        _sizes(32, 3072, 32, 32, 8192, 32064)
        | {"model_type": "phi3", "sliding_window": 2047, "tie_word_embeddings": False},
    ),
    "microsoft/Phi-3.5-MoE-instruct": (
        41.9,
        _sizes(32, 4096, 32, 8, 6400, 32064)
        | {
            "model_type": "phimoe",
            "num_local_experts": 16,
            "num_experts_per_tok": 2,
            "sliding_window": 131072,
            "tie_word_embeddings": False,
        },
    ),
    "zai-org/glm-4-9b-chat": (
        9.4,
        {
            "model_type": "chatglm",
            "hidden_size": 4096,
            "ffn_hidden_size": 13696,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "num_attention_heads": 32,
            "num_layers": 40,
            "padded_vocab_size": 151552,
            "tie_word_embeddings": False,
        },
    ),
    "zai-org/GLM-4-32B-0414": (
        32.6,
        _sizes(61, 6144, 48, 2, 23040, 151552) | {"model_type": "glm4", "head_dim": 128, "tie_word_embeddings": False},
    ),
    "deepseek-ai/DeepSeek-V2": (
        236,
        DEEPSEEK
        | _sizes(60, 5120, 128, 128, 12288, 102400)
        | {
            "model_type": "deepseek_v2",
            "q_lora_rank": 1536,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 160,
            "num_experts_per_tok": 6,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
        },
    ),
}
"""Models outside of the catalogue, with the billions of weights that their cards state (language model alone)."""
