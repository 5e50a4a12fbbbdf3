"""Count the weights of a model's encoder of images from the ``vision_config`` of its config.json.

An encoder whose shapes are not given counts as nothing: that is under 2 percent of the models it is usual in (Llama 4).
"""

from weft_core.config_fields import ConfigFields

MOST = 10**6
_NAMES = {
    "width": ("hidden_size", "vt_hidden_size"),
    "layers": ("depth", "num_hidden_layers", "vt_num_hidden_layers"),
    "feed_forward": ("intermediate_size", "vt_intermediate_size"),
}


def vision_params(whole: ConfigFields, hidden: int) -> int:
    """Return the weights of the encoder and of what projects its output to the language model's ``hidden`` size."""
    fields = whole.part("vision_config")
    if fields is None:
        return 0
    width, layers, feed_forward = (_first(fields, names) for names in _NAMES.values())
    if not (width and layers and feed_forward):
        return 0
    gated = fields.get("model_type") in GATED
    attention = fields.whole("qkv_hidden_size", MOST, default=width)
    layer = 4 * width * attention + (3 if gated else 2) * width * feed_forward
    return layers * layer + _embedding(fields, width) + _projector(fields, width, hidden)


GATED = ("gemma4_vision", "pixtral", "qwen2_5_vl")
"""Encoders with a gated feed-forward, by ``model_type``."""


def _embedding(fields: ConfigFields, width: int) -> int:
    """Return the weights of patches and of learned positions."""
    patch = fields.whole("patch_size", 1000, default=1)
    patches = 3 * fields.whole("temporal_patch_size", 100, default=1) * patch**2
    positions = fields.whole("num_position_embeddings", MOST, default=0, least=0)
    return width * (patches + positions)


def _projector(fields: ConfigFields, width: int, hidden: int) -> int:
    """Return the weights between encoder and language model: Qwen's mergers of patches, elsewhere one matrix.

    Qwen3-VL has one merger more for each layer in deepstack_visual_indexes.
    """
    if fields.get("out_hidden_size") is None and fields.get("spatial_merge_size") is None:
        return width * hidden
    merged = width * fields.whole("spatial_merge_size", 100, default=2) ** 2
    mergers = 1 + len(fields.rows("deepstack_visual_indexes"))
    return mergers * merged * (merged + fields.whole("out_hidden_size", MOST, default=hidden))


def _first(fields: ConfigFields, names: tuple[str, ...]) -> int:
    for name in names:
        if fields.get(name) is not None:
            return fields.whole(name, MOST)
    return 0
