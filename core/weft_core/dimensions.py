"""What a cost model must know of a decoder-only model, and how many weights and operations follow from it.

Everything is counted from the shapes of the matrices. Left out are norms, biases, and other vectors and small mixing
matrices, under 0.2 percent (Gemma 3n: 0.6), and the layers that predict further tokens, which engines load for
speculative decoding only (MiMo, DeepSeek: 0.5 to 2.5 percent of a checkpoint; ``speculation.py``). Bytes are in
``memory.py``.
"""

from dataclasses import dataclass

from weft_core.attention_shapes import (
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    SparseAttention,
    WindowedHeads,
)
from weft_core.parallelism import Degree, parallelism_of

__all__ = [
    "CompressedAttention",
    "LatentAttention",
    "LinearAttention",
    "ModelDimensions",
    "SparseAttention",
    "WindowedHeads",
]


@dataclass(frozen=True, slots=True)
class ModelDimensions:
    """Shapes of one model; lengths in elements, ``window`` in tokens, ``*_bytes`` per weight or KV element.

    * ``layers`` have attention, ``linear.layers`` of them linear attention; each has a feed-forward too, unless
      ``ffn_layers`` says how many there are (Nemotron-H, where a layer is the one or the other).
    * ``intermediate`` is the width of one routed expert where there are experts, else of the feed-forward.
      ``shared_intermediate`` is the width of all shared experts of a layer together; ``dense_layers`` layers (DeepSeek:
      the first_k_dense_replace first ones) have a feed-forward of ``dense_intermediate`` and no experts; in a
      model without experts they are the layers with a wider feed-forward than the others (Gemma 4 E2B).
      ``expert_hidden`` is the width of what routed experts read and write, 0: ``hidden``; elsewhere two projections
      lead there and back (Nemotron 3, Kimi K3: latent experts).
    * ``ffn_matrices`` is 3 for a gated feed-forward, 2 for a plain one (OPT, GPT-NeoX, Nemotron-H).
    * ``value_dim`` is the width of a value head, 0: ``head_dim``. ``shared_values``: outside of the windowed layers
      values are the projected keys, without a projection of their own (Gemma 4). ``gated_output``: attention has one
      more projection, of a gate for its output (Qwen3-Next, Kimi K3).
    * ``windowed_layers`` layers attend, and cache, at most ``window`` tokens of a sequence; the others all of them.
      Attention in chunks (Llama 4) counts as a window as long as a chunk, which is the most that it attends.
    * ``sharing_layers`` layers attend what an earlier layer caches and cache nothing themselves (Gemma 3n and 4);
      ``sharing_windowed`` of them have a window. ``layer_embedding`` is the width of the embedding that each layer has
      of its own, 0: none.
    * ``encoder_params`` are weights of encoders of images and audio, at ``dtype_bytes``.
    * ``prediction_layers`` are the layers behind the last one that predict the tokens after the next one (DeepSeek:
      num_nextn_predict_layers), which the checkpoint holds and nothing else here counts.
    * ``dtype_bytes`` is the precision of what a quantised checkpoint leaves alone (embeddings, expert router);
      ``attention_bytes`` and ``ffn_bytes`` are those of the two large parts, ``None``: the same. ``expert_bytes`` is
      the precision of routed experts, ``None``: ``ffn_bytes``. Quantisation scales are counted in, so 4 bits in groups
      of 128 are a little above 0.5. ``eight_bit_products``: products run at the accelerator's 8-bit rate, because
      activations have 8 bits too.
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
    expert_bytes: float | None = None
    expert_hidden: int = 0
    ffn_layers: int | None = None
    value_dim: int = 0
    shared_values: bool = False
    gated_output: bool = False
    windowed_heads: WindowedHeads | None = None
    linear: LinearAttention | None = None
    sparse: SparseAttention | None = None
    compressed: CompressedAttention | None = None
    encoder_params: int = 0
    sharing_layers: int = 0
    sharing_windowed: int = 0
    layer_embedding: int = 0
    prediction_layers: int = 0

    @property
    def pair_layers(self) -> int:
        """Return how many layers attend pairs of tokens: all but those with linear attention."""
        return self.layers - (self.linear.layers if self.linear is not None else 0)

    @property
    def feed_forwards(self) -> int:
        """Return how many layers have a feed-forward or experts."""
        return self.layers if self.ffn_layers is None else self.ffn_layers

    @property
    def sublayers(self) -> int:
        """Return how many outputs are added up over the GPUs of tensor parallelism: of attention and feed-forward."""
        return self.layers + self.feed_forwards

    @property
    def expert_layers(self) -> int:
        """Return how many layers have experts."""
        return self.feed_forwards - self.dense_layers if self.experts > 1 else 0

    @property
    def windowed_shape(self) -> WindowedHeads:
        """Return the KV heads of layers with a window."""
        return self.windowed_heads or WindowedHeads(self.kv_heads, self.head_dim, self.value_dim or self.head_dim)

    @property
    def attention_params(self) -> int:
        """Return the weights of all query, key, value, output, gate and index projections; linear ones are apart."""
        indexers = self.sparse.index_layers * self.sparse.params if self.sparse is not None else 0
        if self.compressed is not None:
            return self._compressed_params(self.compressed) + indexers
        value_dim = self.latent.value_dim if self.latent is not None else self.value_dim or self.head_dim
        gates = self.pair_layers * self.hidden * self.heads * value_dim if self.gated_output else 0
        if self.latent is not None:
            return self.pair_layers * self._latent_params(self.latent) + gates + indexers
        full = WindowedHeads(self.kv_heads, self.head_dim, value_dim)
        windowed = self.windowed_layers * self._grouped_params(self.windowed_shape, shared_values=False)
        rest = (self.pair_layers - self.windowed_layers) * self._grouped_params(full, shared_values=self.shared_values)
        return windowed + rest + gates + indexers

    @property
    def attention_output_params(self) -> int:
        """Return those of them that are of output projections; 0 where attention is compressed, as not told apart."""
        if self.compressed is not None:
            return 0
        value_dim = self.latent.value_dim if self.latent is not None else self.value_dim or self.head_dim
        windowed = self.windowed_layers * self.windowed_shape.value_dim if self.latent is None else 0
        rest = self.pair_layers - (self.windowed_layers if self.latent is None else 0)
        return self.hidden * self.heads * (windowed + rest * value_dim)

    def _grouped_params(self, kv: WindowedHeads, *, shared_values: bool) -> int:
        keys_and_values = kv.kv_heads * (kv.head_dim + (0 if shared_values else kv.value_dim))
        return self.hidden * (self.heads * (kv.head_dim + kv.value_dim) + keys_and_values)

    def _latent_params(self, latent: LatentAttention) -> int:
        queries = self.heads * (latent.nope_dim + latent.rope_dim)
        rank = latent.query_rank
        query = rank * (self.hidden + queries) if rank else self.hidden * queries
        down = self.hidden * (latent.kv_rank + latent.rope_dim)
        up = latent.kv_rank * self.heads * (latent.nope_dim + latent.value_dim)
        return query + down + up + self.heads * latent.value_dim * self.hidden

    def _compressed_params(self, shape: CompressedAttention) -> int:
        width = self.heads * self.head_dim
        query = shape.query_rank * (self.hidden + width)
        output = width * shape.output_rank + shape.output_groups * shape.output_rank * self.hidden
        each = query + self.hidden * self.head_dim + output
        merging = (n * shape.compressor_params(self.hidden, self.head_dim, ratio) for ratio, n in shape.ratios)
        return self.layers * each + sum(merging)

    @property
    def linear_params(self) -> int:
        """Return the weights of all layers with linear attention."""
        return self.linear.layers * self.linear.params if self.linear is not None else 0

    @property
    def expert_params(self) -> int:
        """Return the weights of all routed experts; 0 for a dense model."""
        width = self.expert_hidden or self.hidden
        return self.expert_layers * self.experts * self.ffn_matrices * width * self.intermediate

    @property
    def dense_ffn_params(self) -> int:
        """Return the feed-forward weights that every token is multiplied with.

        Those of dense layers, of shared experts, and of projections: to the width of latent experts and back, to a
        layer's own embedding and back.
        """
        dense = self.dense_layers * self._ffn(self.dense_intermediate)
        if self.experts == 1:
            own_embeddings = 3 * self.layers * self.hidden * self.layer_embedding
            return dense + (self.feed_forwards - self.dense_layers) * self._ffn(self.intermediate) + own_embeddings
        each = self._ffn(self.shared_intermediate) + 2 * self.hidden * self.expert_hidden
        return dense + self.expert_layers * each

    def _ffn(self, width: int) -> int:
        return self.ffn_matrices * self.hidden * width

    @property
    def embedding_params(self) -> int:
        """Return the weights of the embeddings and of the output head, one matrix with the first when they are tied."""
        return (1 if self.tied_embeddings else 2) * self.vocab * self.hidden + self.layer_embedding_params

    @property
    def layer_embedding_params(self) -> int:
        """Return the weights of the embeddings that layers have of their own, of which a step looks up some rows."""
        return self.vocab * self.layers * self.layer_embedding

    @property
    def router_params(self) -> int:
        """Return the weights that choose experts; a dense model has none."""
        return self.expert_layers * self.hidden * self.experts

    @property
    def params(self) -> int:
        """Return all weights."""
        mixing = self.attention_params + self.linear_params
        body = mixing + self.dense_ffn_params + self.expert_params + self.router_params
        return body + self.embedding_params + self.positions * self.hidden + self.encoder_params

    @property
    def active_params(self) -> int:
        """Return the weights that one token is multiplied with; embeddings and encoders of images are left out."""
        chosen = self.expert_params * self.active_experts // self.experts
        return self.attention_params + self.linear_params + self.dense_ffn_params + chosen + self.router_params

    @property
    def expert_share(self) -> float:
        """Return the share of a token's weights that are routed experts': 0 to 1."""
        chosen = self.expert_params * self.active_experts // self.experts
        return chosen / self.active_params if self.experts > 1 else 0.0

    @property
    def pair_flops(self) -> int:
        """Return operations per layer for each pair of a new and an attended token: scores, then weighted values.

        Layers with a window may have other heads: theirs are in ``attention_groups``.
        """
        if self.latent is None:
            return 2 * self.heads * (self.head_dim + (self.value_dim or self.head_dim))
        return 2 * self.heads * (self.latent.nope_dim + self.latent.rope_dim + self.latent.value_dim)

    @property
    def decode_pair_flops(self) -> int:
        """Return the same for decoding: latent attention then works on the latent itself, not on rebuilt heads."""
        if self.latent is None:
            return self.pair_flops
        return 2 * self.heads * (2 * self.latent.kv_rank + self.latent.rope_dim)

    def splits(self, degree: Degree) -> bool:
        """Return whether a worker of a degree can have its parts of this model; ``why_not`` says what is in the way."""
        return not self.why_not(degree)

    def why_not(self, degree: Degree) -> str:
        """Say why the model cannot be split so, empty where it can.

        Heads divide by tp, those of linear attention and the groups of a compressed output too, and KV heads divide or
        repeat; each stage has a layer; ranks and expert parallelism need routed
        experts, since ranks of a dense model are workers by themselves; and the experts, or each one's width, divide by
        the GPUs that they lie over.
        """
        parts = parallelism_of(degree)
        if not self._heads_split(parts.tp):
            return f"{self.heads} heads and {self.kv_heads} KV heads do not split over {parts.tp} GPUs"
        if parts.pp > self.layers:
            return f"{self.layers} layers do not fill {parts.pp} stages"
        if parts.dp == 1 and not parts.ep:
            return ""
        if self.experts == 1:
            return "it has no routed experts: take more workers instead of ranks"
        spread = parts.expert_gpus
        if parts.ep:
            return f"{self.experts} experts do not divide by {spread} GPUs" if self.experts % spread else ""
        return (
            f"experts of width {self.intermediate} do not divide by {spread} GPUs" if self.intermediate % spread else ""
        )

    def _heads_split(self, tp: int) -> bool:
        linear = self.linear.heads if self.linear is not None else 0
        groups = self.compressed.output_groups if self.compressed is not None else 0
        if self.heads % tp or linear % tp or groups % tp:
            return False
        shared = (self.kv_heads, self.windowed_shape.kv_heads)
        return self.latent is not None or all(heads % tp == 0 or tp % heads == 0 for heads in shared)
