"""Compose T_pre and engine steps from the times of single operators, as AMPD's profiler does (appendix A.1).

A pass through the model is a list of operators with how often each runs: per layer the QKV and output projections,
attention, norms, the feed-forward or its experts, and all-reduces; once the embedding and the output head. Shapes are
those of one GPU of a tensor-parallel worker, so one GPU is enough to time every degree; only all-reduces need more.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, Protocol

from weft_core.communication import all_reduce_seconds
from weft_core.dimensions import LatentAttention, ModelDimensions, WindowedHeads
from weft_core.efficiency import efficiency_for
from weft_core.gpus import Gpu
from weft_core.parallelism import Degree, batches_of
from weft_planner.profiling.measurements import GridCell, Measurement

Kind = Literal[
    "gemm", "head", "experts", "prefill_attention", "decode_attention", "norm", "gated", "rotary", "embedding",
    "all_reduce",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator with its shape; what the numbers mean depends on the kind.

    * gemm: [rows, inner] x [inner, outer]; head: the one that gives the logits
    * experts: rows tokens, each through ``chosen`` of ``count`` experts of inner -> 2 outer -> inner
    * prefill_attention: rows new tokens after ``context`` cached ones; heads, kv_heads, head_dim
    * decode_attention: rows sequences of ``context`` tokens each; heads, kv_heads, head_dim
    * rotary: rows of ``outer``, queries, keys and values together: rotate the first two, store keys and values
    * norm (after adding the residual), gated (silu times gate), embedding (inner = vocabulary), all_reduce over
      ``count`` GPUs: rows of ``outer``
    """

    kind: Kind
    rows: int
    inner: int = 0
    outer: int = 0
    context: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    count: int = 0
    chosen: int = 0


class OperatorTimer(Protocol):
    """Say how long an operator takes on one GPU."""

    def seconds(self, operator: Operator) -> float:
        """Return the seconds of one run.

        Raises:
            OperatorUnknownError: it cannot be timed here: no memory for it, or a table does not have it.
        """


class OperatorUnknownError(Exception):
    """Report an operator that cannot be timed; the message says which and why."""


@dataclass(frozen=True, slots=True)
class EstimatedAllReduce:
    """A timer that estimates all-reduces from the GPU's links and leaves everything else to another timer."""

    timer: OperatorTimer
    model: ModelDimensions
    gpu: Gpu

    def seconds(self, operator: Operator) -> float:
        """Return the time of an operator.

        Raises:
            OperatorUnknownError: the other timer does not know it.
        """
        if operator.kind != "all_reduce":
            return self.timer.seconds(operator)
        latency, per_token = all_reduce_seconds(self.model, self.gpu, operator.count, efficiency_for(self.gpu.name))
        return latency + per_token * operator.rows


@dataclass(frozen=True, slots=True)
class Overheads:
    """What an engine adds to the operators of a pass, in seconds: scheduling, sampling, launching.

    The defaults are assumptions for an engine that replays CUDA graphs and schedules a pass beside the one before.
    """

    prefill: float = 0.002
    step: float = 0.001


ASSUMED_OVERHEADS = Overheads()


@dataclass(frozen=True, slots=True)
class OperatorGrid:
    """The lengths to combine, in tokens; ``contexts`` are per sequence.

    ``chunk_histories`` are those of mixed steps; empty: the least and the middle one of ``histories``.
    """

    histories: tuple[int, ...] = (0, 1024, 4096, 16384)
    increments: tuple[int, ...] = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    contexts: tuple[int, ...] = (256, 1024, 4096, 16384)
    chunks: tuple[int, ...] = (128, 512, 2048)
    chunk_histories: tuple[int, ...] = ()


Pass = Mapping[Operator, int]
"""Operators with how often each runs."""


def cells(grid: OperatorGrid, degrees: Iterable[Degree], *, kv_capacity: Mapping[Degree, int]) -> list[GridCell]:
    """Return the cells of a grid that fit a worker's KV cache (0 or absent: not known).

    Mixed steps have three of the batches, the largest among them: what a chunk costs beside it is no extrapolation.
    """
    found: list[GridCell] = []
    for degree in degrees:
        all_of_it = [
            GridCell("prefill", degree, history=h, increment=i) for h, i in product(grid.histories, grid.increments)
        ]
        all_of_it += [GridCell("step", degree, batch=b, context=b * c) for b, c in product(grid.batches, grid.contexts)]
        middle = sorted(grid.contexts)[(len(grid.contexts) - 1) // 2]
        some = sorted({grid.batches[k] for k in (len(grid.batches) // 3, -1 - len(grid.batches) // 4, -1)})
        short = sorted({min(grid.histories), sorted(grid.histories)[len(grid.histories) // 2]})
        all_of_it += [
            GridCell("step", degree, history=h, batch=b, context=b * middle, chunk=c)
            for b, c, h in product(some, grid.chunks, grid.chunk_histories or short)
        ]
        most = kv_capacity.get(degree, 0) // batches_of(degree)
        found += [c for c in all_of_it if not most or c.context + c.history + c.increment + c.chunk <= most]
    return found


def pass_of(model: ModelDimensions, cell: GridCell) -> Pass:
    """Return the operators of the pass that a cell describes, per GPU.

    Raises:
        OperatorUnknownError: the model has attention whose kernels are no operators here.
    """
    if reason := not_composed(model):
        raise OperatorUnknownError(reason)
    prefilled = cell.increment if cell.function == "prefill" else cell.chunk
    rows = prefilled + cell.batch
    operators: Counter[Operator] = Counter()
    if model.latent is None:
        _grouped_attention(operators, model, cell, prefilled)
    else:
        _latent_attention(operators, model, model.latent, cell, prefilled)
    operators[Operator("norm", rows, outer=model.hidden)] += model.sublayers
    tp = _tp(cell)
    _feed_forward(operators, model, tp, rows)
    if tp > 1:
        operators[Operator("all_reduce", rows, outer=model.hidden, count=tp)] += model.sublayers
    vocabulary = -(-model.vocab // tp)
    answers = cell.batch + (1 if prefilled else 0)
    operators[Operator("embedding", rows, inner=vocabulary, outer=model.hidden)] += 1
    operators[Operator("norm", answers, outer=model.hidden)] += 1
    operators[Operator("head", answers, inner=model.hidden, outer=vocabulary)] += 1
    return operators


def _tp(cell: GridCell) -> int:
    """Return the GPUs that share a layer.

    Raises:
        ValueError: the model is split in another way; such a pass is not made of timed operators.
    """
    if not isinstance(cell.degree, int):
        raise ValueError(f"degree: passes at {cell.degree} are not made of timed operators; give a number of GPUs")
    return cell.degree


def not_composed(model: ModelDimensions) -> str:
    """Return why a model's passes cannot be composed of operators; empty: they can."""
    for kind, shape in (("linear", model.linear), ("compressed", model.compressed), ("sparse", model.sparse)):
        if shape is not None:
            return (
                f"{model.name} has {kind} attention, which is not composed of single operators; measure an engine "
                "(weft profile engine) or take silicon tables (weft profile silicon)"
            )
    return ""


def _grouped_attention(operators: Counter[Operator], model: ModelDimensions, cell: GridCell, prefilled: int) -> None:
    """Add projections and attention of multi-head and grouped-query models.

    Layers with a window have their own lengths, and may have their own heads.
    """
    full = WindowedHeads(model.kv_heads, model.head_dim, model.value_dim or model.head_dim)
    rows, queries = prefilled + cell.batch, model.heads // _tp(cell)
    for times, window, kv in (
        (model.layers - model.windowed_layers, 0, full),
        (model.windowed_layers, model.window, model.windowed_shape),
    ):
        if not times:
            continue
        kv_heads, dim = max(1, kv.kv_heads // _tp(cell)), kv.head_dim
        projected = (queries + kv_heads) * dim + kv_heads * (0 if model.shared_values and not window else kv.value_dim)
        rotated = (queries + kv_heads) * dim + kv_heads * kv.value_dim
        gates = queries * kv.value_dim if model.gated_output else 0
        operators[_gemm(rows, model.hidden, projected + gates)] += times
        operators[Operator("rotary", rows, outer=rotated, heads=queries, kv_heads=kv_heads, head_dim=dim)] += times
        operators[_gemm(rows, queries * kv.value_dim, model.hidden)] += times
        if prefilled:
            # A prefill longer than its window attends like several as long as it.
            part = min(prefilled, window) if window else prefilled
            history = min(cell.history, window) if window else cell.history
            operators[_attention("prefill_attention", part, history, queries, kv_heads, dim)] += times * -(
                -prefilled // part
            )
        if cell.batch:
            each = max(1, cell.context // cell.batch)
            each = min(each, window) if window else each
            operators[_attention("decode_attention", cell.batch, each, queries, kv_heads, dim)] += times


def _latent_attention(
    operators: Counter[Operator], model: ModelDimensions, latent: LatentAttention, cell: GridCell, prefilled: int
) -> None:
    """Add latent attention: prefill rebuilds keys and values of all heads, decode attends to the latents themselves."""
    heads, rows, layers = model.heads // _tp(cell), prefilled + cell.batch, model.layers
    queries = heads * (latent.nope_dim + latent.rope_dim)
    if latent.query_rank:
        operators[_gemm(rows, model.hidden, latent.query_rank)] += layers
    operators[_gemm(rows, latent.query_rank or model.hidden, queries)] += layers
    operators[_gemm(rows, model.hidden, latent.kv_rank + latent.rope_dim)] += layers
    operators[_gemm(rows, heads * latent.value_dim, model.hidden)] += layers
    if prefilled:
        rebuilt = heads * (latent.nope_dim + latent.value_dim)
        operators[_gemm(cell.history + prefilled, latent.kv_rank, rebuilt)] += layers
        dim = latent.nope_dim + latent.rope_dim
        operators[_attention("prefill_attention", prefilled, cell.history, heads, heads, dim)] += layers
    if cell.batch:
        # Queries are taken into the space of the latents and answers out of it: two products per head.
        operators[_gemm(cell.batch, latent.kv_rank, heads * latent.nope_dim)] += layers
        operators[_gemm(cell.batch, latent.kv_rank, heads * latent.value_dim)] += layers
        each = max(1, cell.context // cell.batch)
        dim = latent.kv_rank + latent.rope_dim
        operators[_attention("decode_attention", cell.batch, each, heads, 1, dim)] += layers


def _feed_forward(operators: Counter[Operator], model: ModelDimensions, degree: int, rows: int) -> None:
    def dense(intermediate: int, layers: int) -> None:
        width = -(-intermediate // degree)
        gates = model.ffn_matrices - 1
        operators[_gemm(rows, model.hidden, gates * width)] += layers
        operators[Operator("gated", rows, outer=width)] += layers
        operators[_gemm(rows, width, model.hidden)] += layers

    if model.dense_layers:
        dense(model.dense_intermediate, model.dense_layers)
    if width := model.layer_embedding:
        operators[_gemm(rows, model.hidden, -(-model.layers * width // degree))] += 1
        operators[_gemm(rows, model.hidden, width)] += model.layers
        operators[_gemm(rows, width, model.hidden)] += model.layers
    if model.experts <= 1:
        dense(model.intermediate, model.feed_forwards - model.dense_layers)
        return
    layers = model.expert_layers
    if model.shared_intermediate:
        dense(model.shared_intermediate, layers)
    operators[_gemm(rows, model.hidden, model.experts)] += layers
    width = -(-model.intermediate // degree)
    operators[
        Operator("experts", rows, inner=model.hidden, outer=width, count=model.experts, chosen=model.active_experts)
    ] += layers


def _gemm(rows: int, inner: int, outer: int) -> Operator:
    return Operator("gemm", rows, inner=inner, outer=outer)


def _attention(kind: Kind, rows: int, context: int, heads: int, kv_heads: int, dim: int) -> Operator:
    return Operator(kind, rows, context=context, heads=heads, kv_heads=kv_heads, head_dim=dim)


@dataclass(frozen=True, slots=True)
class ComposedTimings:
    """The times of passes, and the cells that could not be composed with the reason."""

    rows: tuple[Measurement, ...]
    left_out: tuple[str, ...]


def compose(
    model: ModelDimensions,
    wanted: Sequence[GridCell],
    timer: OperatorTimer,
    *,
    overheads: Overheads = ASSUMED_OVERHEADS,
    progress: Callable[[int, int, GridCell], None] = lambda _done, _total, _cell: None,
) -> ComposedTimings:
    """Time every operator of every pass once and add them up; ``progress`` gets (done, total, cell)."""
    if reason := not_composed(model):
        return ComposedTimings((), (reason,))
    known: dict[Operator, float] = {}
    rows: list[Measurement] = []
    left_out: list[str] = []
    for done, cell in enumerate(wanted):
        progress(done, len(wanted), cell)
        seconds = overheads.prefill if cell.function == "prefill" else overheads.step
        try:
            for operator, times in pass_of(model, cell).items():
                if operator not in known:
                    known[operator] = timer.seconds(operator)
                seconds += times * known[operator]
        except OperatorUnknownError as error:
            left_out.append(f"{cell}: {error}")
        else:
            rows.append(Measurement(cell, seconds, str(cell)))
    return ComposedTimings(tuple(rows), tuple(left_out))
