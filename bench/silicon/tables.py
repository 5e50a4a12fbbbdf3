"""The passes of well-known models by the tables, and how far a profile is from them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from weft_core.cost import DegreeCosts
from weft_core.dimensions import ModelDimensions
from weft_core.models import MODELS
from weft_core.parallelism import Degree, parse_degree
from weft_planner.profiling.features import prefill_features, step_features
from weft_planner.profiling.knowledge import KnownHardware, known
from weft_planner.profiling.measurements import GridCell
from weft_planner.profiling.silicon import SiliconError, measure, tables_of
from weft_planner.silicon.shipped import representative

DEGREES = (1, 2, 4, 8)
STAGES: tuple[Degree, ...] = tuple(map(parse_degree, ("tp4pp2", "tp8pp2")))
"""Parallelism strategies for any model, beside the degrees."""
EXPERTS: tuple[Degree, ...] = tuple(
    map(
        parse_degree,
        (
            "16", "tp4ep", "tp8ep", "dp4", "dp4ep", "tp2dp2ep", "dp8", "dp8ep", "tp2dp4ep", "tp4dp2ep", "dp16ep",
            "tp2dp8ep", "dp32ep",
        ),
    )
)  # fmt: skip
"""Parallelism strategies for a mixture of experts."""
KINDS = ("prefill", "decode", "mixed")
Floats = NDArray[np.float64]


def degrees_of(model: ModelDimensions) -> tuple[Degree, ...]:
    """Return the parallelism strategies of a model whose profiles are shipped."""
    every = (*DEGREES, *STAGES, *(EXPERTS if model.experts > 1 else ()))
    return tuple(degree for degree in every if model.splits(degree))


@dataclass(frozen=True)
class Passes:
    """All passes of one model at one degree on one GPU and engine: cells and seconds, with the engine's overhead."""

    model: ModelDimensions
    gpu: str
    engine: str
    degree: int
    cells: tuple[GridCell, ...]
    seconds: Floats

    def kinds(self) -> NDArray[np.str_]:
        """Return which of ``KINDS`` each pass is."""
        return np.array(
            ["prefill" if c.function == "prefill" else "mixed" if c.chunk else "decode" for c in self.cells]
        )

    def predicted(self, costs: DegreeCosts) -> Floats:
        """Return the seconds that a profile predicts."""
        found = np.zeros(len(self.cells))
        prefill = np.array([cell.function == "prefill" for cell in self.cells])
        some = tuple(cell for cell in self.cells if cell.function == "prefill")
        if some:
            each = []
            for piece in costs.prefill:
                figures = np.array((*piece.figures[:4], piece.experts_seconds))
                each.append(_prefill_features(some, piece.expert_share) @ figures)
            found[prefill] = np.max(each, axis=0)
        rest = tuple(cell for cell in self.cells if cell.function == "step")
        if rest:
            batch = np.array([cell.batch for cell in rest])
            each = []
            for step in costs.decode:
                figures = np.array([*step.figures[:4], *step.figures[5:8], step.per_chunk])
                each.append(np.where(batch >= step.from_batch, _step_features(rest, step.expert_share) @ figures, 0.0))
            found[~prefill] = np.max(each, axis=0)
        return found


@cache
def _prefill_features(cells: tuple[GridCell, ...], expert_share: float) -> Floats:
    return prefill_features(cells, expert_share=expert_share)


@cache
def _step_features(cells: tuple[GridCell, ...], expert_share: float) -> Floats:
    return step_features(cells, expert_share=expert_share)


def models() -> list[ModelDimensions]:
    """Return the well-known models, one of those with the same dimensions."""
    found = {one for model in MODELS.values() if (one := representative(model)) is not None}
    return sorted(found, key=lambda model: model.name)


def passes(gpu: str, engine: str, only: Sequence[str] = ()) -> Iterator[Passes]:
    """Yield the passes of every model that the tables have on a GPU and an engine, each of its degrees by itself."""
    for model in models():
        if only and model.name not in only:
            continue
        facts: KnownHardware = known(model=model.name, gpu=gpu)
        try:
            found = measure(facts, tables_of(gpu, engine), degrees=DEGREES)
        except SiliconError:
            continue
        for degree in DEGREES:
            rows = [row for row in found.rows if row.cell.degree == degree]
            if rows:
                seconds = np.array([row.seconds for row in rows])
                yield Passes(model, gpu, engine, degree, tuple(row.cell for row in rows), seconds)
