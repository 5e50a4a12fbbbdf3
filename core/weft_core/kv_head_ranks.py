"""Which KV heads each rank of tensor parallelism has: what engines of unlike degrees must know of each other."""

from weft_core.dimensions import ModelDimensions


def kv_heads_of_ranks(model: ModelDimensions, tp: int) -> tuple[tuple[int, ...], ...] | None:
    """Return the numbers of the KV heads on each of ``tp`` ranks: consecutive ones, or one that neighbours share.

    ``None`` where no such division exists: neither number divides the other, or the layers cache something other than
    the same KV heads (latents, states, compressed entries, windowed layers with heads of their own).
    """
    heads = model.kv_heads
    own = (model.latent, model.linear, model.compressed, model.sparse, model.windowed_heads)
    if any(part is not None for part in own) or (heads % tp and tp % heads):
        return None
    if tp >= heads:
        return tuple((rank * heads // tp,) for rank in range(tp))
    each = heads // tp
    return tuple(tuple(range(rank * each, (rank + 1) * each)) for rank in range(tp))
