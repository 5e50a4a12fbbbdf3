"""Bytes per weight of a quantised checkpoint, from the ``quantization_config`` of its ``config.json``.

Embeddings, output head, norms and expert routers stay at the checkpoint's own precision in every method here. Scales
are counted: a group of g weights of b bits adds 16 bits of scale, and b of zero point where the method has one.
"""

import re
from dataclasses import dataclass

from weft_core.config_fields import ConfigFields

METHODS = ("awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt", "mxfp4")
MXFP4_BYTES = 4.25 / 8
"""4 bits, and 8 bits of scale for every 32 weights (OCP microscaling formats)."""
NVFP4_BYTES = 4.5 / 8
"""4 bits, and 8 bits of scale for every 16 weights."""


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes of one weight of attention and of feed-forward, None: not quantised; and whether products run in 8 bits."""

    attention: float | None = None
    ffn: float | None = None
    eight_bit_products: bool = False


def weight_bytes_of(quantization: ConfigFields | None, *, layers: int) -> WeightBytes:
    """Return bytes per weight; faults are noted in the fields."""
    if quantization is None:
        return WeightBytes()
    method = str(quantization.get("quant_method") or "").lower()
    per_weight, eight_bit = _per_weight(quantization, method)
    left = [*quantization.rows("modules_to_not_convert"), *quantization.rows("ignore")]
    attention = None if _attention_left_alone([str(name) for name in left], layers) else per_weight
    return WeightBytes(attention=attention, ffn=per_weight, eight_bit_products=eight_bit)


def _per_weight(fields: ConfigFields, method: str) -> tuple[float, bool]:
    if method == "fp8":
        block = [side for side in fields.rows("weight_block_size") if isinstance(side, int) and side > 0]
        return 1 + (4 / (block[0] * block[1]) if len(block) == 2 else 0), True
    if method == "fbgemm_fp8":
        return 1.0, True
    if method == "mxfp4":
        return MXFP4_BYTES, False
    if method in ("awq", "gptq"):
        bits = fields.whole("bits", 8, least=2)
        return _grouped(bits, fields.whole("group_size", 100_000, default=-1, least=-1), zeros=True), False
    if method == "bitsandbytes":
        four = fields.flag("load_in_4bit", default=False)
        return (_grouped(4, 64, zeros=False) if four else 1.0), False
    if method == "modelopt":
        return _modelopt(fields)
    if method == "compressed-tensors":
        return _compressed(fields)
    fields.fault(
        "quant_method",
        f"{fields.get('quant_method')!r} is not one of {', '.join(METHODS)}; give a cost profile (spec.profile.ref), "
        "or leave quantization_config out to plan with unquantised weights",
    )
    return 2.0, False


def _grouped(bits: int, group: int, *, zeros: bool) -> float:
    per_group = 16 + (bits if zeros else 0)
    return (bits + (per_group / group if group > 0 else 0)) / 8


def _modelopt(fields: ConfigFields) -> tuple[float, bool]:
    algorithm = str(fields.get("quant_algo") or "").upper()
    if algorithm == "FP8":
        return 1.0, True
    if algorithm in ("NVFP4", "W4A4", "FP4"):
        return NVFP4_BYTES, True
    fields.fault("quant_algo", f"{fields.get('quant_algo')!r} is not FP8 or NVFP4; give a cost profile instead")
    return 2.0, False


def _compressed(fields: ConfigFields) -> tuple[float, bool]:
    groups = fields.part("config_groups")
    found = groups.parts if groups is not None else []
    weights = [part for group in found if (part := group.part("weights")) is not None]
    if not weights:
        fields.fault("config_groups", "has no group with weights; copy the checkpoint's own quantization_config")
        return 2.0, False
    # Several groups: the widest weights count, so that memory is never underestimated.
    widths = []
    for part in weights:
        bits = part.whole("num_bits", 16, least=2)
        grouped = part.whole("group_size", 100_000, default=-1, least=-1)
        widths.append((_grouped(bits, grouped, zeros=False), bits == 8 and part.get("type") == "float"))
    eight_bit = all(of_float for _, of_float in widths)
    activations = all(group.get("input_activations") is not None for group in found if group.get("weights") is not None)
    return max(width for width, _ in widths), eight_bit and activations


_LAYER = re.compile(r"layers?\.(\d+)\.")


def _attention_left_alone(names: list[str], layers: int) -> bool:
    """Return whether attention is what was not quantised: by one pattern for all layers, or in each layer by name."""
    single: set[int] = set()
    for name in names:
        if not re.search(r"attn|attention", name) or "norm" in name:
            continue
        layer = _LAYER.search(name)
        if layer is None:
            return True
        single.add(int(layer[1]))
    return len(single) >= layers
