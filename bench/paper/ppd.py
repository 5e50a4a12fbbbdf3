"""PPD's Table 1: by how much the second turn's TTFT falls when later prefills stay on the decode worker."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np
from bench.paper.published import PPD_LOADS, PPD_TTFT_CHANGE

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfile
from weft_core.efficiency import DEFAULTS, Efficiency
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_planner.simulation import Layout, Options, PolicyChoice, SloClass, layout_of, simulate
from weft_planner.workload.presets import presets
from weft_planner.workload.sessions import Sample, Size, draw
from weft_planner.workload.traffic import Workload

LINK = 25e9
"""Bytes per second of KV between two GPUs, before the link's efficiency: an assumption that carries the table."""
RUN_S = 10.0
SLO = (SloClass(10.0, 1.0),)
"""Nobody reads it: neither the rule nor first-come-first-served looks at thresholds."""
LAYOUTS = {"1P 3D": (1, 3), "2P 2D": (2, 2), "3P 1D": (3, 1)}
ENGINE = Options(links="fifo", history="recompute", chunked=False, warm_up=0.0, cool_down=0.0)


@dataclass(frozen=True, slots=True)
class Change:
    """How the second turn's mean TTFT differs at x = 1 from x = 0, percent, of one layout at one column of loads.

    ``ours`` is the median over workloads and rates; a few of them are beyond what the layout carries, and the ``mean``
    is mostly theirs.
    """

    layout: str
    load: str
    ours: float
    mean: float
    paper: float


def conversations() -> Mapping[str, Workload]:
    """Return the 18 two-turn workloads: 2 first turns x 9 second turns; the paper names their kinds, not lengths."""
    named = {name: one for name, one in presets().items() if name.startswith(("ppd/short-", "ppd/long-"))}
    return {
        name: Workload.model_validate({**one.body, "arrivalRate": 1.0})
        for name, one in sorted(named.items())
        if name != "ppd/long-context"
    }


def table(
    seeds: Sequence[int], workloads: Mapping[str, Workload], *, efficiency: Efficiency | None = DEFAULTS
) -> list[Change]:
    """Run every workload at every load of the paper with both routings; returns the nine entries of Table 1.

    ``efficiency`` is that of the engine, None for the factors that are fitted to an H100's kernels.
    """
    gpu = replace(GPUS["nvidia-h100"], kv_in_node=LINK)
    model = MODELS["meta-llama/Llama-3.1-8B-Instruct"]
    costs = {"gpu": derive_profile(model, gpu, degrees=(1,), efficiency=efficiency)}
    found = []
    for name, (prefill, decode) in LAYOUTS.items():
        layout = layout_of("disaggregated", prefill={1: prefill}, decode={1: decode}, gpus_per_node=4)
        for (load, rates), paper in zip(PPD_LOADS.items(), PPD_TTFT_CHANGE[name], strict=True):
            changes = []
            for workload in workloads.values():
                for rate in rates:
                    remote, local = (
                        fmean(second_ttft(workload, rate, seed, layout, costs, x) for seed in seeds) for x in (0.0, 1.0)
                    )
                    if math.isfinite(remote + local):
                        changes.append(100 * (local - remote) / remote)
            found.append(Change(name, load, median(changes), fmean(changes), paper))
    return found


def second_ttft(
    workload: Workload, rate: float, seed: int, layout: Layout, costs: Mapping[str, CostProfile], x: float
) -> float:
    """Return the mean TTFT of the second turns of one run, seconds."""
    sample = sample_of(workload, rate, seed)
    rule = PolicyChoice(route="fixed-x", order="fcfs", binding="least-requests", params={"x": x})
    outcome = simulate(sample, layout, costs, rule, SLO, options=ENGINE, seed=seed)
    later = np.ones(sample.rows, np.bool_)
    later[sample.first_row] = False
    return float(outcome.ttft[later].mean())


def sample_of(workload: Workload, rate: float, seed: int) -> Sample:
    """Draw ten seconds of arrivals at an idle system, as the paper ran them."""
    return draw(
        workload, max_model_len=32768, round_seconds=5.0, seed=seed, rate=rate, size=Size(seconds=RUN_S), steady=False
    )


def error(changes: Iterable[Change], figure: str = "ours") -> float:
    """Return the mean absolute difference to the paper, percentage points."""
    return fmean(abs(getattr(one, figure) - one.paper) for one in changes)
