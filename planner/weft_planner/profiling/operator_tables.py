"""Take operator times from other tools' measured tables instead of from a GPU: aiconfigurator's and Vidur's CSV files.

Both time operators in milliseconds on one GPU. Times between measured numbers of rows are interpolated; attention is
fitted, because its two lengths seldom form a grid; operators that a table lacks (norms, say) are left to a roofline.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from math import exp, log
from pathlib import Path

import numpy as np

from weft_core.analytic import EXPERT_COPY_PASSES
from weft_core.efficiency import efficiency_for
from weft_core.gpus import Gpu
from weft_planner.profiling.features import prefill_features
from weft_planner.profiling.files import csv_lines
from weft_planner.profiling.measurements import GridCell, MeasurementError
from weft_planner.profiling.operators import Operator, OperatorTimer, OperatorUnknownError
from weft_planner.profiling.regression import Floats, MaxAffine, fit_max_affine

_MS = 1e-3
_NEAR = 2.0
"""A matrix of up to this factor more or fewer weights stands in for one that was not measured, scaled by its size."""
_ACTIVATION_BYTES = 2


@dataclass(frozen=True, slots=True)
class TimingRow:
    """One row of a table."""

    operator: Operator
    seconds: float


@dataclass(frozen=True, slots=True)
class RooflineTimer:
    """Estimate operators from a GPU's figures, for what tables lack."""

    gpu: Gpu

    def seconds(self, operator: Operator) -> float:
        """Return the larger of an operator's compute and memory time, of experts both.

        Raises:
            OperatorUnknownError: it needs more than one GPU.
        """
        op, efficiency = operator, efficiency_for(self.gpu.name)
        rate = self.gpu.flops * efficiency.compute
        memory = self.gpu.memory_rate * efficiency.memory
        if op.kind in ("gemm", "head"):
            moved = op.inner * op.outer + op.rows * (op.inner + op.outer)
            return max(2 * op.rows * op.inner * op.outer / rate, moved * _ACTIVATION_BYTES / memory)
        if op.kind == "experts":
            touched = op.count * (1 - (1 - op.chosen / op.count) ** op.rows)
            weights = 3 * op.inner * op.outer
            computed = 2 * op.rows * op.chosen * weights / (self.gpu.flops * efficiency.expert_compute)
            copied = op.rows * op.chosen * EXPERT_COPY_PASSES * op.inner
            return computed + (touched * weights + copied) * _ACTIVATION_BYTES / memory
        if op.kind == "prefill_attention":
            pairs = op.rows * (op.context + op.rows / 2)
            kv = 2 * (op.context + op.rows) * op.kv_heads * op.head_dim * _ACTIVATION_BYTES
            attention = self.gpu.flops * efficiency.attention
            return max(4 * pairs * op.heads * op.head_dim / attention, kv / memory)
        if op.kind == "decode_attention":
            return 2 * op.rows * op.context * op.kv_heads * op.head_dim * _ACTIVATION_BYTES / memory
        if op.kind == "all_reduce":
            raise OperatorUnknownError(f"an all-reduce over {op.count} GPUs is no operator of one GPU")
        passes = {"norm": 4, "gated": 3, "rotary": 2, "embedding": 2}[op.kind]
        return passes * op.rows * op.outer * _ACTIVATION_BYTES / memory


class TableTimer:
    """Look operators up in measured rows."""

    def __init__(self, rows: list[TimingRow], *, otherwise: OperatorTimer) -> None:
        """Order the rows by shape; ``otherwise`` times the kinds that no row has."""
        self._otherwise = otherwise
        self._kinds = {row.operator.kind for row in rows}
        self._lines: dict[Operator, tuple[Floats, Floats]] = {}
        attention: dict[Operator, list[TimingRow]] = {}
        by_shape: dict[Operator, dict[int, list[float]]] = {}
        for row in rows:
            shape = _shape(row.operator)
            if row.operator.kind in ("prefill_attention", "decode_attention"):
                attention.setdefault(shape, []).append(row)
            else:
                by_shape.setdefault(shape, {}).setdefault(row.operator.rows, []).append(row.seconds)
        for shape, times in by_shape.items():
            counts = sorted(times)
            self._lines[shape] = (
                np.log(np.array(counts, dtype=np.float64)),
                np.log(np.array([float(np.median(times[count])) for count in counts])),
            )
        self._fits = {shape: _fit_attention(timed) for shape, timed in attention.items()}

    def seconds(self, operator: Operator) -> float:
        """Return the time of an operator.

        Raises:
            OperatorUnknownError: its kind is in the tables, but no shape near enough.
        """
        if operator.kind == "head":
            return self._head(operator)
        if operator.kind not in self._kinds:
            return self._otherwise.seconds(operator)
        if operator.kind in ("prefill_attention", "decode_attention"):
            model = self._fits.get(_shape(operator))
            if model is None:
                raise OperatorUnknownError(f"the tables have no {operator.kind} of {_heads(operator)}")
            return float(model.seconds(_attention_features([operator]))[0])
        shape, factor = self._nearest(operator)
        counts, times = self._lines[shape]
        at = log(operator.rows)
        if at > counts[-1]:  # beyond the table times grow in proportion
            return factor * exp(times[-1] + at - counts[-1])
        return factor * exp(float(np.interp(at, counts, times)))

    def _head(self, operator: Operator) -> float:
        """Return the time of the output head, which is far larger than other products and often not in a table."""
        try:
            return self.seconds(replace(operator, kind="gemm"))
        except OperatorUnknownError:
            return self._otherwise.seconds(operator)

    def _nearest(self, operator: Operator) -> tuple[Operator, float]:
        shape = _shape(operator)
        if shape in self._lines:
            return shape, 1.0
        size = max(1, shape.inner) * max(1, shape.outer)
        ratios = {
            known: size / (max(1, known.inner) * max(1, known.outer))
            for known in self._lines
            if (known.kind, known.count, known.chosen) == (shape.kind, shape.count, shape.chosen)
        }
        nearest = min(ratios, key=lambda known: abs(log(ratios[known])), default=None)
        if nearest is None or abs(log(ratios[nearest])) > log(_NEAR):
            raise OperatorUnknownError(
                f"the tables have no {operator.kind} near {operator.inner} x {operator.outer}; is it the right model?"
            )
        return nearest, ratios[nearest]


def _shape(op: Operator) -> Operator:
    """Return an operator without the lengths that vary between passes."""
    return Operator(
        op.kind, 0, inner=op.inner, outer=op.outer, heads=op.heads, kv_heads=op.kv_heads, head_dim=op.head_dim,
        count=op.count, chosen=op.chosen,
    )  # fmt: skip


def _heads(op: Operator) -> str:
    return f"{op.heads} heads, {op.kv_heads} KV heads of {op.head_dim}"


def _attention_features(operators: list[Operator]) -> Floats:
    if operators[0].kind == "prefill_attention":
        return prefill_features([GridCell("prefill", 1, history=op.context, increment=op.rows) for op in operators])
    return np.array([[1.0, op.rows, op.rows * op.context] for op in operators])


def _fit_attention(rows: list[TimingRow]) -> MaxAffine:
    table = _attention_features([row.operator for row in rows])
    if rows[0].operator.kind == "prefill_attention" and not any(row.operator.context for row in rows):
        table[:, 3] = 0.0
    if len(rows) < 2:
        raise MeasurementError([f"attention of {_heads(rows[0].operator)}: one row; two or more are needed"])
    model, _ = fit_max_affine(table, np.array([row.seconds for row in rows]))
    return model


def aiconfigurator_tables(folder: Path) -> list[TimingRow]:
    """Read aiconfigurator's operator tables of one system, engine and version: ``*_perf.txt`` or ``.csv``.

    Newer versions keep them as Parquet: convert those to CSV first.

    Raises:
        MeasurementError: there is none, or a row is wrong.
        OSError: a file cannot be read.
    """
    readers: Mapping[str, Callable[[_Line], Iterator[TimingRow]]] = {
        "gemm_perf": _aic_gemm,
        "context_attention_perf": _aic_context,
        "generation_attention_perf": _aic_generation,
        "moe_perf": _aic_experts,
    }
    return _read(folder, readers, "aiconfigurator")


def vidur_tables(folder: Path) -> list[TimingRow]:
    """Read Vidur's profile of one model on one GPU: ``mlp.csv`` and ``attention.csv``.

    Raises:
        MeasurementError: there is none, or a row is wrong.
        OSError: a file cannot be read.
    """
    return _read(folder, {"mlp": _vidur_tokens, "attention": _vidur_attention}, "Vidur")


class _Line:
    """One line of a table; what is wrong with it is gathered."""

    def __init__(self, fields: Mapping[str, object], where: str, problems: list[str]) -> None:
        self.fields = fields
        self.where = where
        self.problems = problems

    def text(self, name: str) -> str:
        return str(self.fields.get(name, ""))

    def whole(self, name: str, *, default: int | None = None) -> int:
        text = self.text(name)
        if text == "" and default is not None:
            return default
        try:
            return int(float(text))
        except (ValueError, OverflowError):
            self.problems.append(f"{self.where}, {name}: {text!r} is not a whole number; correct the table")
            return 1

    def seconds(self, name: str) -> float | None:
        """Return a time given in milliseconds; None where the table leaves it empty, as not measured."""
        text = self.text(name)
        if text == "":
            return None
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not 0 < number < 1e9:
            self.problems.append(f"{self.where}, {name}: {text!r} is no time; measure again, or empty the field")
            return None
        return number * _MS


def _read(folder: Path, readers: Mapping[str, Callable[[_Line], Iterator[TimingRow]]], tool: str) -> list[TimingRow]:
    rows: list[TimingRow] = []
    problems: list[str] = []
    for stem, reader in readers.items():
        for path in (folder / f"{stem}.csv", folder / f"{stem}.txt"):
            if not path.exists():
                continue
            lines = csv_lines(path.read_text(encoding="utf-8"), path.name)
            rows += chain.from_iterable(reader(_Line(fields, where, problems)) for fields, where in lines)
    if not rows and not problems:
        problems.append(f"{folder}: holds none of {tool}'s tables ({', '.join(f'{stem}.csv' for stem in readers)})")
    if problems:
        raise MeasurementError(problems)
    return rows


def _sixteen_bit(line: _Line, *names: str) -> bool:
    return all(line.text(name) in ("", "bfloat16", "float16") for name in names)


def _aic_gemm(line: _Line) -> Iterator[TimingRow]:
    seconds = line.seconds("latency")
    if seconds is not None and _sixteen_bit(line, "gemm_dtype"):
        yield TimingRow(Operator("gemm", line.whole("m"), inner=line.whole("k"), outer=line.whole("n")), seconds)


def _aic_context(line: _Line) -> Iterator[TimingRow]:
    seconds = line.seconds("latency")
    # Several prompts at once are no prefill of Weft's.
    if seconds is None or line.whole("batch_size") != 1 or not _sixteen_bit(line, "attn_dtype", "kv_cache_dtype"):
        return
    heads = line.whole("num_heads")
    kv_heads = line.whole("num_key_value_heads") or heads
    yield TimingRow(
        Operator(
            "prefill_attention", line.whole("isl"), context=line.whole("step", default=0), heads=heads,
            kv_heads=kv_heads, head_dim=line.whole("head_dim"),
        ),
        seconds,
    )  # fmt: skip


def _aic_generation(line: _Line) -> Iterator[TimingRow]:
    seconds = line.seconds("latency")
    if seconds is None or not _sixteen_bit(line, "kv_cache_dtype"):
        return
    heads = line.whole("num_heads")
    kv_heads = line.whole("num_key_value_heads") or heads
    held = line.whole("isl") + line.whole("step", default=0)
    yield TimingRow(
        Operator(
            "decode_attention", line.whole("batch_size"), context=held, heads=heads, kv_heads=kv_heads,
            head_dim=line.whole("head_dim"),
        ),
        seconds,
    )  # fmt: skip


def _aic_experts(line: _Line) -> Iterator[TimingRow]:
    seconds = line.seconds("latency")
    if seconds is None or not _sixteen_bit(line, "moe_dtype") or line.whole("moe_ep_size", default=1) != 1:
        return
    width = line.whole("inter_size") // max(1, line.whole("moe_tp_size", default=1))
    yield TimingRow(
        Operator(
            "experts", line.whole("num_tokens"), inner=line.whole("hidden_size"), outer=width,
            count=line.whole("num_experts"), chosen=line.whole("topk"),
        ),
        seconds,
    )  # fmt: skip


def _vidur_tokens(line: _Line) -> Iterator[TimingRow]:
    """Yield a line's projections, feed-forward and norms: each column is one operator."""
    rows, degree = line.whole("num_tokens"), line.whole("num_tensor_parallel_workers")
    hidden, heads, kv_heads = (line.whole(name) for name in ("n_embd", "n_head", "n_kv_head"))
    width, vocab = line.whole("n_expanded_embd") // degree, line.whole("vocab_size")
    gates = 2 if line.text("use_gated_mlp").lower() in ("true", "1") else 1
    dim = hidden // max(1, heads)
    shapes = {
        "attn_pre_proj": Operator(
            "gemm", rows, inner=hidden, outer=(heads // degree + 2 * max(1, kv_heads // degree)) * dim
        ),
        "attn_post_proj": Operator("gemm", rows, inner=heads // degree * dim, outer=hidden),
        "mlp_up_proj": Operator("gemm", rows, inner=hidden, outer=gates * width),
        "mlp_down_proj": Operator("gemm", rows, inner=width, outer=hidden),
        "mlp_act": Operator("gated", rows, outer=width),
        "input_layernorm": Operator("norm", rows, outer=hidden),
        "emb": Operator("embedding", rows, inner=-(-vocab // degree), outer=hidden),
    }
    for name, operator in shapes.items():
        seconds = line.seconds(f"time_stats.{name}.median")
        if seconds is not None:
            yield TimingRow(operator, seconds)


def _vidur_attention(line: _Line) -> Iterator[TimingRow]:
    degree, heads, kv_heads = (line.whole(n) for n in ("num_tensor_parallel_workers", "n_q_head", "n_kv_head"))
    dim, batch = line.whole("n_embd") // max(1, heads), line.whole("batch_size")
    prefilling = line.text("is_prefill").lower() in ("true", "1")
    seconds = line.seconds(f"time_stats.attn_{'prefill' if prefilling else 'decode'}.median")
    if seconds is None or (prefilling and batch != 1):
        return
    yield TimingRow(
        Operator(
            "prefill_attention" if prefilling else "decode_attention",
            line.whole("prefill_chunk_size") if prefilling else batch,
            context=line.whole("kv_cache_size"),
            heads=heads // degree,
            kv_heads=max(1, kv_heads // degree),
            head_dim=dim,
        ),
        seconds,
    )
