"""Read a model's dimensions from its Hugging Face ``config.json``, given as text or as an object."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from weft_core.config_fields import ConfigFields, Json, ModelConfigError
from weft_core.dimensions import LatentAttention, ModelDimensions
from weft_core.model_families import FAMILIES, Family
from weft_core.quantization import weight_bytes_of

NESTED = ("text_config", "llm_config", "language_config")
"""Where multimodal configs keep the language model; their vision tower is not counted."""
PRECISIONS: Mapping[object, int] = {"bfloat16": 2, "float16": 2, "float32": 4, "auto": 2, None: 2}
LARGEST = {"layers": 1000, "width": 10**6, "heads": 4096, "experts": 4096, "vocabulary": 10**7, "window": 10**9}


def config_of_text(text: str | bytes) -> Json:
    """Return the object in the text of a config.json.

    Raises:
        ModelConfigError: it is not JSON, or not an object.
    """
    try:
        body = json.loads(text)
    except ValueError as error:
        raise ModelConfigError([f"config.json: not JSON ({error}); give the model's own config.json"]) from error
    if not isinstance(body, Mapping):
        raise ModelConfigError(["config.json: must be an object; give the model's own config.json"])
    return body


def dimensions_of_config(name: str, config: Json) -> ModelDimensions:
    """Return the dimensions that a config describes, at the precision of the checkpoint it belongs to.

    Raises:
        ModelConfigError: names every field that is missing, out of range or not understood, with the fix.
    """
    faults: list[str] = []
    body, where = _language_model(config)
    family = _family(body, config, where, faults)
    if family is None:
        raise ModelConfigError(faults)
    fields = ConfigFields(body, where=where, faults=faults, renamed=family.renamed, defaults=family.defaults)
    whole = ConfigFields(config, where="", faults=faults)
    shape = _shape(name, fields, whole, family)
    if faults:
        raise ModelConfigError(faults)
    return shape


def _language_model(config: Json) -> tuple[Json, str]:
    for key in NESTED:
        inner = config.get(key)
        if isinstance(inner, Mapping) and ("hidden_size" in inner or "hidden_size" not in config):
            return inner, key
    return config, ""


def _family(body: Json, config: Json, where: str, faults: list[str]) -> Family | None:
    named = body.get("model_type") or config.get("model_type")
    path = f"{where}.model_type" if where else "model_type"
    if named is None:
        faults.append(f"{path}: is missing; give the model's own Hugging Face config.json")
        return None
    family = FAMILIES.get(str(named))
    if family is None:
        faults.append(
            f"{path}: {named!r} is not one of {', '.join(sorted(FAMILIES))}; if its layers are plain gated ones with "
            "full attention, write llama here, else give a cost profile (spec.profile.ref)"
        )
    return family


def _shape(name: str, fields: ConfigFields, whole: ConfigFields, family: Family) -> ModelDimensions:
    hidden = fields.whole("hidden_size", LARGEST["width"])
    layers = fields.whole("num_hidden_layers", LARGEST["layers"])
    heads = fields.whole("num_attention_heads", LARGEST["heads"])
    latent = _latent(fields) if family.latent else None
    experts = _experts(fields, family, layers)
    windowed, window = _windows(fields, family, layers)
    quantised = weight_bytes_of(whole.part("quantization_config") or fields.part("quantization_config"), layers=layers)
    tied = fields.get("tie_word_embeddings")
    source = fields if tied is not None else whole
    return ModelDimensions(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(fields, family, heads),
        head_dim=latent.nope_dim if latent is not None else _head_dim(fields, hidden, heads),
        intermediate=experts.width,
        vocab=fields.whole("vocab_size", LARGEST["vocabulary"]),
        experts=experts.routed,
        active_experts=experts.active,
        tied_embeddings=source.flag("tie_word_embeddings", default=family.tied),
        shared_intermediate=experts.shared_width,
        dense_layers=experts.dense_layers,
        dense_intermediate=experts.dense_width,
        ffn_matrices=family.matrices,
        positions=_positions(fields, family, hidden),
        latent=latent,
        windowed_layers=windowed,
        window=window,
        dtype_bytes=_precision(fields, whole),
        attention_bytes=quantised.attention,
        ffn_bytes=quantised.ffn,
        eight_bit_products=quantised.eight_bit_products,
    )


def _kv_heads(fields: ConfigFields, family: Family, heads: int) -> int:
    if fields.flag("multi_query", default=False):  # GPT-BigCode: one key for all heads
        return 1
    kv_heads = fields.whole("num_key_value_heads", LARGEST["heads"], default=heads if family.every_head else None)
    if heads % kv_heads:
        fields.fault("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads, {heads}; correct one")
    return kv_heads


def _head_dim(fields: ConfigFields, hidden: int, heads: int) -> int:
    if fields.get("head_dim") is None and hidden % heads:
        fields.fault(
            "head_dim", f"is missing, and hidden_size {hidden} is no multiple of num_attention_heads {heads}; add it"
        )
    return fields.whole("head_dim", 10_000, default=max(1, hidden // heads))


def _latent(fields: ConfigFields) -> LatentAttention:
    width = LARGEST["width"]
    return LatentAttention(
        kv_rank=fields.whole("kv_lora_rank", width),
        rope_dim=fields.whole("qk_rope_head_dim", width),
        nope_dim=fields.whole("qk_nope_head_dim", width),
        value_dim=fields.whole("v_head_dim", width),
        query_rank=fields.whole("q_lora_rank", width, default=0),
    )


@dataclass(frozen=True, slots=True)
class _Experts:
    """Feed-forward of the layers; ``width`` is that of one routed expert where there are experts."""

    width: int
    routed: int = 1
    active: int = 1
    shared_width: int = 0
    dense_layers: int = 0
    dense_width: int = 0


def _experts(fields: ConfigFields, family: Family, layers: int) -> _Experts:
    most = LARGEST["width"]
    if not family.experts:
        return _Experts(width=_intermediate(fields))
    routed = fields.whole(family.experts, LARGEST["experts"], least=2)
    key = "experts_per_token" if fields.get("num_experts_per_tok") is None else "num_experts_per_tok"
    if fields.get(key) is None:
        key = "num_experts_per_tok"
    active = fields.whole(key, LARGEST["experts"])
    if active > routed:
        fields.fault(key, f"{active} is above {family.experts}, {routed}; correct one")
    width = fields.whole(family.expert_width, most)
    shared = fields.whole("n_shared_experts", LARGEST["experts"], default=0, least=0) * width
    shared += fields.whole("shared_expert_intermediate_size", most, default=0, least=0)
    dense = _dense_layers(fields, layers)
    return _Experts(
        width=width,
        routed=routed,
        active=active,
        shared_width=shared,
        dense_layers=dense,
        dense_width=fields.whole("intermediate_size", most) if dense else 0,
    )


def _intermediate(fields: ConfigFields) -> int:
    if fields.path("intermediate_size").endswith("n_inner") and fields.get("intermediate_size") is None:
        return 4 * fields.whole("hidden_size", LARGEST["width"])  # GPT-2's convention
    return fields.whole("intermediate_size", LARGEST["width"])


def _dense_layers(fields: ConfigFields, layers: int) -> int:
    """Return how many layers have no experts: the first ones, those listed, and those between every n-th."""
    first = fields.whole("first_k_dense_replace", layers, default=0, least=0)
    every = fields.whole("moe_layer_freq", layers, default=1)
    step = fields.whole("decoder_sparse_step", layers, default=1)
    listed = {index for index in fields.rows("mlp_only_layers") if isinstance(index, int)}
    sparse = [i for i in range(layers) if i >= first and i % every == 0 and (i + 1) % step == 0 and i not in listed]
    if not sparse:
        fields.fault("first_k_dense_replace", "leaves no layer with experts; correct it or name the dense model_type")
    return layers - len(sparse)


def _windows(fields: ConfigFields, family: Family, layers: int) -> tuple[int, int]:
    """Return how many layers have a sliding window, and its length in tokens."""
    if family.windows == "none" or fields.get("sliding_window") is None:
        return 0, 0
    if family.windows == "switched" and not fields.flag("use_sliding_window", default=False):
        return 0, 0
    window = fields.whole("sliding_window", LARGEST["window"])
    kinds = fields.rows("layer_types")
    if kinds:
        unknown = sorted({str(kind) for kind in kinds} - {"sliding_attention", "full_attention"})
        if unknown:
            fields.fault("layer_types", f"{', '.join(unknown)} is not sliding_attention or full_attention")
        if len(kinds) != layers:
            fields.fault("layer_types", f"has {len(kinds)} entries for num_hidden_layers {layers}; make them equal")
        windowed = list(kinds).count("sliding_attention")
    elif family.windows == "pattern":
        key = "sliding_window_pattern"
        if fields.get(key) is None and fields.get("_sliding_window_pattern") is not None:
            key = "_sliding_window_pattern"
        windowed = layers - layers // fields.whole(key, layers, default=family.pattern)
    elif family.windows == "switched":
        windowed = layers - fields.whole("max_window_layers", layers, default=layers, least=0)
    else:
        windowed = layers
    return windowed, window if windowed else 0


def _positions(fields: ConfigFields, family: Family, hidden: int) -> int:
    if family.positions is None:
        return 0
    width = fields.whole("word_embed_proj_dim", LARGEST["width"], default=hidden)
    if width != hidden:
        fields.fault(
            "word_embed_proj_dim",
            f"{width} is not hidden_size, {hidden}; such models are not read: give a cost profile (spec.profile.ref)",
        )
    return fields.whole("max_position_embeddings", LARGEST["window"]) + family.positions


def _precision(fields: ConfigFields, whole: ConfigFields) -> int:
    for source in (fields, whole):
        for key in ("dtype", "torch_dtype"):
            named = source.get(key)
            if named is None:
                continue
            known = PRECISIONS.get(str(named).removeprefix("torch."))
            if known is not None:
                return known
            source.fault(key, f"{named!r} is not bfloat16, float16 or float32; correct it or leave it out")
    return PRECISIONS[None]
