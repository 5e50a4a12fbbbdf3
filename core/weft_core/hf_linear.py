"""Read linear attention from a config.json: the weights of a layer, and the state that it keeps per sequence.

States have the shapes that vLLM allocates (``mamba_utils.MambaStateShapeCalculator``): the last inputs of a short
convolution at the model's precision, and the recurrent state at 32 bits unless the config names another precision.
vLLM keeps the latter at the model's precision where the config is silent (Qwen3-Next, MiniMax-01): 32 bits are an upper
bound there.
"""

from collections.abc import Mapping

from weft_core.attention_shapes import LinearAttention
from weft_core.config_fields import ConfigFields
from weft_core.model_families import Family

MOST = 10**6
STATE_BYTES: Mapping[object, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
DELTA_FLOPS = 8
"""Operations per element of a state and token: decay, read, correct by the outer product, and read for the output."""
DECAY_FLOPS = 5
"""The same without the read that a correction needs: Mamba-2 and lightning attention only decay and add."""


def read_linear(
    fields: ConfigFields, family: Family, *, layers: int, hidden: int, dtype_bytes: int
) -> LinearAttention | None:
    """Return linear attention, None where no layer has it; faults are noted in the fields."""
    if family.linear == "none" or not layers:
        return None
    if family.linear == "delta-net":
        return _delta_net(fields, layers, hidden, dtype_bytes)
    if family.linear == "delta-attention":
        return _delta_attention(fields, layers, hidden, dtype_bytes)
    if family.linear == "lightning":
        return _lightning(fields, layers, hidden)
    return _mamba2(fields, layers, hidden, dtype_bytes)


def _delta_net(fields: ConfigFields, layers: int, hidden: int, dtype_bytes: int) -> LinearAttention:
    """Return gated delta nets (Qwen3-Next): projections of query, key, value, gate, decay and step, and of the output.

    Vectors of the decay and the norm are left out.
    """
    key_heads, heads = fields.whole("linear_num_key_heads", MOST), fields.whole("linear_num_value_heads", MOST)
    key_dim, dim = fields.whole("linear_key_head_dim", MOST), fields.whole("linear_value_head_dim", MOST)
    kernel = fields.whole("linear_conv_kernel_dim", 1000, default=4)
    keys, values = key_heads * key_dim, heads * dim
    mixed = 2 * keys + values
    state = heads * dim * key_dim
    return LinearAttention(
        layers=layers,
        params=hidden * (mixed + values + 2 * heads) + kernel * mixed + values * hidden,
        state_bytes=(kernel - 1) * mixed * dtype_bytes + state * _state_bytes(fields, "mamba_ssm_dtype"),
        heads=key_heads,
        token_flops=DELTA_FLOPS * state,
    )


def _delta_attention(fields: ConfigFields, layers: int, hidden: int, dtype_bytes: int) -> LinearAttention:
    """Return Kimi delta attention: query, key, value and output, a low-rank decay, and an output gate."""
    given = fields.part("linear_attn_config")
    if given is None:
        return LinearAttention(layers, 1, 1, 1, 1)
    heads, dim = given.whole("num_heads", MOST), given.whole("head_dim", MOST)
    kernel = given.whole("short_conv_kernel_size", 1000, default=4)
    width = heads * dim
    low_rank = dim * (hidden + width)
    gate = hidden * width if given.flag("use_full_rank_gate", default=False) else low_rank
    state = heads * dim * dim
    return LinearAttention(
        layers=layers,
        params=4 * hidden * width + low_rank + gate + hidden * heads + 3 * kernel * width,
        state_bytes=(kernel - 1) * 3 * width * dtype_bytes + 4 * state,
        heads=heads,
        token_flops=DELTA_FLOPS * state,
    )


def _lightning(fields: ConfigFields, layers: int, hidden: int) -> LinearAttention:
    """Return lightning attention (MiniMax-01): query, key, value, output gate and output of all heads."""
    heads = fields.whole("num_attention_heads", MOST)
    dim = fields.whole("head_dim", MOST, default=max(1, hidden // heads))
    state = heads * dim * dim
    return LinearAttention(layers, 5 * hidden * heads * dim, 4 * state, heads, DECAY_FLOPS * state)


def _mamba2(fields: ConfigFields, layers: int, hidden: int, dtype_bytes: int) -> LinearAttention:
    """Return Mamba-2 (Nemotron-H): one projection of gate, input, B, C and step, the convolution, and the output."""
    heads, dim = fields.whole("mamba_num_heads", MOST), fields.whole("mamba_head_dim", MOST)
    groups, size = fields.whole("n_groups", MOST), fields.whole("ssm_state_size", MOST)
    kernel = fields.whole("conv_kernel", 1000, default=4)
    inner = heads * dim
    mixed = inner + 2 * groups * size
    state = heads * dim * size
    return LinearAttention(
        layers=layers,
        params=hidden * (inner + mixed + heads) + kernel * mixed + inner * hidden,
        state_bytes=(kernel - 1) * mixed * dtype_bytes + state * _state_bytes(fields, "mamba_ssm_cache_dtype"),
        heads=heads,
        token_flops=DECAY_FLOPS * state,
    )


def _state_bytes(fields: ConfigFields, key: str) -> int:
    named = fields.get(key)
    known = STATE_BYTES.get(str(named).removeprefix("torch.")) if named is not None else 4
    if known is None:
        fields.fault(key, f"{named!r} is not {', '.join(map(str, STATE_BYTES))}; correct it or leave it out")
    return known or 4
