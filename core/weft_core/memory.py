"""Count the bytes a model takes on accelerators: weights, KV cache, and what is left for it beside the activations.

Sizes are bytes, lengths tokens. Full attention caches every token in every layer; a sliding-window layer at most its
window; latent attention one latent and one rotated key per token and layer, which tensor parallelism cannot split;
sparse attention a key of its indexer as well. Layers that attend an earlier layer's KV cache nothing. Linear attention
keeps a state of fixed size per sequence.
"""

from dataclasses import dataclass

from weft_core.attention_groups import attention_groups, chosen_ratio
from weft_core.dimensions import ModelDimensions
from weft_core.parallelism import Degree, gpus_of, parallelism_of


@dataclass(frozen=True, slots=True)
class KvLayout:
    """KV cache of one sequence, all GPUs of a worker together.

    ``per_token`` bytes for each token in the layers that keep everything, ``per_window_token`` in those that keep
    only the last ``window`` tokens, and ``state`` bytes whatever the sequence's length.
    """

    per_token: int
    per_window_token: int = 0
    window: int = 0
    state: int = 0

    def sequence_bytes(self, tokens: float) -> float:
        """Return the cache of one sequence of ``tokens`` tokens."""
        return self.per_token * tokens + self.per_window_token * min(tokens, self.window) + self.state

    @property
    def window_cap(self) -> int:
        """Return the most that windowed layers ever hold for one sequence."""
        return self.per_window_token * self.window

    def token_bytes(self, tokens: float | None) -> float:
        """Return bytes per token of a sequence of ``tokens``; ``None``: as if no layer had a window, an upper bound."""
        if tokens is None or tokens <= self.window:
            return self.per_token + self.per_window_token
        return self.per_token + self.window_cap / tokens

    def mean_per_token(self, tokens: float | None) -> float:
        """Return the same with the state spread over the tokens; ``None``: without it, as no length is known."""
        return self.token_bytes(tokens) + (self.state / tokens if tokens else 0)


def kv_layout(model: ModelDimensions, degree: Degree = 1) -> KvLayout:
    """Return what one sequence caches: 2 (key and value) x KV heads x head width, or the latent, per layer.

    With a ``degree`` it is what all GPUs of a rank hold, with what tensor parallelism stores more than once: heads
    repeat once GPUs outnumber them, latents and index keys always, states of linear attention never.
    """
    sizes = {"all": 0.0, "window": 0.0, "fixed": 0.0}
    for group in attention_groups(model):
        if group.cached == "shared":
            continue
        length = group.attends if group.cached == "fixed" else 1
        sizes[group.cached] += group.layers * group.entry_bytes * length * group.copies(degree)
    return KvLayout(
        per_token=round(sizes["all"]),
        per_window_token=round(sizes["window"]),
        window=model.window if model.windowed_layers else 0,
        state=round(sizes["fixed"]) + state_bytes(model) + parallelism_of(degree).tp * merging_bytes(model),
    )


def decode_read_per_token(model: ModelDimensions, degree: Degree, tokens: float | None) -> float:
    """Return the cached bytes per token of a sequence that a decode step reads on all GPUs of a worker.

    What is cached, but of sparse attention only what the indexer chooses, and without the states (``state_bytes``).
    """
    return sum(
        group.layers * group.entry_bytes * group.copies(degree) * group.attended(tokens)
        for group in attention_groups(model)
    )


def state_bytes(model: ModelDimensions) -> int:
    """Return the states of one sequence in all layers with linear attention, which a decode step reads and writes."""
    return model.linear.layers * model.linear.state_bytes if model.linear is not None else 0


def merging_bytes(model: ModelDimensions) -> int:
    """Return what compressed attention and its indexer keep of one sequence's tokens that are not merged yet."""
    shape, sparse = model.compressed, model.sparse
    if shape is None:
        return 0
    total = sum(layers * shape.buffer_bytes(model.head_dim, ratio) for ratio, layers in shape.ratios)
    if sparse is not None:
        total += sparse.index_layers * shape.buffer_bytes(sparse.index_dim, chosen_ratio(shape))
    return total


def expert_bytes(model: ModelDimensions) -> int:
    """Return the memory of all routed experts; 0 for a dense model, which reads all its weights in every step."""
    return round(model.expert_params * _or(model.expert_bytes, _or(model.ffn_bytes, model.dtype_bytes)))


def weight_bytes(model: ModelDimensions) -> int:
    """Return the memory of all weights, each part at its own precision."""
    untouched = model.embedding_params + model.router_params + model.positions * model.hidden + model.encoder_params
    attention = model.attention_params * _or(model.attention_bytes, model.dtype_bytes)
    linear = model.linear_params * _or(model.linear.weight_bytes if model.linear else None, model.dtype_bytes)
    dense = model.dense_ffn_params * _or(model.ffn_bytes, model.dtype_bytes)
    return round(untouched * model.dtype_bytes + attention + linear + dense) + expert_bytes(model)


def step_weight_bytes(model: ModelDimensions) -> int:
    """Return the weights that every step reads: all but routed experts, encoders, and the embeddings of layers."""
    unread = model.encoder_params + model.layer_embedding_params
    return round(weight_bytes(model) - expert_bytes(model) - unread * model.dtype_bytes)


def worker_weight_bytes(model: ModelDimensions, degree: Degree) -> int:
    """Return the memory of a worker's weights: data-parallel ranks have everything but routed experts of their own."""
    experts = expert_bytes(model)
    return parallelism_of(degree).dp * (weight_bytes(model) - experts) + experts


def expert_share(model: ModelDimensions) -> float:
    """Return the share of a layer's routed experts that one token chooses; 0 for a dense model."""
    return model.active_experts / model.experts if model.experts > 1 else 0.0


def share_of_ranks(share: float, ranks: int) -> float:
    """Return the share of the experts that one token of each data-parallel rank chooses: ranks share their experts."""
    return share if ranks == 1 else 1 - (1 - share) ** ranks


def kv_capacity_tokens(
    model: ModelDimensions,
    *,
    degree: Degree,
    gpu_bytes: int,
    fraction: float,
    reserve: int,
    sequence_tokens: float | None = None,
) -> int:
    """Return how many tokens of KV fit beside a worker's weights and activations; 0 or less: nothing fits.

    ``fraction`` of each GPU's memory is for the engine, ``reserve`` bytes of it for activations. Where layers have
    windows or states the answer holds for sequences of ``sequence_tokens``; ``None``: for one sequence, its windows
    not counted. Pipeline stages are taken to hold equal parts.
    """
    layout = kv_layout(model, degree)
    free = gpus_of(degree) * (gpu_bytes * fraction - reserve) - worker_weight_bytes(model, degree)
    if sequence_tokens is None:
        free -= layout.state
    return int(free // layout.mean_per_token(sequence_tokens))


def _or(own: float | None, default: float) -> float:
    return default if own is None else own
