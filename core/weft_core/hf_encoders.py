"""Count the weights of a model's encoders of images and audio from ``vision_config`` and ``audio_config``.

An encoder whose shapes are not given counts as nothing: that is under 2 percent of the models it is usual in (Llama 4).
"""

from weft_core.config_fields import ConfigFields

MOST = 10**6
MOST_LAYERS = 1000
_NAMES = {
    "width": ("hidden_size", "vt_hidden_size"),
    "layers": ("depth", "num_hidden_layers", "vt_num_hidden_layers"),
    "feed_forward": ("intermediate_size", "vt_intermediate_size"),
}


def encoder_params(whole: ConfigFields, hidden: int) -> int:
    """Return the weights of the encoders and of what projects their output to the language model's ``hidden`` size."""
    return _vision(whole, hidden) + _audio(whole, hidden)


def _vision(whole: ConfigFields, hidden: int) -> int:
    fields = whole.part("vision_config")
    if fields is None:
        return 0
    if fields.get("model_type") == "gemma3n_vision":
        return MOBILENET_V5
    width, layers, feed_forward = (_first(fields, names) for names in _NAMES.values())
    if not (width and layers and feed_forward):
        return 0
    gated = fields.get("model_type") in GATED
    attention = fields.whole("qkv_hidden_size", MOST, default=width)
    layer = 4 * width * attention + (3 if gated else 2) * width * feed_forward
    return layers * layer + _embedding(fields, width) + _projector(fields, width, hidden)


GATED = ("gemma4_vision", "pixtral", "qwen2_5_vl")
"""Encoders with a gated feed-forward, by ``model_type``."""
MOBILENET_V5 = 300_000_000
"""Gemma 3n's encoder of images, mobilenetv5_300m_enc: its config gives no shapes, only this name."""
CONFORMERS = ("gemma3n_audio", "gemma4_audio")
"""Encoders of audio whose layers are conformers, by ``model_type``."""
CONFORMER_SQUARES = 2 * 2 * 4 + 5 + 3
"""Weights of a conformer's layer, in squares of its width: two feed-forwards four times as wide, attention with a
projection of positions, and a gated convolution."""


def _audio(whole: ConfigFields, hidden: int) -> int:
    fields = whole.part("audio_config")
    if fields is None or fields.get("model_type") not in CONFORMERS:
        return 0
    width = fields.whole("hidden_size", MOST)
    key = "num_hidden_layers" if fields.get("conf_num_hidden_layers") is None else "conf_num_hidden_layers"
    return fields.whole(key, MOST_LAYERS) * CONFORMER_SQUARES * width**2 + width * hidden


def _embedding(fields: ConfigFields, width: int) -> int:
    """Return the weights of patches and of learned positions."""
    patch = fields.whole("patch_size", 1000, default=1)
    patches = 3 * fields.whole("temporal_patch_size", 100, default=1) * patch**2
    positions = fields.whole("num_position_embeddings", MOST, default=0, least=0)
    positions += 2 * fields.whole(
        "position_embedding_size", MOST, default=0, least=0
    )  # Gemma 4: of rows and of columns
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
