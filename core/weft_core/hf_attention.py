"""Read attention from a config.json: heads, latents, windows, what indexers choose, and what is compressed."""

from dataclasses import dataclass

from weft_core.attention_shapes import CompressedAttention, LatentAttention, SparseAttention, WindowedHeads
from weft_core.config_fields import ConfigFields
from weft_core.hf_layers import of_each_layer
from weft_core.model_families import Family

MOST_HEADS = 4096
MOST_WIDTH = 10**6
MOST_WINDOW = 10**9
INDEX_BLOCK = 128
"""Elements of an index key with one scale of 4 bytes: keys have 8 bits in vLLM, SGLang and TensorRT-LLM."""


@dataclass(frozen=True, slots=True)
class Heads:
    """KV heads: those of layers without a window, and ``windowed`` of the others where they differ."""

    kv_heads: int
    head_dim: int
    value_dim: int = 0
    shared_values: bool = False
    windowed: WindowedHeads | None = None


def read_heads(
    fields: ConfigFields, family: Family, *, hidden: int, heads: int, latent: LatentAttention | None
) -> Heads:
    """Return the KV heads; faults are noted in the fields."""
    kv_heads = _kv_heads(fields, family, heads)
    if latent is not None:
        return Heads(kv_heads, latent.nope_dim)
    dim = _head_dim(fields, hidden, heads)
    if family.other_heads == "swa":
        value_dim = fields.whole("v_head_dim", MOST_WIDTH, default=dim)
        if fields.whole("swa_num_attention_heads", MOST_HEADS, default=heads) != heads:
            fields.fault("swa_num_attention_heads", f"is not num_attention_heads, {heads}; give a cost profile instead")
        windowed = WindowedHeads(
            kv_heads=fields.whole("swa_num_key_value_heads", MOST_HEADS, default=kv_heads),
            head_dim=fields.whole("swa_head_dim", MOST_WIDTH, default=dim),
            value_dim=fields.whole("swa_v_head_dim", MOST_WIDTH, default=value_dim),
        )
        return Heads(kv_heads, dim, 0 if value_dim == dim else value_dim, windowed=windowed)
    if family.other_heads == "global":
        return Heads(
            kv_heads=fields.whole("num_global_key_value_heads", MOST_HEADS, default=kv_heads),
            head_dim=fields.whole("global_head_dim", MOST_WIDTH, default=dim),
            shared_values=fields.flag("attention_k_eq_v", default=False),
            windowed=WindowedHeads(kv_heads, dim, dim),
        )
    return Heads(kv_heads, dim)


def _kv_heads(fields: ConfigFields, family: Family, heads: int) -> int:
    if fields.flag("multi_query", default=False):  # GPT-BigCode: one key for all heads
        return 1
    kv_heads = fields.whole("num_key_value_heads", MOST_HEADS, default=heads if family.every_head else None)
    if heads % kv_heads:
        fields.fault("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads, {heads}; correct one")
    return kv_heads


def _head_dim(fields: ConfigFields, hidden: int, heads: int) -> int:
    key = "head_dim" if fields.get("attention_head_dim") is None else "attention_head_dim"
    if fields.get(key) is None and hidden % heads:
        fields.fault(
            "head_dim", f"is missing, and hidden_size {hidden} is no multiple of num_attention_heads {heads}; add it"
        )
    return fields.whole(key, 10_000, default=max(1, hidden // heads))


def read_latent(fields: ConfigFields) -> LatentAttention:
    """Return the ranks of latent attention."""
    return LatentAttention(
        kv_rank=fields.whole("kv_lora_rank", MOST_WIDTH),
        rope_dim=fields.whole("qk_rope_head_dim", MOST_WIDTH),
        nope_dim=fields.whole("qk_nope_head_dim", MOST_WIDTH),
        value_dim=fields.whole("v_head_dim", MOST_WIDTH),
        query_rank=fields.whole("q_lora_rank", MOST_WIDTH, default=0),
    )


def read_windows(fields: ConfigFields, family: Family, layers: int) -> tuple[int, int]:
    """Return how many layers have a sliding window, and its length in tokens."""
    if family.windows == "chunks":
        return _chunks(fields, family, layers)
    if family.windows == "none" or fields.get("sliding_window") is None:
        return 0, 0
    if family.windows == "switched" and not fields.flag("use_sliding_window", default=False):
        return 0, 0
    window = fields.whole("sliding_window", MOST_WINDOW)
    kinds = of_each_layer(fields, "layer_types", layers, {"sliding_attention", "full_attention"})
    if family.windows == "listed":
        marks = of_each_layer(fields, "hybrid_layer_pattern", layers, {0, 1})
        if not marks:
            fields.fault("hybrid_layer_pattern", "is missing; add it as in the model's published config.json")
        windowed = list(marks).count(1)
    elif kinds:
        windowed = list(kinds).count("sliding_attention")
    elif family.windows == "pattern":
        windowed = layers - layers // _every(fields, family, layers)
    elif family.windows == "switched":
        windowed = layers - fields.whole("max_window_layers", layers, default=layers, least=0)
    else:
        windowed = layers
    return windowed, window if windowed else 0


def _every(fields: ConfigFields, family: Family, layers: int) -> int:
    """Return the n of which each n-th layer has no window."""
    key = "sliding_window_pattern"
    if fields.get(key) is None and fields.get("_sliding_window_pattern") is not None:
        key = "_sliding_window_pattern"
    return fields.whole(key, layers, default=family.pattern)


def read_sharing(fields: ConfigFields, family: Family, layers: int, windowed: int) -> tuple[int, int]:
    """Return how many layers, the last ones, attend what earlier ones cache, and how many of them have a window.

    ``windowed`` of all layers have one. Each kind needs a layer that caches.
    """
    key = "num_kv_shared_layers"
    sharing = fields.whole(key, layers - 1, default=0, least=0)
    if not sharing or family.windows != "pattern":
        return 0, 0
    kinds = of_each_layer(fields, "layer_types", layers, {"sliding_attention", "full_attention"})
    if not windowed:
        within = 0
    elif kinds:
        within = list(kinds[-sharing:]).count("sliding_attention")
    else:
        every = _every(fields, family, layers)
        within = sharing - (layers // every - (layers - sharing) // every)
    full = layers - windowed
    if (within and within >= windowed) or (sharing > within and sharing - within >= full):
        fields.fault(key, f"{sharing} of {layers} layers leave no earlier layer of the same kind to share with")
    return sharing, within


def _chunks(fields: ConfigFields, family: Family, layers: int) -> tuple[int, int]:
    """Return how many layers attend in chunks, and a chunk's length; layers without positions attend everything."""
    if fields.get("attention_chunk_size") is None:
        return 0, 0
    chunk = fields.whole("attention_chunk_size", MOST_WINDOW)
    kinds = of_each_layer(fields, "layer_types", layers, {"chunked_attention", "full_attention"})
    rotated = of_each_layer(fields, "no_rope_layers", layers, {0, 1})
    if kinds:
        chunked = list(kinds).count("chunked_attention")
    elif rotated:
        chunked = list(rotated).count(1)
    else:
        chunked = layers - layers // fields.whole("no_rope_layer_interval", layers, default=family.pattern)
    return chunked, chunk if chunked else 0


def read_compressed(fields: ConfigFields, layers: int) -> CompressedAttention:
    """Return the compression of each layer; 0 means that a layer has only its window."""
    listed = fields.rows("compress_ratios")[:layers]  # an entry more is that of a prediction head
    ratios = [ratio for ratio in listed if isinstance(ratio, int) and not isinstance(ratio, bool) and ratio >= 0]
    if len(ratios) != layers:
        fields.fault("compress_ratios", f"must have a whole number for each of the {layers} layers")
    kinds = sorted({ratio for ratio in ratios if ratio})
    if not kinds:
        fields.fault("compress_ratios", "compresses no layer; add it as in the model's published config.json")
    return CompressedAttention(
        ratios=tuple((ratio, ratios.count(ratio)) for ratio in kinds) or ((1, layers),),
        window=fields.whole("sliding_window", MOST_WINDOW),
        query_rank=fields.whole("q_lora_rank", MOST_WIDTH),
        output_groups=fields.whole("o_groups", MOST_HEADS),
        output_rank=fields.whole("o_lora_rank", MOST_WIDTH),
    )


def read_sparse(
    fields: ConfigFields, family: Family, *, layers: int, hidden: int, compressed: CompressedAttention | None
) -> SparseAttention | None:
    """Return what indexers choose; None: every layer attends all it caches."""
    if family.sparse == "blocks":
        return _blocks(fields, layers, hidden)
    if family.sparse == "none":
        return None
    heads = fields.whole("index_n_heads", MOST_HEADS)
    dim = fields.whole("index_head_dim", MOST_WIDTH)
    rank = fields.whole("q_lora_rank", MOST_WIDTH)
    if compressed is None:
        chosen, key = layers, hidden * dim
    else:
        ratio, chosen = compressed.ratios[0]
        key = compressed.compressor_params(hidden, dim, ratio)
    types = of_each_layer(fields, "indexer_types", layers, {"full", "shared"})
    return SparseAttention(
        layers=chosen,
        top=fields.whole("index_topk", MOST_WINDOW),
        index_layers=list(types).count("full") if types else chosen,
        index_heads=heads,
        index_dim=dim,
        key_bytes=dim + 4 * -(-dim // INDEX_BLOCK),
        params=rank * heads * dim + key + hidden * heads,
    )


def _blocks(fields: ConfigFields, layers: int, hidden: int) -> SparseAttention | None:
    """Return the choice of whole blocks of tokens by an indexer of its own (MiniMax-M3), whose keys have 16 bits."""
    given = fields.part("sparse_attention_config")
    if given is None or not given.flag("use_sparse_attention", default=True):
        return None
    marks = of_each_layer(given, "sparse_attention_freq", layers, {0, 1})
    chosen = list(marks).count(1) if marks else layers
    heads = given.whole("sparse_num_index_heads", MOST_HEADS)
    dim = given.whole("sparse_index_dim", MOST_WIDTH)
    top = given.whole("sparse_topk_blocks", MOST_WINDOW) * given.whole("sparse_block_size", MOST_WINDOW)
    return SparseAttention(
        layers=chosen,
        top=top,
        index_layers=chosen,
        index_heads=heads,
        index_dim=dim,
        key_bytes=2 * dim,
        params=hidden * (heads + 1) * dim,
    )
