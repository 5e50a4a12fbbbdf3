"""Time real operators with torch on a CPU, at toy size; skipped where the extra ``profile`` is not installed."""

import pytest

from weft_core.dimensions import ModelDimensions
from weft_planner.profiling.all_reduce import time_all_reduce
from weft_planner.profiling.fit import FitPriors, fit_profile
from weft_planner.profiling.measurements import GridCell, MeasurementContext, Measurements, Memory
from weft_planner.profiling.operators import Operator, OperatorGrid, OperatorUnknownError, Overheads, cells, compose
from weft_planner.profiling.torch_timer import Repetition, TorchMissingError, TorchTimer

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed (extra profile)")
TOY = ModelDimensions("toy", 2, 256, 8, 2, 32, 512, 1000)
TOY_EXPERTS = ModelDimensions("toy-experts", 2, 256, 8, 2, 32, 128, 1000, experts=8, active_experts=2)
GRID = OperatorGrid((0, 256), (64, 256, 512, 1024), (1, 4, 16), (64, 256, 1024), (128,))


def timer() -> TorchTimer:
    return TorchTimer(device="cpu", dtype="float32", repetition=Repetition(warm_up=1, counted=7, budget_s=0.3))


@pytest.mark.skipif(torch is not None, reason="torch is installed")
def test_without_torch_the_error_says_what_to_install() -> None:
    with pytest.raises(TorchMissingError, match=r"pip install 'weft\[planner,profile\]'"):
        TorchTimer(device="cpu")


@needs_torch
def test_without_a_gpu_the_error_says_where_to_run() -> None:
    assert torch is not None
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(TorchMissingError, match="no CUDA GPU; run where there is one"):
        TorchTimer(device="cuda")


@needs_torch
def test_every_operator_runs_and_larger_ones_take_longer() -> None:
    clock = timer()
    for model in (TOY, TOY_EXPERTS):
        wanted = [
            GridCell("prefill", 1, history=256, increment=64),
            GridCell("prefill", 2, increment=64),
            GridCell("step", 1, history=64, batch=3, context=300, chunk=32),
        ]
        composed = compose(model, wanted, clock)
        assert [row.cell.degree for row in composed.rows] == [1, 1]
        assert all("all_reduce needs 2 GPUs" in text for text in composed.left_out)
    short, long = (clock.seconds(Operator("gemm", 64, inner=n, outer=n)) for n in (64, 1024))
    assert long > 5 * short
    assert clock.name == "cpu"
    assert clock.versions.startswith("torch ")
    assert clock.gpus == 0
    with pytest.raises(OperatorUnknownError, match="all_reduce needs 2 GPUs"):
        clock.seconds(Operator("all_reduce", 1, outer=8, count=2))


@needs_torch
def test_a_toy_model_is_profiled_on_the_cpu() -> None:
    composed = compose(TOY, cells(GRID, (1,), kv_capacity={}), timer(), overheads=Overheads(1e-3, 5e-4))
    assert not composed.left_out
    about = MeasurementContext("toy", "cpu", "operators", 1, {1: Memory(1, 10**6)})
    fitted = fit_profile(Measurements(about, composed.rows), FitPriors(link_rate=1e9))
    costs = fitted.degrees[1]
    assert costs.prefill_fit is not None
    assert costs.step_fit is not None
    assert costs.prefill_fit.median < 0.25  # a shared CPU is noisy: that a fit is made and holds is what counts
    assert costs.step_fit.median < 0.25


@needs_torch
def test_all_reduces_are_timed_between_processes() -> None:
    times = time_all_reduce(2, hidden=64, dtype="float32", backend="gloo")
    assert min(times.values()) > 0
    assert times[16384] > times[1]
