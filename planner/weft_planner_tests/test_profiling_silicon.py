"""Silicon tables as a source of measurements, with a stand-in for the package that has them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from weft_core.models import MODELS
from weft_core.parallelism import Degree
from weft_planner.profiling import silicon
from weft_planner.profiling.compiled_regression import compiled_fits
from weft_planner.profiling.knowledge import FitStrictness, known, profile_from_measurements
from weft_planner.profiling.measurements import GridCell, Measurement, MeasurementContext, Measurements
from weft_planner.profiling.operator_sources import MOST_NAMED, not_measured, operator_times, shares_of, sum_of
from weft_planner.profiling.operators import Overheads, cells
from weft_planner.profiling.silicon import (
    GRID,
    NOISE,
    SiliconEngine,
    SiliconError,
    compose,
    pass_seconds,
    plain_config,
    precision_of_kv,
    tables_of,
)

LLAMA = MODELS["meta-llama/Llama-3.2-1B-Instruct"]
PREFILL = GridCell("prefill", 2, history=1000, increment=24)
STEP = GridCell("step", 2, batch=4, context=400)
MIXED = GridCell("step", 2, batch=4, context=400, chunk=64, history=128)
NONE = Overheads(0.0, 0.0)


@dataclass
class FakeEngine:
    """Answers with figures that tell what was asked; ``lacks`` are calls for which its tables have no operator.

    ``prefills`` are milliseconds by prompt and its cached tokens. Mixed steps lack the decodes' ``latent`` attention.
    """

    lacks: tuple[str, ...] = ()
    prefills: dict[tuple[int, int], float] = field(default_factory=dict)
    latent: bool = False
    asked: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)

    def _ask(self, name: str, *numbers: int) -> None:
        self.asked.append((name, numbers))
        if name in self.lacks:
            raise RuntimeError("perf database error: GEMM data missing for fp8 at /somewhere/tables; more\nand more")

    def predict_prefill_latency(self, bs: int, isl: int, prefix: int = 0) -> float:
        self._ask("prefill", bs, isl, prefix)
        return self.prefills.get((isl, prefix), 12.0)

    def predict_decode_latency(self, bs: int, isl: int, osl: int = 2) -> float:
        self._ask("decode", bs, isl, osl)
        return 6.01 + isl / 100

    def mixed_step_breakdown(
        self, ctx_tokens: int, gen_tokens: int, isl: int, osl: int, prefix: int = 0
    ) -> tuple[float, float, float, float]:
        self._ask("mixed", ctx_tokens, gen_tokens, isl, osl, prefix)
        return 1000.0, 5.0, float(isl), 0.0 if self.latent else float(isl) / 100

    def run_static_per_op(
        self, *, batch_size: int, isl: int, osl: int, prefix: int = 0
    ) -> tuple[Sequence[tuple[str, float, float, str]], Sequence[tuple[str, float, float, str]]]:
        self._ask("sources", batch_size, isl, osl, prefix)
        return [("gemm", 6.0, 0.0, "silicon"), ("norm", 2.0, 0.0, "empirical")], [("attention", 4.0, 0.0, "mixed")]


def test_a_prefill_counts_its_history_as_cached_and_the_engine_adds_to_it() -> None:
    engine = FakeEngine()
    assert pass_seconds(engine, PREFILL, Overheads(0.002, 0.001)) == pytest.approx(0.014)
    assert ("prefill", (1, 1024, 1000)) in engine.asked


def test_a_history_makes_no_prefill_faster() -> None:
    assert pass_seconds(FakeEngine(prefills={(24, 0): 12.0, (1024, 1000): 9.0}), PREFILL, NONE) == pytest.approx(0.012)
    assert pass_seconds(FakeEngine(prefills={(24, 0): 12.0, (1024, 1000): 15.0}), PREFILL, NONE) == pytest.approx(0.015)


def test_a_step_holds_what_each_sequence_had_before_it() -> None:
    engine = FakeEngine()
    assert pass_seconds(engine, STEP, Overheads(0.002, 0.001)) == pytest.approx(0.008)
    assert engine.asked == [("decode", (4, 99, 2))]


def test_a_mixed_step_takes_each_attention_at_its_own_length() -> None:
    engine = FakeEngine(prefills={(64, 0): 20.0, (192, 128): 23.0})
    # Shared operators 5 ms, the chunk's attention over 64 tokens, 3 ms for its history, the decodes' attention over 99.
    assert pass_seconds(engine, MIXED, NONE) == pytest.approx((5 + 64 + 3 + 0.99) / 1e3)
    mixed = [numbers for name, numbers in engine.asked if name == "mixed"]
    assert mixed == [(64, 4, 64, 2, 0), (64, 4, 99, 2, 0)]


def test_a_mixed_step_of_latent_attention_takes_the_contexts_from_a_decode_step() -> None:
    # Shared operators 5 ms and the chunk's 64; a decode step takes 0.98 ms longer after 99 tokens than after one.
    assert pass_seconds(FakeEngine(latent=True), MIXED, NONE) == pytest.approx((5 + 64 + 0.98) / 1e3)


def test_sources_are_shares_of_the_time_of_prefills_and_decode_steps() -> None:
    composed, times = compose(lambda _: FakeEngine(), [PREFILL, STEP, MIXED], overheads=NONE)
    assert [row.cell for row in composed.rows] == [PREFILL, STEP, MIXED]
    assert shares_of(sum_of(times.values())) == pytest.approx(
        {"measured": 6 / 12, "estimated": 2 / 12, "partly measured": 4 / 12}
    )


def test_operators_that_are_not_measured_are_named_by_source_and_time() -> None:
    rows = [
        ("context_gemm", 6.0, 0.0, "silicon"),
        ("context_norm", 1.0, 0.0, "empirical"),
        ("generation_norm", 1.0, 0.0, "sol"),
        ("context_embedding", 0.5, 0.0, "empirical"),
        ("context_ar_1", 0.0, 0.0, "empirical"),
        ("generation_attention", 3.0, 0.0, "mixed"),
    ]
    assert not_measured(operator_times(rows)) == "estimated: norm, embedding; partly measured: attention"
    assert not_measured(operator_times(rows[:1])) == ""
    many = [(f"context_op{i}", 1.0 + i, 0.0, "sol") for i in range(MOST_NAMED + 2)]
    assert not_measured(operator_times(many)).endswith("op2 and 2 more")


def test_steps_of_the_largest_batches_are_predicted_where_kernels_change() -> None:
    def seconds(cell: GridCell) -> float:
        """Return steps that grow faster from 300 sequences on."""
        new = cell.increment + cell.chunk
        prefill = 1e-5 * new + 1e-9 * new * (cell.history + new / 2)
        decode = 1e-8 * cell.context + 3e-5 * cell.batch + 6e-5 * max(0, cell.batch - 300)
        return 2e-3 + prefill + decode

    rows = tuple(Measurement(cell, seconds(cell), str(cell)) for cell in cells(GRID, (2,), kv_capacity={}))
    facts, strictness = known(model=LLAMA.name, gpu="nvidia-h100"), FitStrictness(noise=NOISE, allow_missing=True)
    about = MeasurementContext(LLAMA.name, "nvidia-h100", "vllm")
    with compiled_fits():
        fitted = profile_from_measurements(Measurements(about, rows), facts, strictness)
    for batch in (1, 12, 100, 300, 450, 512):
        cell = GridCell("step", 2, batch=batch, context=batch * 4500)
        assert fitted.t_dec(batch=batch, context=cell.context, degree=2) == pytest.approx(seconds(cell), rel=0.1)


def test_what_tables_lack_is_named_once_with_the_number_of_shapes() -> None:
    engine = FakeEngine(lacks=("decode",))
    cells = [PREFILL, STEP, GridCell("step", 2, batch=8, context=800)]
    composed, _ = compose(lambda _: engine, cells, overheads=NONE)
    assert [row.cell for row in composed.rows] == [PREFILL]
    assert composed.left_out == ("degree 2, steps: GEMM data missing for fp8 (2 shapes)",)


def test_a_degree_without_steps_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {1: FakeEngine(), 2: FakeEngine(lacks=("decode",))}

    @contextmanager
    def fake(*_: object) -> Iterator[Callable[[int], SiliconEngine]]:
        yield engines.__getitem__

    monkeypatch.setattr(silicon, "compiler", fake)
    monkeypatch.setattr(silicon, "package_version", lambda: "0.12.0")
    monkeypatch.setattr(silicon, "release", lambda _: "0.24.0")
    facts, tables = known(model=LLAMA.name, gpu="nvidia-h100"), tables_of("nvidia-h100", "vllm")
    found = silicon.measure(facts, tables, degrees=(1, 2))
    assert {row.cell.degree for row in found.rows} == {1}
    assert [why for why in found.left_out if why.startswith("degree 2, steps: GEMM data missing for fp8")]
    assert found.notes["tables"] == "aiconfigurator-core 0.12.0, h100_sxm, vllm 0.24.0"
    prefills = sum(row.cell.function == "prefill" for row in found.rows)
    steps = sum(row.cell.function == "step" and not row.cell.chunk for row in found.rows)
    measured = 6 * prefills / (8 * prefills + 4 * steps)
    assert f"{measured:.0%} measured" in found.notes["operators"]
    assert found.notes["notMeasured"] == "estimated: norm; partly measured: attention"
    engines[1] = FakeEngine(lacks=("prefill",))
    with pytest.raises(SiliconError, match="degree 1, prefills: GEMM data missing"):
        silicon.measure(facts, tables, degrees=(1, 2))


def test_a_degree_that_cannot_be_compiled_is_tried_once() -> None:
    tried: list[Degree] = []

    def compile_for(degree: Degree) -> SiliconEngine:
        tried.append(degree)
        if degree == 2:
            raise SiliconError("no heads are left over")
        return FakeEngine()

    four = GridCell("prefill", 4, increment=24)
    composed, _ = compose(compile_for, [PREFILL, STEP, four])
    assert tried == [2, 4]
    assert [row.cell for row in composed.rows] == [four]
    assert composed.left_out == ("degree 2: no heads are left over",)


def test_the_kv_cache_keeps_the_precision_of_the_model() -> None:
    """Left to itself it takes 8 bits for every 8-bit checkpoint."""
    deepseek = MODELS["deepseek-ai/DeepSeek-R1"]
    assert precision_of_kv(deepseek)["kvcache_quant_mode"] == "bfloat16"
    assert precision_of_kv(replace(deepseek, kv_dtype_bytes=1.0)) == {"kvcache_quant_mode": "fp8"}


def test_a_plain_model_follows_from_its_dimensions_and_others_ask_for_their_config() -> None:
    config = plain_config(LLAMA)
    assert config["tie_word_embeddings"] is True
    assert config["num_key_value_heads"] == LLAMA.kv_heads
    with pytest.raises(SiliconError, match=r"gemma-2-9b-it: .* give its config.json \(--config, spec.model.config\)"):
        plain_config(MODELS["google/gemma-2-9b-it"])


@pytest.mark.parametrize(
    ("gpu", "engine", "message"),
    [
        ("amd-mi300x", "vllm", "gpu: there are no tables of amd-mi300x"),
        ("nvidia-h100", "mock", "backend: there are no"),
    ],
)
def test_a_gpu_or_an_engine_without_tables_is_named(gpu: str, engine: str, message: str) -> None:
    with pytest.raises(SiliconError, match=message):
        tables_of(gpu, engine)
