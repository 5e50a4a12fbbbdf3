"""Passes composed of operators: what runs, how often, and the profile that follows from timing it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.analytic import derive_profile
from weft_core.communication import all_reduce_seconds
from weft_core.dimensions import ModelDimensions
from weft_core.efficiency import efficiency_for
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_core.parallelism import Degree, gpus_of
from weft_planner.profiling.all_reduce import MeasuredAllReduce
from weft_planner.profiling.knowledge import FitStrictness, known, profile_from_measurements
from weft_planner.profiling.measurements import GridCell, MeasurementContext, Measurements
from weft_planner.profiling.operator_tables import RooflineTimer
from weft_planner.profiling.operators import (
    EstimatedAllReduce,
    Operator,
    OperatorGrid,
    OperatorUnknownError,
    Overheads,
    cells,
    compose,
    not_composed,
    pass_of,
)

LLAMA = MODELS["meta-llama/Llama-3.1-8B-Instruct"]
H100 = GPUS["nvidia-h100"]
DENSE = [model for model in MODELS.values() if model.latent is None and not not_composed(model)]


def step(batch: int, each: int, *, degree: int = 1, chunk: int = 0, history: int = 0) -> GridCell:
    return GridCell("step", degree, history=history, batch=batch, context=batch * each, chunk=chunk)


def weights(model: ModelDimensions, cell: GridCell) -> float:
    """Return how many weights one token meets in the products of a pass, over all GPUs."""
    total = 0.0
    for op, times in pass_of(model, cell).items():
        if op.kind in ("gemm", "head"):
            total += times * op.inner * op.outer
        elif op.kind == "experts":
            total += times * op.chosen * 3 * op.inner * op.outer
    return total * gpus_of(cell.degree)


@pytest.mark.parametrize("model", DENSE, ids=lambda m: m.name)
def test_a_token_meets_every_active_weight_once(model: ModelDimensions) -> None:
    expected = model.active_params + model.vocab * model.hidden
    for cell in (step(1, 10), GridCell("prefill", 1, increment=7)):
        assert weights(model, cell) == pytest.approx(expected, rel=0.001)
    if model.splits(2):
        # Not divided among GPUs, and so counted twice: the choice of experts, the gates of embeddings per layer, and
        # a lone KV head.
        assert weights(model, step(1, 10, degree=2)) == pytest.approx(expected, rel=0.035)


def test_latent_attention_decodes_on_latents_and_prefills_on_rebuilt_heads() -> None:
    model = MODELS["deepseek-ai/DeepSeek-V3"]
    assert model.latent is not None
    (decode,) = [op for op in pass_of(model, step(4, 100)) if op.kind == "decode_attention"]
    assert (decode.kv_heads, decode.head_dim) == (1, model.latent.kv_rank + model.latent.rope_dim)
    (prefill,) = [op for op in pass_of(model, GridCell("prefill", 1, increment=9)) if op.kind == "prefill_attention"]
    assert (prefill.heads, prefill.kv_heads) == (model.heads, model.heads)
    assert weights(model, step(1, 10)) == pytest.approx(model.active_params + model.vocab * model.hidden, rel=0.15)


def test_windowed_layers_attend_no_further_than_their_window() -> None:
    model = replace(LLAMA, windowed_layers=16, window=512)
    decode = {op.context: times for op, times in pass_of(model, step(4, 4096)).items() if op.kind == "decode_attention"}
    assert decode == {4096: 16, 512: 16}
    prefill = [
        (op.rows, op.context, times)
        for op, times in pass_of(model, GridCell("prefill", 1, history=4096, increment=2048)).items()
        if op.kind == "prefill_attention"
    ]
    assert sorted(prefill) == [(512, 512, 64), (2048, 4096, 16)]


@given(st.integers(1, 64), st.integers(16, 4096), st.integers(1, 2048), st.integers(0, 4096))
def test_a_mixed_step_is_never_shorter_than_its_parts(batch: int, each: int, chunk: int, history: int) -> None:
    timer = RooflineTimer(H100)
    mixed = step(batch, each, chunk=chunk, history=history)
    alone = [step(batch, each), GridCell("prefill", 1, history=history, increment=chunk)]
    whole, *parts = (row.seconds for row in compose(LLAMA, [mixed, *alone], timer, overheads=Overheads(0, 0)).rows)
    assert whole >= max(parts) * 0.999
    assert whole <= sum(parts) * 1.001


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B-Instruct", "mistralai/Mixtral-8x7B-Instruct-v0.1"])
def test_a_profile_of_timed_operators_is_near_the_analytic_one_and_fits_its_own_times(name: str) -> None:
    model, degrees = MODELS[name], (2, 4)
    facts = known(model=name, gpu="nvidia-h100")
    derived = derive_profile(model, H100, degrees=degrees)
    capacity: dict[Degree, int] = {n: derived.kv_capacity(n) for n in degrees}
    wanted = cells(OperatorGrid(), degrees, kv_capacity=capacity)
    efficiency = efficiency_for(H100.name)
    # A roofline of operators has not what the kernels of a layer take beside their work.
    experts = efficiency.expert_layer_s if model.experts > 1 else 0.0
    overheads = Overheads(
        efficiency.prefill_overhead_s + model.layers * (efficiency.prefill_layer_s + experts),
        efficiency.decode_overhead_s + model.layers * (efficiency.decode_layer_s + experts),
    )
    timer = EstimatedAllReduce(RooflineTimer(H100), model, H100)
    composed = compose(model, wanted, timer, overheads=overheads)
    assert not composed.left_out
    fitted = profile_from_measurements(
        Measurements(MeasurementContext(name, "nvidia-h100", "operators"), composed.rows),
        facts,
        FitStrictness(allow_missing=True),
    )
    for costs in fitted.degrees.values():
        assert costs.prefill_fit is not None
        assert costs.step_fit is not None
        assert costs.prefill_fit.median < 0.05
        assert costs.step_fit.median < 0.05
    analytic = facts.analytic(degrees)
    assert analytic is not None
    for degree in degrees:
        for history, increment in ((0, 2048), (4096, 1024)):
            ours = fitted.t_pre(history=history, increment=increment, degree=degree)
            assert ours == pytest.approx(analytic.t_pre(history=history, increment=increment, degree=degree), rel=0.15)
        ours = fitted.t_dec(batch=32, context=65536, degree=degree)
        assert ours == pytest.approx(analytic.t_dec(batch=32, context=65536, degree=degree), rel=0.15)


def test_chunks_are_timed_beside_the_largest_batch_too() -> None:
    wanted = cells(OperatorGrid(batches=(1, 2, 4, 8, 16, 512)), (1,), kv_capacity={})
    assert {cell.batch for cell in wanted if cell.chunk} == {4, 16, 512}


def test_what_does_not_fit_the_cache_is_not_timed() -> None:
    wanted = cells(OperatorGrid(), (1,), kv_capacity={1: 5000})
    assert wanted
    assert max(c.context + c.history + c.increment + c.chunk for c in wanted) <= 5000


def test_an_operator_without_memory_leaves_its_cells_out_and_says_so() -> None:
    class Small:
        """Time what has few rows."""

        def seconds(self, operator: Operator) -> float:
            if operator.rows > 100:
                raise OperatorUnknownError("no memory for it")
            return 1e-4

    told: list[int] = []
    composed = compose(
        LLAMA,
        [GridCell("prefill", 1, increment=i) for i in (10, 1000)],
        Small(),
        progress=lambda done, _total, _cell: told.append(done),
    )
    assert [row.cell.increment for row in composed.rows] == [10]
    assert composed.left_out == ("prefill at degree 1, history 0, increment 1000: no memory for it",)
    assert told == [0, 1]


def test_an_operator_is_timed_once() -> None:
    asked: list[Operator] = []

    class Counting:
        """Remember what was asked."""

        def seconds(self, operator: Operator) -> float:
            asked.append(operator)
            return 1e-4

    compose(LLAMA, [GridCell("prefill", 1, history=h, increment=64) for h in (0, 128)], Counting())
    assert len(asked) == len(set(asked))


def test_measured_all_reduces_are_interpolated_and_others_estimated() -> None:
    timer = MeasuredAllReduce(EstimatedAllReduce(RooflineTimer(H100), LLAMA, H100), {2: {1: 1e-5, 100: 1e-3}})
    assert timer.seconds(Operator("all_reduce", 10, outer=4096, count=2)) == pytest.approx(1e-4)
    estimated = timer.seconds(Operator("all_reduce", 10, outer=4096, count=4))
    efficiency = efficiency_for(H100.name)
    latency, per_token = all_reduce_seconds(LLAMA, H100, 4, efficiency)
    assert latency == pytest.approx(efficiency.all_reduce_latency_s * (1 + efficiency.all_reduce_growth))
    assert estimated == pytest.approx(latency + 10 * per_token)
    with pytest.raises(OperatorUnknownError, match="an all-reduce over 2 GPUs"):
        RooflineTimer(H100).seconds(Operator("all_reduce", 10, outer=4096, count=2))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Qwen/Qwen3.5-27B", "linear"),
        ("deepseek-ai/DeepSeek-V3.2", "sparse"),
        ("deepseek-ai/DeepSeek-V4-Flash", "compressed"),
    ],
)
def test_kernels_that_are_no_operators_are_refused_once(name: str, kind: str) -> None:
    composed = compose(MODELS[name], [step(1, 10), step(2, 10)], RooflineTimer(H100))
    assert composed.rows == ()
    (reason,) = composed.left_out
    assert reason.startswith(f"{name} has {kind} attention, which is not composed")
    with pytest.raises(OperatorUnknownError, match="measure an engine"):
        pass_of(MODELS[name], step(1, 10))


def test_layers_with_a_window_may_have_heads_of_their_own() -> None:
    model = MODELS["google/gemma-4-26B-A4B-it"]
    decode = {op: times for op, times in pass_of(model, step(4, 4096)).items() if op.kind == "decode_attention"}
    assert {(op.context, op.kv_heads, op.head_dim): times for op, times in decode.items()} == {
        (4096, 2, 512): 5,
        (1024, 8, 256): 25,
    }


def test_mixed_steps_follow_the_histories_that_are_asked_for() -> None:
    def histories(grid: OperatorGrid) -> set[int]:
        return {cell.history for cell in cells(grid, (1,), kv_capacity={}) if cell.chunk}

    assert histories(OperatorGrid()) == {0, 4096}
    assert histories(OperatorGrid(chunk_histories=(0, 16384))) == {0, 16384}
