"""Read from a config.json how many layers a model has of each kind: attention, linear attention, feed-forward."""

from collections.abc import Sequence
from dataclasses import dataclass

from weft_core.config_fields import ConfigFields
from weft_core.model_families import Family

MOST_LAYERS = 1000
_MAMBA_KINDS = {
    "M": "mamba", "*": "attention", "-": "mlp", "E": "moe",
    "mamba": "mamba", "attention": "attention", "mlp": "mlp", "moe": "moe",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """Layers with attention, ``linear`` of them linear attention; and, where one layer is either, feed-forwards.

    ``dense`` of the ``feed_forwards`` have no experts; both are None where each layer has attention and feed-forward.
    """

    attention: int
    linear: int = 0
    feed_forwards: int | None = None
    dense: int | None = None


def layer_kinds(fields: ConfigFields, family: Family) -> LayerKinds:
    """Return the layers of each kind; faults are noted in the fields."""
    if family.linear == "mamba2":
        return _either_or(fields)
    layers = fields.whole("num_hidden_layers", MOST_LAYERS)
    linear = 0
    if family.linear == "delta-attention":
        kinds = fields.part("linear_attn_config")
        listed = kinds.rows("kda_layers") if kinds is not None else ()
        if not listed:
            fields.fault("linear_attn_config", "has no kda_layers; add it as in the model's published config.json")
        linear = len(listed)
    elif family.linear == "lightning":
        marks = of_each_layer(fields, "attn_type_list", layers, {0, 1})
        named = of_each_layer(fields, "layer_types", layers, {"linear_attention", "full_attention"})
        if not (marks or named):
            fields.fault("attn_type_list", "is missing; add it as in the model's published config.json")
        linear = list(marks).count(0) if marks else list(named).count("linear_attention")
    elif family.linear == "delta-net":
        listed = of_each_layer(fields, "layer_types", layers, {"linear_attention", "full_attention"})
        full = layers // fields.whole("full_attention_interval", MOST_LAYERS, default=4)
        linear = list(listed).count("linear_attention") if listed else layers - full
    if linear >= layers and family.linear != "none":
        fields.fault("num_hidden_layers", f"{layers} leaves no layer with full attention beside {linear} linear ones")
    return LayerKinds(layers, linear)


def of_each_layer(fields: ConfigFields, key: str, layers: int, known: set[object]) -> Sequence[object]:
    """Return a list with one entry per layer, empty when it is absent."""
    listed = fields.rows(key)
    if not listed:
        return ()
    unknown = sorted({str(entry) for entry in listed if isinstance(entry, list | dict) or entry not in known})
    if unknown:
        words = " or ".join(sorted(str(entry) for entry in known))
        fields.fault(key, f"{', '.join(unknown)} is not {words}")
    if len(listed) != layers:
        fields.fault(key, f"has {len(listed)} entries for num_hidden_layers {layers}; make them equal")
    return listed


def _either_or(fields: ConfigFields) -> LayerKinds:
    """Return the layers of Nemotron-H, each of which is Mamba-2, attention, or a feed-forward."""
    key = "layers_block_type" if fields.get("hybrid_override_pattern") is None else "hybrid_override_pattern"
    listed = fields.get(key)
    if not isinstance(listed, str | list) or not listed:
        fields.fault("hybrid_override_pattern", "is missing; add it as in the model's published config.json")
        return LayerKinds(1, 0, 1, 1)
    kinds = [_MAMBA_KINDS.get(str(kind), "") for kind in listed]
    if "" in kinds:
        fields.fault(key, f"{listed[kinds.index('')]} is not one of {', '.join(_MAMBA_KINDS)}")
    linear, attention, dense = kinds.count("mamba"), kinds.count("attention"), kinds.count("mlp")
    if not attention:
        fields.fault(key, "has no layer with attention; such models are not read: give a cost profile")
    return LayerKinds(max(1, linear + attention), linear, dense + kinds.count("moe"), dense)
