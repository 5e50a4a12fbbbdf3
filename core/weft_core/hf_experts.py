"""Read the feed-forward of a model from its config.json: experts, shared experts, dense layers."""

from dataclasses import dataclass

from weft_core.config_fields import ConfigFields
from weft_core.hf_layers import LayerKinds, of_each_layer
from weft_core.model_families import Family

MOST_EXPERTS = 4096
ALIASES = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of routed experts: releases of transformers write another one than the model's authors did."""
MOST_WIDTH = 10**6


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Feed-forward of the layers; ``width`` is that of one routed expert where there are experts."""

    width: int
    routed: int = 1
    active: int = 1
    shared_width: int = 0
    dense_layers: int = 0
    dense_width: int = 0
    expert_hidden: int = 0


def feed_forward(fields: ConfigFields, family: Family, kinds: LayerKinds) -> FeedForward:
    """Return the feed-forward; faults are noted in the fields."""
    count = next((name for name in (family.experts, *ALIASES) if name and fields.get(name) is not None), family.experts)
    if not family.experts or (family.sometimes and fields.get(count) is None):
        return _dense(fields, kinds.attention)
    routed = fields.whole(count, MOST_EXPERTS, least=2)
    key = "experts_per_token" if fields.get("num_experts_per_tok") is None else "num_experts_per_tok"
    if fields.get(key) is None:
        key = "num_experts_per_tok"
    active = fields.whole(key, MOST_EXPERTS)
    if active > routed:
        fields.fault(key, f"{active} is above {count}, {routed}; correct one")
    width = fields.whole(family.expert_width, MOST_WIDTH)
    if family.shared_width:
        shared = fields.whole(family.shared_width, MOST_WIDTH, default=0, least=0)
    else:
        shared = fields.whole("n_shared_experts", MOST_EXPERTS, default=0, least=0) * width
        shared += fields.whole("shared_expert_intermediate_size", MOST_WIDTH, default=0, least=0)
    dense = _dense_layers(fields, kinds.attention) if kinds.dense is None else kinds.dense
    return FeedForward(
        width=width,
        routed=routed,
        active=active,
        shared_width=shared,
        dense_layers=dense,
        dense_width=fields.whole(family.dense_width, MOST_WIDTH) if dense else 0,
        expert_hidden=fields.whole(family.expert_hidden, MOST_WIDTH, default=0) if family.expert_hidden else 0,
    )


def _dense(fields: ConfigFields, layers: int) -> FeedForward:
    """Return feed-forwards of up to two widths: those listed (Gemma 3n), or the later ones twice as wide (Gemma 4)."""
    listed = fields.get("intermediate_size")
    if not isinstance(listed, list):
        width = _intermediate(fields)
        if fields.flag("use_double_wide_mlp", default=False):
            wide = fields.whole("num_kv_shared_layers", layers - 1, default=0, least=0)
            return FeedForward(width=width, dense_layers=wide, dense_width=2 * width if wide else 0)
        return FeedForward(width=width)
    widths = [width for width in listed if isinstance(width, int) and not isinstance(width, bool) and width > 0]
    kinds = sorted(set(widths))
    if len(widths) != layers or len(kinds) > 2 or kinds[-1] > MOST_WIDTH:
        fields.fault(
            "intermediate_size",
            f"must be a width, or a list of one for each of the {layers} layers, of at most two widths",
        )
        return FeedForward(width=1)
    wide = widths.count(kinds[1]) if len(kinds) == 2 else 0
    return FeedForward(width=kinds[0], dense_layers=wide, dense_width=kinds[1] if wide else 0)


def _intermediate(fields: ConfigFields) -> int:
    if fields.path("intermediate_size").endswith("n_inner") and fields.get("intermediate_size") is None:
        return 4 * fields.whole("hidden_size", MOST_WIDTH)  # GPT-2's convention
    return fields.whole("intermediate_size", MOST_WIDTH)


def _dense_layers(fields: ConfigFields, layers: int) -> int:
    """Return how many layers have no experts: the first ones, those listed, and those between every n-th."""
    listed = of_each_layer(fields, "mlp_layer_types", layers, {"dense", "sparse"})
    if listed:
        return _some_left(fields, "mlp_layer_types", layers, layers - list(listed).count("dense"))
    if isinstance(fields.get("moe_layer_freq"), list):
        marks = of_each_layer(fields, "moe_layer_freq", layers, {0, 1})
        return _some_left(fields, "moe_layer_freq", layers, list(marks).count(1))
    first = fields.whole("first_k_dense_replace", layers, default=0, least=0)
    every = fields.whole("moe_layer_freq", layers, default=1)
    step = fields.whole("decoder_sparse_step", layers, default=1)
    step *= fields.whole("interleave_moe_layer_step", layers, default=1)
    dense = {index for index in fields.rows("mlp_only_layers") if isinstance(index, int)}
    sparse = [i for i in range(layers) if i >= first and i % every == 0 and (i + 1) % step == 0 and i not in dense]
    return _some_left(fields, "first_k_dense_replace", layers, len(sparse))


def _some_left(fields: ConfigFields, key: str, layers: int, sparse: int) -> int:
    if not sparse:
        fields.fault(key, "leaves no layer with experts; correct it or name the dense model_type")
    return layers - sparse
