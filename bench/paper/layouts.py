"""AMPD's Table 2 and Figure 7: which layout the integer program ranks first, and how long a whole plan takes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

import numpy as np
from bench.paper.cells import CELLS, GPU, GPUS_PER_NODE, MODEL_NAMES, SETTINGS, Cell
from bench.paper.choosing import request
from bench.paper.goodputs import MEAN
from bench.paper.published import PLANNING_SECONDS

from weft_core.layouts import PlannedGroup, kind_of, layout_name
from weft_planner.evaluation.shortlist import prune
from weft_planner.plan.solve import solve
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.programs.search import LayoutSearch
from weft_planner.programs.solver import Solver
from weft_planner.request.reading import Request, request_of
from weft_planner.workload.presets import preset

TOP = 3
RATES = (0.2, 0.4, 0.6, 0.8, 1.2, 2.4)
"""Sessions per second; the paper does not say which one it planned for."""
OBJECTIVES = ("larger share of the SLO (form A)", "sum of both shares of the SLO")
"""What is least; Table 2's rows 2 and 3 contradict every bottleneck objective, a sum would allow them."""
SHIPPED, SHIPPED_RATE = (OBJECTIVES[0], "normal"), 0.6
"""What the planner solves, and a rate in the middle of those that are compared."""
ENGINES = tuple(setting for setting in SETTINGS if setting.name == "normal" or setting.name.startswith("fast"))
"""H20 has little compute for its memory bandwidth, so engines probably use more of it than elsewhere."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """The first layout of one cell at one rate in one setting, by one objective, beside the paper's."""

    cell: str
    setting: str
    rate: float
    objective: str
    ours: str
    paper: str

    @property
    def same(self) -> bool:
        """Return whether they agree."""
        return self.ours == self.paper


def ranked(rates: Sequence[float] = RATES, cells: Sequence[Cell] = CELLS) -> list[Ranked]:
    """Return what comes first in every cell by phase latencies, before any simulation of whole layouts.

    By the integer program (form A, the larger of both latencies as shares of the SLO), and by their sum over the same
    tables.
    """
    found = []
    with Solver() as solver:
        for cell, setting, rate in product(cells, ENGINES, rates):
            space = prune(prepare_inputs(request(cell, setting, MEAN, rate=rate)), LayoutSearch(solver))
            if space is None:
                raise RuntimeError(f"no layout of {cell} keeps every limit; Table 2 has one")
            both = np.add.outer([c.share for c in space.pairs.prefill], [c.share for c in space.pairs.decode])
            firsts = space.best(1)[0], next(space.pairs.by(both, limits=space.limits))
            found += [
                Ranked(str(cell), setting.name, rate, objective, shape(first.groups), str(cell.layout))
                for objective, first in zip(OBJECTIVES, firsts, strict=True)
            ]
    return found


def shape(groups: Sequence[PlannedGroup]) -> str:
    """Write groups as the paper does: P4x2 D8x1."""
    return layout_name(groups, kind_of(groups))


def trivial(cell: Cell) -> str:
    """Return what "half of the GPUs each, at the largest degree that fits" says, without any model of anything."""
    half = cell.gpus // 2
    degree = min(half, GPUS_PER_NODE)
    return f"P{degree}x{half // degree} D{degree}x{half // degree}"


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of planning for so many GPUs.

    ``pruned_s`` is what the paper's planner does too: phases simulated, program solved. Then a whole plan of ours, the
    same in processor time, and the paper's figure.
    """

    gpus: int
    pruned_s: float
    plan_s: float
    plan_cpu_s: float
    paper: float
    layout: str


def large_request(gpus: int) -> Request:
    """Return the request of the study behind Figure 7: Llama-3.1-70B, DuReader, 0.1 sessions per second and GPU."""
    named = preset("ampd/dureader")
    ttft, itl = named.slo["Llama-3.1-70B"]
    return request_of(
        {
            "model": {"name": MODEL_NAMES["Llama-3.1-70B"]},
            "slo": {"ttft": ttft, "itl": itl},
            "workload": {**named.body, "arrivalRate": 0.1 * gpus},
            "engine": {"type": "vllm"},
            "capacity": {
                "gpus": gpus,
                "pools": [
                    {
                        "name": "gpu",
                        "gpuType": GPU,
                        "gpusPerNode": GPUS_PER_NODE,
                        "gpus": gpus,
                        "degrees": [1, 2, 4, 8],
                    }
                ],
            },
        }
    )


def timed(sizes: Sequence[int] = tuple(PLANNING_SECONDS), *, runs: int = 3) -> list[Timed]:
    """Plan for every size of Figure 7, simulator and solver loaded: 3 seeds, the ten best layouts simulated in full.

    Medians of so many runs.
    """
    found = []
    with Solver() as solver:
        solve(large_request(8), solver=solver)
        for gpus in sizes:
            asked = large_request(gpus)
            measured: list[tuple[float, float, float]] = []
            for _ in range(runs):
                began = time.perf_counter()
                space = prune(prepare_inputs(asked), LayoutSearch(solver))
                if space is not None:
                    space.best(TOP)
                clock, cpu = time.perf_counter(), time.process_time()
                plan, _ = solve(asked, solver=solver)
                measured.append((clock - began, time.perf_counter() - clock, time.process_time() - cpu))
            pruned_s, plan_s, spent = (median(column) for column in zip(*measured, strict=True))
            found.append(Timed(gpus, pruned_s, plan_s, spent, PLANNING_SECONDS[gpus], shape(plan.groups)))
    return found
