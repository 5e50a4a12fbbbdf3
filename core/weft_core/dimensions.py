"""What a cost model must know of a decoder-only transformer, and how many weights and operations follow from it.

Everything is counted from the shapes of the matrices; norms and biases, under 0.2 percent, are left out, and so are
vision towers and multi-token-prediction heads. Bytes are in ``memory.py``.
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
class ModelDimensions:
    """Shapes of one model; lengths in elements, ``window`` in tokens, ``*_bytes`` per weight or KV element.

    * ``intermediate`` is the width of one routed expert where there are experts, else of the feed-forward.
      ``shared_intermediate`` is the width of all shared experts of a layer together; ``dense_layers`` layers (DeepSeek:
      the first_k_dense_replace first ones) have a feed-forward of ``dense_intermediate`` and no experts.
    * ``ffn_matrices`` is 3 for a gated feed-forward, 2 for a plain one (OPT, GPT-NeoX).
    * ``windowed_layers`` layers attend, and cache, at most ``window`` tokens of a sequence; the others all of them.
    * ``dtype_bytes`` is the precision of what a quantised checkpoint leaves alone (embeddings, expert router);
      ``attention_bytes`` and ``ffn_bytes`` are those of the two large parts, ``None``: the same. Quantisation scales
      are counted in, so 4 bits in groups of 128 are a little above 0.5. ``eight_bit_products``: products run at the
      accelerator's 8-bit rate, because activations have 8 bits too.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    experts: int = 1
    active_experts: int = 1
    tied_embeddings: bool = False
    shared_intermediate: int = 0
    dense_layers: int = 0
    dense_intermediate: int = 0
    ffn_matrices: int = 3
    positions: int = 0
    latent: LatentAttention | None = None
    windowed_layers: int = 0
    window: int = 0
    dtype_bytes: float = 2
    attention_bytes: float | None = None
    ffn_bytes: float | None = None
    eight_bit_products: bool = False
    kv_dtype_bytes: float = 2

    @property
    def expert_layers(self) -> int:
        """Return how many layers have experts."""
        return self.layers - self.dense_layers if self.experts > 1 else 0

    @property
    def attention_params(self) -> int:
        """Return the weights of all query, key, value and output projections."""
        latent = self.latent
        if latent is None:
            per_layer = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
            return self.layers * per_layer
        queries = self.heads * (latent.nope_dim + latent.rope_dim)
        rank = latent.query_rank
        query = rank * (self.hidden + queries) if rank else self.hidden * queries
        down = self.hidden * (latent.kv_rank + latent.rope_dim)
        up = latent.kv_rank * self.heads * (latent.nope_dim + latent.value_dim)
        output = self.heads * latent.value_dim * self.hidden
        return self.layers * (query + down + up + output)

    @property
    def expert_params(self) -> int:
        """Return the weights of all routed experts; 0 for a dense model."""
        return self.expert_layers * self.experts * self._ffn(self.intermediate)

    @property
    def dense_ffn_params(self) -> int:
        """Return the feed-forward weights that every token is multiplied with: dense layers and shared experts."""
        if self.experts == 1:
            return self.layers * self._ffn(self.intermediate)
        shared = self.expert_layers * self._ffn(self.shared_intermediate)
        return self.dense_layers * self._ffn(self.dense_intermediate) + shared

    def _ffn(self, width: int) -> int:
        return self.ffn_matrices * self.hidden * width

    @property
    def embedding_params(self) -> int:
        """Return the weights of the token embedding and of the output head, one matrix when they are tied."""
        return (1 if self.tied_embeddings else 2) * self.vocab * self.hidden

    @property
    def router_params(self) -> int:
        """Return the weights that choose experts; a dense model has none."""
        return self.expert_layers * self.hidden * self.experts

    @property
    def params(self) -> int:
        """Return all weights."""
        positions = self.positions * self.hidden
        body = self.attention_params + self.dense_ffn_params + self.expert_params + self.router_params
        return body + self.embedding_params + positions

    @property
    def active_params(self) -> int:
        """Return the weights that one token is multiplied with, embeddings left out."""
        chosen = self.expert_params * self.active_experts // self.experts
        return self.attention_params + self.dense_ffn_params + chosen + self.router_params

    @property
    def pair_flops(self) -> int:
        """Return operations per layer for each pair of a new and an attended token: scores, then weighted values."""
        if self.latent is None:
            return 4 * self.heads * self.head_dim
        return 2 * self.heads * (self.latent.nope_dim + self.latent.rope_dim + self.latent.value_dim)

    @property
    def decode_pair_flops(self) -> int:
        """Return the same for decoding: latent attention then works on the latent itself, not on rebuilt heads."""
        if self.latent is None:
            return self.pair_flops
        return 2 * self.heads * (2 * self.latent.kv_rank + self.latent.rope_dim)

    def splits(self, degree: int) -> bool:
        """Return whether ``degree`` GPUs can share a layer by tensors: heads divide, KV heads divide or repeat."""
        if self.heads % degree:
            return False
        return self.latent is not None or self.kv_heads % degree == 0 or degree % self.kv_heads == 0
