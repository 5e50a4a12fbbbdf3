"""A Llama that runs a pass as vLLM does: fused products, FlashAttention over a KV cache, fused small operators.

Weights are random and made on the device, so nothing is downloaded. Rotary frequencies are those of Llama 3 without
Llama 3.1's stretching of the low ones: the same work. A test holds its logits against transformers' LlamaForCausalLM.
"""

from dataclasses import dataclass
from typing import Any

from weft_core.dimensions import ModelDimensions
from weft_planner.profiling.cuda_graphs import flash_attention
from weft_planner.profiling.fused import FusedKernels, rotations
from weft_planner.profiling.measurements import GridCell

EPSILON = 1e-5
THETA = 500_000.0


@dataclass(frozen=True)
class Layer:
    """Weights of one layer, each [outputs, inputs]; ``qkv`` and ``gate_up`` are fused, norms are vectors."""

    input_norm: Any
    qkv: Any
    output: Any
    feed_forward_norm: Any
    gate_up: Any
    down: Any


@dataclass(frozen=True)
class Weights:
    """All weights of a model."""

    embedding: Any
    layers: tuple[Layer, ...]
    norm: Any
    head: Any


@dataclass(frozen=True)
class Batch:
    """The tokens of one pass: those of decoding sequences first, then those of one prefill.

    ``decoding`` sequences hold ``context`` tokens each with their new one, in slots [0, decoding * context) of the
    cache. The prefill has ``prefilled`` new tokens after ``history`` cached ones, from slot ``start`` on. ``answers``
    are the rows whose logits are wanted.
    """

    tokens: Any
    positions: Any
    slots: Any
    answers: Any
    decoding: int
    context: int
    prefilled: int
    history: int
    start: int


def random_weights(torch: Any, model: ModelDimensions, *, device: Any, dtype: Any) -> Weights:
    """Return weights drawn with deviation 0.02, as models are initialised."""

    def drawn(outputs: int, inputs: int) -> Any:
        return torch.empty(outputs, inputs, device=device, dtype=dtype).normal_(0.0, 0.02)

    def ones() -> Any:
        return torch.ones(model.hidden, device=device, dtype=dtype)

    queries, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    layers = tuple(
        Layer(
            ones(), drawn(queries + 2 * kv, model.hidden), drawn(model.hidden, queries),
            ones(), drawn(2 * model.intermediate, model.hidden), drawn(model.hidden, model.intermediate),
        )
        for _ in range(model.layers)
    )  # fmt: skip
    return Weights(drawn(model.vocab, model.hidden), layers, ones(), drawn(model.vocab, model.hidden))


class Llama:
    """A model with a KV cache of so many tokens, laid out token by token."""

    def __init__(
        self, torch: Any, model: ModelDimensions, weights: Weights, fused: FusedKernels, *, kv_tokens: int
    ) -> None:
        """Allocate the cache and fill it with random keys and values."""
        self._torch = torch
        self._model = model
        self._weights = weights
        self._fused = fused
        self.kv_tokens = kv_tokens
        device, dtype = weights.embedding.device, weights.embedding.dtype
        shape = (kv_tokens, model.kv_heads, model.head_dim)
        self._cache = [
            tuple(torch.empty(shape, device=device, dtype=dtype).normal_() for _ in range(2))
            for _ in range(model.layers)
        ]
        self._rotations = rotations(torch, kv_tokens, model.head_dim, theta=THETA, device=device)

    def forward(self, batch: Batch) -> Any:
        """Return logits [answers, vocabulary]; the keys and values of all new tokens are in the cache afterwards."""
        functional = self._torch.nn.functional
        model, weights, fused = self._model, self._weights, self._fused
        residual = functional.embedding(batch.tokens, weights.embedding)
        x = functional.rms_norm(residual, (model.hidden,), weights.layers[0].input_norm, EPSILON)
        with flash_attention():
            for number, layer in enumerate(weights.layers):
                if number:
                    x = fused.add_rms_norm(x, residual, layer.input_norm, EPSILON)
                qkv = functional.linear(x, layer.qkv)
                keys, values = self._cache[number]
                fused.rotate_and_store(
                    qkv, self._rotations, batch.positions, batch.slots, keys, values, heads=model.heads
                )
                x = functional.linear(self._attention(qkv, keys, values, batch), layer.output)
                x = fused.add_rms_norm(x, residual, layer.feed_forward_norm, EPSILON)
                x = functional.linear(fused.silu_and_mul(functional.linear(x, layer.gate_up)), layer.down)
        x, residual = x[batch.answers], residual[batch.answers]
        return functional.linear(fused.add_rms_norm(x, residual, weights.norm, EPSILON), weights.head)

    def _attention(self, qkv: Any, keys: Any, values: Any, batch: Batch) -> Any:
        """Return what new tokens attend to: [rows, heads * dim]; decode and prefill by a kernel each."""
        from torch.nn.attention.bias import causal_lower_right

        model, attend = self._model, self._torch.nn.functional.scaled_dot_product_attention
        width, grouped = model.heads * model.head_dim, model.heads != model.kv_heads
        queries = qkv[:, :width].unflatten(1, (model.heads, model.head_dim))
        parts = []
        if batch.decoding:
            shape = (batch.decoding, batch.context, model.kv_heads, model.head_dim)
            held = [kv[: batch.decoding * batch.context].view(shape).transpose(1, 2) for kv in (keys, values)]
            found = attend(queries[: batch.decoding].unsqueeze(2), *held, enable_gqa=grouped)
            parts.append(found.reshape(batch.decoding, width))
        if batch.prefilled:
            total = batch.history + batch.prefilled
            held = [kv[batch.start : batch.start + total].unsqueeze(0).transpose(1, 2) for kv in (keys, values)]
            new = queries[batch.decoding :].unsqueeze(0).transpose(1, 2)
            # Aligned with the last key: new tokens see the whole history.
            found = attend(new, *held, attn_mask=causal_lower_right(batch.prefilled, total), enable_gqa=grouped)
            parts.append(found.transpose(1, 2).reshape(batch.prefilled, width))
        return parts[0] if len(parts) == 1 else self._torch.cat(parts)


def batch_of(torch: Any, cell: GridCell, *, vocab: int, device: Any) -> Batch:
    """Return random tokens in the shape of a cell."""
    prefilled = cell.increment if cell.function == "prefill" else cell.chunk
    context = cell.context // cell.batch if cell.batch else 0
    start = cell.batch * context
    new = torch.arange(cell.history, cell.history + prefilled, device=device)
    last = torch.full((cell.batch,), max(0, context - 1), device=device)
    sequences = torch.arange(cell.batch, device=device) * context
    rows = cell.batch + prefilled
    answers = list(range(cell.batch)) + ([rows - 1] if prefilled else [])
    return Batch(
        tokens=torch.randint(0, vocab, (rows,), device=device),
        positions=torch.cat((last, new)),
        slots=torch.cat((sequences + last, start + new)),
        answers=torch.tensor(answers, device=device),
        decoding=cell.batch,
        context=context,
        prefilled=prefilled,
        history=cell.history,
        start=start,
    )
