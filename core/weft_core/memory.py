"""Count the bytes a model takes on accelerators: weights, KV cache, and what is left for it beside the activations.

Sizes are bytes, lengths tokens. Full attention caches every token in every layer; a sliding-window layer at most its
window; latent attention one latent and one rotated key per token and layer, which tensor parallelism cannot split.
"""

from dataclasses import dataclass

from weft_core.dimensions import ModelDimensions


@dataclass(frozen=True, slots=True)
class KvLayout:
    """KV cache of one sequence, all GPUs of a worker together, each head counted once.

    ``per_token`` bytes for each token in the layers that keep everything, ``per_window_token`` in those that keep
    only the last ``window`` tokens.
    """

    per_token: int
    per_window_token: int = 0
    window: int = 0

    def sequence_bytes(self, tokens: float) -> float:
        """Return the cache of one sequence of ``tokens`` tokens."""
        return self.per_token * tokens + self.per_window_token * min(tokens, self.window)

    @property
    def window_cap(self) -> int:
        """Return the most that windowed layers ever hold for one sequence."""
        return self.per_window_token * self.window

    def mean_per_token(self, tokens: float | None) -> float:
        """Return bytes per token of a sequence of ``tokens``; ``None``: as if no layer had a window, an upper bound."""
        if tokens is None or tokens <= self.window:
            return self.per_token + self.per_window_token
        return self.per_token + self.window_cap / tokens


def kv_layout(model: ModelDimensions) -> KvLayout:
    """Return what one sequence caches: 2 (key and value) x KV heads x head width, or the latent, per layer."""
    latent = model.latent
    elements = 2 * model.kv_heads * model.head_dim if latent is None else latent.kv_rank + latent.rope_dim
    layer = elements * model.kv_dtype_bytes
    windowed = model.windowed_layers if model.window else 0
    return KvLayout(
        per_token=round((model.layers - windowed) * layer),
        per_window_token=round(windowed * layer),
        window=model.window if windowed else 0,
    )


def kv_copies(model: ModelDimensions, degree: int) -> float:
    """Return how often tensor parallelism stores a KV entry: heads repeat once GPUs outnumber them, latents always."""
    return float(degree) if model.latent is not None else max(1.0, degree / model.kv_heads)


def expert_bytes(model: ModelDimensions) -> int:
    """Return the memory of all routed experts; 0 for a dense model, which reads all its weights in every step."""
    return round(model.expert_params * _or(model.ffn_bytes, model.dtype_bytes))


def weight_bytes(model: ModelDimensions) -> int:
    """Return the memory of all weights, each part at its own precision."""
    untouched = model.embedding_params + model.router_params + model.positions * model.hidden
    attention = model.attention_params * _or(model.attention_bytes, model.dtype_bytes)
    dense = model.dense_ffn_params * _or(model.ffn_bytes, model.dtype_bytes)
    return round(untouched * model.dtype_bytes + attention + dense) + expert_bytes(model)


def expert_share(model: ModelDimensions) -> float:
    """Return the share of a layer's routed experts that one token chooses; 0 for a dense model."""
    return model.active_experts / model.experts if model.experts > 1 else 0.0


def kv_capacity_tokens(
    model: ModelDimensions,
    *,
    degree: int,
    gpu_bytes: int,
    fraction: float,
    reserve: int,
    sequence_tokens: float | None = None,
) -> int:
    """Return how many tokens of KV fit beside weights and activations on ``degree`` GPUs; 0 or less: nothing fits.

    ``fraction`` of each GPU's memory is for the engine, ``reserve`` bytes of it for activations. Where layers have
    windows the answer holds for sequences of ``sequence_tokens``; ``None`` counts no window.
    """
    free = degree * (gpu_bytes * fraction - reserve) - weight_bytes(model)
    per_token = kv_layout(model).mean_per_token(sequence_tokens) * kv_copies(model, degree)
    return int(free // per_token)


def _or(own: float | None, default: float) -> float:
    return default if own is None else own
