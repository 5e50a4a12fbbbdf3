"""Bytes per weight of a quantised checkpoint, from the ``quantization_config`` of its ``config.json``.

Embeddings, output head, norms and expert routers stay at the checkpoint's own precision in every method here. Scales
are counted: a group of g weights of b bits adds 16 bits of scale, and b of zero point where the method has one.
Which other parts a checkpoint leaves alone is in ``quantized_parts.py``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from weft_core.config_fields import ConfigFields
from weft_core.dimensions import ModelDimensions
from weft_core.quantized_parts import PARTS, Part, part_of, parts_left_alone

METHODS = ("awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt", "mxfp4", "mxfp8")
MXFP4_BYTES = 4.25 / 8
"""4 bits, and 8 bits of scale for every 32 weights (OCP microscaling formats)."""
MXFP8_BYTES = 8.25 / 8
"""8 bits, and 8 bits of scale for every 32 weights (OCP microscaling formats)."""
NVFP4_BYTES = 4.5 / 8
"""4 bits, and 8 bits of scale for every 16 weights."""
FP8_BLOCKS_BYTES = 1 + 4 / 128**2
"""8 bits, and 32 bits of scale for every block of 128 x 128 (DeepSeek-V3, section 3.3)."""
ALGORITHMS: Mapping[str, tuple[float, bool]] = {
    "FP8": (1.0, True), "MXFP8": (MXFP8_BYTES, True),
    "NVFP4": (NVFP4_BYTES, True), "W4A4": (NVFP4_BYTES, True), "FP4": (NVFP4_BYTES, True),
    "W4A16_NVFP4": (NVFP4_BYTES, False), "MXFP4": (MXFP4_BYTES, False),
}  # fmt: skip
"""Bytes per weight of ModelOpt's algorithms, and whether activations have at most 8 bits too."""


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes per weight of each part, None: not quantised; and whether products run in 8 bits."""

    of: Mapping[Part, float | None]
    eight_bit_products: bool = False


def quantised(model: ModelDimensions, quantization: ConfigFields | None, body: ConfigFields) -> ModelDimensions:
    """Return a model at the precision of its checkpoint; ``body`` is its config; faults are noted in the fields."""
    if quantization is None:
        return model
    sizes = _weight_bytes(quantization, model)
    of = dict(sizes.of)
    if body.get("expert_dtype") == "fp4" and quantization.get("moe_quant_algo") is None:
        of["experts"] = MXFP4_BYTES  # DeepSeek-V4
    output_share = model.attention_output_params / model.attention_params if model.attention_params else 0.0
    linear = model.linear if model.linear is None else replace(model.linear, weight_bytes=of["linear"])
    routed = of["experts"] if model.experts > 1 else of["ffn"]
    return replace(
        model,
        attention_bytes=_mixed(of["attention"], of["attention output"], output_share, model.dtype_bytes),
        ffn_bytes=of["ffn"],
        expert_bytes=None if routed == of["ffn"] else routed,
        linear=linear,
        eight_bit_products=sizes.eight_bit_products,
    )


def _mixed(most: float | None, output: float | None, output_share: float, dtype_bytes: float) -> float | None:
    """Return the mean bytes of attention's weights, of which the output projection may have its own precision."""
    if most == output:
        return most
    sizes = [dtype_bytes if size is None else size for size in (most, output)]
    return sizes[0] * (1 - output_share) + sizes[1] * output_share


def _weight_bytes(fields: ConfigFields, model: ModelDimensions) -> WeightBytes:
    method = str(fields.get("quant_method") or ("modelopt" if fields.get("quant_algo") else "")).lower()
    if method == "modelopt" and str(fields.get("quant_algo")).upper() == "MIXED_PRECISION":
        return _layer_by_layer(fields, model)
    per_weight, eight_bit = _per_weight(fields, method)
    of: dict[Part, float | None] = dict.fromkeys(PARTS, per_weight)
    if method == "fp8" and fields.get("moe_quant_algo") is not None:
        # 4-bit experts in an 8-bit checkpoint: what it lists is what has not 4 bits.
        of["experts"], _ = _algorithm(fields, "moe_quant_algo")
        return WeightBytes(of, eight_bit)
    keys = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
    names = [str(name) for key in keys for name in fields.rows(key)]
    for part in parts_left_alone(names, model):
        of[part] = None
    return WeightBytes(of, eight_bit)


def _layer_by_layer(fields: ConfigFields, model: ModelDimensions) -> WeightBytes:
    """Return the widest precision of each part, where a checkpoint names that of every module."""
    of: dict[Part, float | None] = dict.fromkeys(PARTS)
    computes: dict[Part, bool] = {}
    modules = fields.part("quantized_layers")
    if modules is None:
        fields.fault("quantized_layers", "is missing; copy the checkpoint's own quantization_config")
        return WeightBytes(of)
    for name, module in modules.named_parts:
        part = part_of(name, model)
        if part is None:
            continue
        size, eight_bit = _algorithm(module, "quant_algo")
        for one in ("attention", "attention output") if part == "attention" else (part,):
            of[one] = max(size, of[one] or 0.0)
            computes[one] = eight_bit
    return WeightBytes(of, computes.get("experts" if model.experts > 1 else "ffn", False))


def _per_weight(fields: ConfigFields, method: str) -> tuple[float, bool]:
    if method == "fp8":
        block = [side for side in fields.rows("weight_block_size") if isinstance(side, int) and side > 0]
        return 1 + (4 / (block[0] * block[1]) if len(block) == 2 else 0), True
    if method == "fbgemm_fp8":
        return 1.0, True
    if method == "mxfp8":
        return MXFP8_BYTES, True
    if method == "mxfp4":
        return MXFP4_BYTES, False
    if method in ("awq", "gptq"):
        bits = fields.whole("bits", 8, least=2)
        return _grouped(bits, fields.whole("group_size", 100_000, default=-1, least=-1), zero_bits=bits), False
    if method == "bitsandbytes":
        four = fields.flag("load_in_4bit", default=False)
        return (_grouped(4, 64) if four else 1.0), False
    if method == "modelopt":
        return _algorithm(fields, "quant_algo")
    if method == "compressed-tensors":
        return _compressed(fields)
    fields.fault(
        "quant_method",
        f"{fields.get('quant_method')!r} is not one of {', '.join(METHODS)}; give a cost profile (spec.profile.ref), "
        "or leave quantization_config out to plan with unquantised weights",
    )
    return 2.0, False


def _grouped(bits: int, group: int, *, scale_bits: int = 16, zero_bits: int = 0) -> float:
    return (bits + ((scale_bits + zero_bits) / group if group > 0 else 0)) / 8


def _algorithm(fields: ConfigFields, key: str) -> tuple[float, bool]:
    known = ALGORITHMS.get(str(fields.get(key) or "").upper())
    if known is None:
        fields.fault(key, f"{fields.get(key)!r} is not one of {', '.join(ALGORITHMS)}; give a cost profile instead")
    return known or (2.0, False)


def _compressed(fields: ConfigFields) -> tuple[float, bool]:
    groups = fields.part("config_groups")
    found = groups.parts if groups is not None else []
    weights = [part for group in found if (part := group.part("weights")) is not None]
    if not weights:
        fields.fault("config_groups", "has no group with weights; copy the checkpoint's own quantization_config")
        return 2.0, False
    # Several groups: the widest weights count, so that memory is never underestimated.
    widest = max(_group_bytes(part) for part in weights)
    return widest, _all_floats(weights) and all(
        group.get("input_activations") is not None for group in found if group.get("weights") is not None
    )


def _group_bytes(weights: ConfigFields) -> float:
    """Return the bytes of one weight: scales of 4-bit floats have 8 bits (NVFP4, MXFP4), others 16."""
    bits = weights.whole("num_bits", 16, least=2)
    grouped = weights.whole("group_size", 100_000, default=-1, least=-1)
    return _grouped(bits, grouped, scale_bits=8 if weights.get("type") == "float" and bits == 4 else 16)


def _all_floats(weights: Iterable[ConfigFields]) -> bool:
    return all(part.get("type") == "float" and part.get("num_bits") in (4, 8) for part in weights)
