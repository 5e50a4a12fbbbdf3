"""Profile two engines within a budget, and time shapes that the grid did not have."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from bench.profile.engines import Pair

from weft_core.cost import CostProfile
from weft_planner.profiling.engine_grid import Grid, TransferEnds
from weft_planner.profiling.engine_profiler import ProfilingRun, ProfilingSettings
from weft_planner.profiling.engine_run import ProfilingTarget, measure_engine
from weft_planner.profiling.knowledge import FitStrictness, KnownHardware, known, profile_from_measurements
from weft_planner.profiling.measurements import Measurements

GPU = "nvidia-l40s"
"""As the tiny service calls its pool's GPU; what is measured is a core of this machine."""
KV_FORMAT = "float32"
GRID = Grid(
    histories=(0, 512, 2048),
    increments=(32, 128, 512, 1024),
    batches=(1, 2, 4, 8),
    contexts=(256, 1024),
    chunks=(128, 512),
    transfers=(256, 512, 1024, 2048),
)
HELD_OUT = Grid(
    histories=(0, 256, 1280),
    increments=(64, 300, 800),
    batches=(1, 3, 6),
    contexts=(384, 768),
    chunks=(),
    transfers=(384, 768, 1536),
)
NOISE = 2.0
"""Two cores that others use, too: the fit takes medians, and what it makes of them is what is judged here."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """A profile and the run that it came from."""

    profile: CostProfile
    run: ProfilingRun


def profiled(pair: Pair, model: Path, *, budget_s: float, repeats: int = 5) -> Profiled:
    """Measure both engines as ``weft profile engine`` does, both ways, and fit a profile."""
    run = _measured(pair, GRID, budget_s=budget_s, repeats=repeats)
    found = known(model=run.measurements.about.model, gpu="", config=model / "config.json", kv_format=KV_FORMAT)
    profile = profile_from_measurements(
        run.measurements, KnownHardware(found.model, None), FitStrictness(noise=NOISE, allow_missing=True)
    )
    return Profiled(profile, run)


def held_out(pair: Pair, *, budget_s: float, before: Measurements | None = None) -> Measurements:
    """Time shapes that the grid of the profile did not have, twice each; after the profile on top of ``before``.

    Half of them before it and half after it: what else the machine does changes within minutes, and is no fit's fault.
    """
    return _measured(pair, HELD_OUT, budget_s=budget_s, repeats=4 if before else 2, start=before).measurements


def _measured(
    pair: Pair, grid: Grid, *, budget_s: float, repeats: int, start: Measurements | None = None
) -> ProfilingRun:
    target = ProfilingTarget(
        pair.prefill.url, TransferEnds(1, 1, "inter-node", back=True), decode_url=pair.decode.url, gpu=GPU
    )
    settings = ProfilingSettings(repeats=repeats, budget_s=budget_s, noise=NOISE)
    return asyncio.run(measure_engine(target, grid, settings, start=start))
