"""Read a model's dimensions from its Hugging Face ``config.json``, given as text or as an object."""

import json
from collections.abc import Mapping

from weft_core.config_fields import ConfigFields, Json, ModelConfigError
from weft_core.dimensions import ModelDimensions
from weft_core.hf_attention import (
    MOST_HEADS,
    MOST_WIDTH,
    read_compressed,
    read_heads,
    read_latent,
    read_sharing,
    read_sparse,
    read_windows,
)
from weft_core.hf_encoders import encoder_params
from weft_core.hf_experts import feed_forward
from weft_core.hf_layers import layer_kinds
from weft_core.hf_linear import read_linear
from weft_core.model_families import FAMILIES, Family
from weft_core.quantization import quantised

NESTED = ("text_config", "llm_config", "language_config")
"""Where multimodal configs keep the language model."""
PRECISIONS: Mapping[object, int] = {"bfloat16": 2, "float16": 2, "float32": 4, "auto": 2, None: 2}
LARGEST = {"vocabulary": 10**7, "positions": 10**9, "prediction": 64}
OTHERWISE = (
    "give a CostProfile instead (spec.profile.ref), by weft profile or by hand: degrees[].weightBytesPerGpu and "
    "kvCapacityTokens as the engine logs them when it starts, kvBytesPerToken as its KV memory divided by that capacity"
)


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
            f"full attention, write llama here, else {OTHERWISE}"
        )
    return family


def _shape(name: str, fields: ConfigFields, whole: ConfigFields, family: Family) -> ModelDimensions:
    hidden = fields.whole("hidden_size", MOST_WIDTH)
    kinds = layer_kinds(fields, family)
    layers = kinds.attention
    heads = fields.whole("num_attention_heads", MOST_HEADS)
    latent = read_latent(fields) if family.latent else None
    compressed = read_compressed(fields, layers) if family.compressed else None
    kv = read_heads(fields, family, hidden=hidden, heads=heads, latent=latent)
    experts = feed_forward(fields, family, kinds)
    windowed, window = read_windows(fields, family, layers)
    sharing, sharing_windowed = read_sharing(fields, family, layers, windowed)
    precision = _precision(fields, whole)
    tied = fields.get("tie_word_embeddings")
    source = fields if tied is not None else whole
    model = ModelDimensions(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv.kv_heads,
        head_dim=kv.head_dim,
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
        dtype_bytes=precision,
        expert_hidden=experts.expert_hidden,
        ffn_layers=kinds.feed_forwards,
        value_dim=kv.value_dim,
        shared_values=kv.shared_values,
        gated_output=_gated_output(fields, family),
        windowed_heads=kv.windowed if windowed else None,
        linear=read_linear(fields, family, layers=kinds.linear, hidden=hidden, dtype_bytes=precision),
        sparse=read_sparse(fields, family, layers=layers, hidden=hidden, compressed=compressed),
        compressed=compressed,
        encoder_params=encoder_params(whole, hidden),
        sharing_layers=sharing,
        sharing_windowed=sharing_windowed,
        layer_embedding=fields.whole("hidden_size_per_layer_input", MOST_WIDTH, default=0, least=0),
        prediction_layers=fields.whole("num_nextn_predict_layers", LARGEST["prediction"], default=0, least=0),
    )
    return quantised(model, whole.part("quantization_config") or fields.part("quantization_config"), fields)


def _gated_output(fields: ConfigFields, family: Family) -> bool:
    default = fields.flag("attn_output_gate", default=family.gated_output)
    return fields.flag("mla_use_output_gate", default=default)


def _positions(fields: ConfigFields, family: Family, hidden: int) -> int:
    if family.positions is None:
        return 0
    width = fields.whole("word_embed_proj_dim", MOST_WIDTH, default=hidden)
    if width != hidden:
        fields.fault(
            "word_embed_proj_dim",
            f"{width} is not hidden_size, {hidden}; such models are not read: give a cost profile (spec.profile.ref)",
        )
    return fields.whole("max_position_embeddings", LARGEST["positions"]) + family.positions


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
