"""Group a model's layers by what they cache of each token and how many tokens they attend.

Layers with linear attention are in no group: they cache no tokens. The groups are what memory and the analytic cost
count with, so that a window, a sparse choice and compression each stand in one place.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from weft_core.dimensions import CompressedAttention, ModelDimensions
from weft_core.parallelism import Degree, parallelism_of

Cached = Literal["all", "window", "fixed", "shared"]


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers that cache and attend alike.

    * ``entry_bytes``: what one layer caches of one token on all GPUs together, each head counted once; a fraction of
      an entry where several tokens share one.
    * ``cached``: all tokens, those of the ``window`` last ones that there are, (``fixed``) always a whole window, or
      (``shared``) nothing, as they attend what layers of another group cache.
    * ``attends``: the most tokens that a new token attends, 0: all.
    * ``pair_flops`` and ``decode_pair_flops``: operations of one layer per new and attended token, in prefill and
      decode.
    * ``copied_beyond``: the KV heads; more GPUs hold copies. 1 where there is nothing to divide.
    """

    layers: int
    entry_bytes: float
    pair_flops: float
    decode_pair_flops: float
    copied_beyond: int
    cached: Cached = "all"
    attends: int = 0

    def copies(self, degree: Degree) -> float:
        """Return how often tensor parallelism stores an entry: heads repeat once GPUs outnumber them."""
        return max(1.0, parallelism_of(degree).tp / self.copied_beyond)

    def attended(self, tokens: float | None) -> float:
        """Return the share of a sequence's tokens that a new token at its end attends; None: all, an upper bound."""
        return min(1.0, self.attends / tokens) if self.attends and tokens else 1.0


def attention_groups(model: ModelDimensions) -> tuple[AttentionGroup, ...]:
    """Return the groups of a model; their layers may overlap, for example attention and its indexer."""
    groups = _compressed(model, model.compressed) if model.compressed is not None else _plain(model)
    return tuple(group for group in (*groups, *_indexers(model)) if group.layers)


def _plain(model: ModelDimensions) -> Iterator[AttentionGroup]:
    windowed = model.windowed_layers if model.window else 0
    chosen = model.sparse.layers if model.sparse is not None else 0
    sharing = model.sharing_layers - model.sharing_windowed
    latent = model.latent
    if latent is None:
        elements = model.kv_heads * (model.head_dim + (model.value_dim or model.head_dim))
    else:
        elements = latent.kv_rank + latent.rope_dim
    copied_beyond = model.kv_heads if latent is None else 1
    full = AttentionGroup(
        model.pair_layers - windowed - chosen - sharing,
        elements * model.kv_dtype_bytes, model.pair_flops, model.decode_pair_flops, copied_beyond,
    )  # fmt: skip
    yield full
    yield replace(full, layers=chosen, attends=model.sparse.top if model.sparse is not None else 0)
    yield replace(full, layers=sharing, cached="shared")
    within = replace(full, layers=windowed - model.sharing_windowed, cached="window", attends=model.window)
    if model.windowed_heads is not None:
        kv = model.windowed_shape
        flops = 2 * model.heads * (kv.head_dim + kv.value_dim)
        within = replace(
            within, entry_bytes=kv.kv_heads * (kv.head_dim + kv.value_dim) * model.kv_dtype_bytes,
            pair_flops=flops, decode_pair_flops=flops, copied_beyond=kv.kv_heads,
        )  # fmt: skip
    yield within
    yield replace(within, layers=model.sharing_windowed, cached="shared")


def _compressed(model: ModelDimensions, shape: CompressedAttention) -> Iterator[AttentionGroup]:
    """Yield a window for every layer, and the merged entries, of which sparse layers attend a choice.

    Keys are the values: an entry is one vector, and all GPUs hold all of them.
    """
    entry = model.head_dim * model.kv_dtype_bytes
    flops = model.pair_flops
    yield AttentionGroup(model.layers, entry, flops, flops, 1, cached="fixed", attends=shape.window)
    for ratio, layers in shape.ratios:
        top = model.sparse.top if model.sparse is not None and ratio == chosen_ratio(shape) else 0
        yield AttentionGroup(layers, entry / ratio, flops / ratio, flops / ratio, 1, attends=top * ratio)


def chosen_ratio(shape: CompressedAttention) -> int:
    """Return the ratio of the layers with an indexer: the smallest."""
    return min(ratio for ratio, _ in shape.ratios)


def _indexers(model: ModelDimensions) -> Iterator[AttentionGroup]:
    """Yield what indexers cache and score: one key per entry for all heads, of which every GPU holds a copy."""
    sparse = model.sparse
    if sparse is None:
        return
    ratio = chosen_ratio(model.compressed) if model.compressed is not None else 1
    flops = 2 * sparse.index_heads * sparse.index_dim / ratio
    yield AttentionGroup(sparse.index_layers, sparse.key_bytes / ratio, flops, flops, 1)
