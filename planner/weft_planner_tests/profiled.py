"""Cost profiles and noisy measurements of them that the profiling tests share."""

from collections.abc import Iterable
from itertools import product

import numpy as np

from weft_core.cost import LINKS, CostProfile, DecodePiece, DegreeCosts, Link, PrefillPiece, TransferCost
from weft_core.parallelism import Degree
from weft_planner.profiling.measurements import GridCell, Measurement, MeasurementContext, Measurements, Memory
from weft_planner.profiling.validation import predict_cell

HISTORIES = (0, 1024, 4096, 16384)
INCREMENTS = (16, 64, 256, 512, 1024, 2048, 4096, 8192)
BATCHES = (1, 4, 16, 64, 128)
CONTEXTS = (256, 1024, 4096, 16384)
CHUNKS = (128, 512, 2048)


def profile(*, degrees: Iterable[int] = (1, 2), experts: float = 0.0) -> CostProfile:
    """Return a profile with compute-bound and memory-bound regimes that cross inside the grids above."""
    costs: dict[Degree, DegreeCosts] = {
        n: DegreeCosts(
            prefill=(
                PrefillPiece(alpha=0.012, per_token=9e-5 / n, per_pair=3e-9 / n),
                PrefillPiece(alpha=0.012 + 0.018 / n, per_token=2e-6, per_context_token=6e-7 / n),
            ),
            decode=(
                DecodePiece(0.005, 9e-5 / n, 2e-9, per_chunk_token=9e-5 / n, per_chunk_pair=3e-9 / n),
                DecodePiece(
                    alpha=0.005 + 0.012 / n,
                    per_sequence=1e-5,
                    per_context_token=2e-7 / n,
                    experts_seconds=experts,
                    expert_share=0.25 if experts else 0.0,
                    per_chunk_token=2e-6,
                    per_chunk_context=6e-7 / n,
                ),
            ),
            weight_bytes_per_gpu=16 * 10**9 // n,
            kv_capacity_tokens=400_000 * n,
        )
        for n in degrees
    }
    transfers: dict[tuple[Degree, Degree, Link], TransferCost] = {
        (s, d, link): TransferCost(0.004, 5e-6 / min(s, d)) for s in degrees for d in degrees for link in LINKS
    }
    return CostProfile("test/model", "test-gpu", "test-engine", 131072, costs, transfers)


def grid(degrees: Iterable[int] = (1, 2)) -> list[GridCell]:
    """Return prefills, steps, mixed steps and transfers over the grids above."""
    cells: list[GridCell] = []
    for n in degrees:
        cells += [GridCell("prefill", n, history=h, increment=i) for h, i in product(HISTORIES, INCREMENTS)]
        cells += [GridCell("step", n, batch=b, context=b * each) for b, each in product(BATCHES, CONTEXTS)]
        cells += [
            GridCell("step", n, history=h, batch=b, context=b * 1024, chunk=c)
            for b, c, h in product((4, 64), CHUNKS, (0, 4096))
        ]
        cells += [GridCell("transfer", n, tokens=t, destination=n) for t in (256, 1024, 4096, 16384)]
    return cells


def measured(of: CostProfile, cells: Iterable[GridCell], *, noise: float = 0.0, seed: int = 0) -> Measurements:
    """Return what measuring a worker that follows the profile gives, with lognormal noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for index, cell in enumerate(cells):
        seconds = predict_cell(of, cell)
        assert seconds is not None
        rows.append(Measurement(cell, seconds * float(np.exp(rng.normal(0, noise))), f"rows[{index}]"))
    memory: dict[Degree, Memory] = {
        n: Memory(c.weight_bytes_per_gpu, c.kv_capacity_tokens) for n, c in of.degrees.items()
    }
    about = MeasurementContext(of.model, of.gpu, of.engine, of.kv_bytes_per_token, memory)
    return Measurements(about, tuple(rows))


def median_error(fitted: CostProfile, truth: CostProfile, cells: Iterable[GridCell]) -> float:
    """Return the median relative error of one profile against another over cells."""
    errors = []
    for cell in cells:
        got, right = predict_cell(fitted, cell), predict_cell(truth, cell)
        assert got is not None
        assert right is not None
        errors.append(abs(got / right - 1))
    return float(np.median(errors))
