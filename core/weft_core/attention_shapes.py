"""Shapes of the kinds of attention that differ from heads with keys and values of their own.

Widths and ranks are in elements, ``*_bytes`` in bytes, lengths in tokens. ``params`` are the weights of one layer.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Ranks and head widths of multi-head latent attention (DeepSeek-V2, section 2.1).

    Keys and values of all heads are rebuilt from one latent of ``kv_rank`` and one rotated key of ``rope_dim`` per
    token, so the cache holds only those two. ``query_rank`` is 0 where queries are not compressed.
    """

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    query_rank: int = 0


@dataclass(frozen=True, slots=True)
class WindowedHeads:
    """KV heads of the layers with a window, where they differ from those of the other layers (Gemma 4, MiMo-V2)."""

    kv_heads: int
    head_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Layers that keep a state of fixed size per sequence instead of keys and values per token.

    Gated delta net, Kimi delta attention, lightning attention, and Mamba-2.

    * ``params`` and ``state_bytes`` are of one layer; the state is the recurrent one and the convolution's.
    * ``heads``: what tensor parallelism divides; the state is divided with them.
    * ``token_flops``: operations of one layer per token beside the projections: to update the state and read it.
    * ``weight_bytes``: bytes per weight, None: the model's ``dtype_bytes``.
    """

    layers: int
    params: int
    state_bytes: int
    heads: int
    token_flops: int
    weight_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class SparseAttention:
    """An indexer that chooses which cached tokens a new token attends (DeepSeek-V3.2, section 2.1).

    ``layers`` layers attend at most ``top`` cached entries, but cache all. Of them ``index_layers`` have an indexer,
    which caches a key of ``key_bytes`` per entry and scores all entries with ``index_heads`` heads of ``index_dim``;
    the others use the choice of the layer before. ``params`` are the weights of one indexer.
    """

    layers: int
    top: int
    index_layers: int
    index_heads: int
    index_dim: int
    key_bytes: int
    params: int


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Attention over tokens merged into fewer cached entries (DeepSeek-V4: compressed sparse and heavily compressed).

    All heads share one key, which is the value too, of the model's ``head_dim``. ``ratios`` holds (tokens per entry,
    layers); ``window`` is how many last tokens each layer keeps uncompressed as well. Queries are compressed to
    ``query_rank``; the output goes through ``output_groups`` blocks of ``output_rank``.
    """

    ratios: tuple[tuple[int, int], ...]
    window: int
    query_rank: int
    output_groups: int
    output_rank: int

    def compressor_params(self, hidden: int, width: int, ratio: int) -> int:
        """Return the weights that merge tokens into entries of ``width``: values and gates."""
        return 2 * hidden * width * _overlap(ratio)

    def buffer_bytes(self, width: int, ratio: int) -> int:
        """Return the memory of one layer and sequence for tokens that are not merged yet: values and gates, 32 bits.

        As vLLM allocates it (``CompressorStateCache``): where entries overlap, for the tokens of two.
        """
        return 4 * 2 * ratio * width * _overlap(ratio) ** 2


def _overlap(ratio: int) -> int:
    """Return how many values and gates each token has: two where entries merge the tokens of the entry before too."""
    return 2 if ratio == OVERLAPPING else 1


OVERLAPPING = 4
"""The ratio whose entries overlap, which is fixed in DeepSeek-V4's reference implementation."""
