"""Profile an engine from its URL to its measurements: ask what it is, choose the grid, time it."""

import secrets
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from time import monotonic

from weft_core.parallelism import Degree
from weft_planner.profiling.engine_budget import EngineSpeed, FittedGrid, fitting, longest_wait
from weft_planner.profiling.engine_client import EngineClient, EngineFacts
from weft_planner.profiling.engine_errors import EngineError
from weft_planner.profiling.engine_grid import Grid, GridPlan, TransferEnds, plan_cells
from weft_planner.profiling.engine_profiler import (
    EngineProfiler,
    OptionalTiming,
    ProfilingProgress,
    ProfilingRun,
    ProfilingSettings,
    SaveMeasurements,
)
from weft_planner.profiling.engine_timer import EngineTimer
from weft_planner.profiling.measurements import MeasurementContext, MeasurementError, Measurements, Memory
from weft_planner.profiling.validation import contradicting_cells


@dataclass(frozen=True, slots=True)
class ProfilingTarget:
    """Where to measure: the engine, the decode engine that reads its KV (empty: none), and what to call them.

    ``served`` is the name requests use, ``gpu`` and ``engine`` go into the profile, ``model`` too (empty: as served).
    """

    url: str
    ends: TransferEnds
    decode_url: str = ""
    served: str = ""
    model: str = ""
    gpu: str = ""
    engine: str = ""
    headers: Mapping[str, str] | None = None
    timeout_s: float = 120.0


async def measure_engine(
    target: ProfilingTarget,
    grid: Grid,
    settings: ProfilingSettings,
    *,
    start: Measurements | None = None,
    most_batch: int = 0,
    save: SaveMeasurements = lambda _: None,
    progress: Callable[[ProfilingProgress], None] = lambda _: None,
) -> ProfilingRun:
    """Time everything that fits engine and budget; ``start`` holds what an earlier run measured of the same one.

    A grid too large for the budget is thinned first, by an estimate; what is left of the time then goes to the shapes
    that were thinned out. Where the time is up before, what was measured is the result, and says so. A shape that the
    engine is late with is left out before it takes the others' time.

    Raises:
        EngineError: an engine cannot be profiled.
        MeasurementError: ``start`` is of another model, GPU or engine.
    """
    async with AsyncExitStack() as stack:
        began = monotonic()
        engine = await stack.enter_async_context(_client(target, target.url))
        facts = await engine.facts()
        reader: EngineClient | None = None
        if target.decode_url:
            reader = await stack.enter_async_context(_client(target, target.decode_url))
            other = await reader.facts()
            if other.block_size != facts.block_size:
                raise EngineError(
                    f"{target.decode_url}: has KV blocks of {other.block_size} tokens, {target.url} of "
                    f"{facts.block_size}; start both with the same --block-size"
                )
        about = _about(target, facts)
        before = _continued(start, about)
        seed = settings.seed or secrets.randbits(32)
        timer = EngineTimer(engine, facts, steps=settings.steps, seed=seed, reader=reader)
        fitted, spare = FittedGrid(grid, settings.repeats), list[OptionalTiming]()

        def planned_for(some: Grid) -> GridPlan:
            return plan_cells(some, facts, target.ends, steps=settings.steps, most_batch=most_batch)

        if start is None and settings.budget_s > 0 and planned_for(grid).cells:
            speed = await timer.measure_speed()

            def cost(some: Grid, repeats: int) -> float:
                return speed.seconds(planned_for(some).cells, repeats=repeats, steps=settings.steps)

            fitted = fitting(grid, settings.repeats, cost, settings.budget_s - (monotonic() - began))
            spare = _spare(planned_for(grid), planned_for(fitted.grid), fitted.repeats, settings, speed)
        planned = planned_for(fitted.grid)
        if not planned.cells:
            raise EngineError(f"{target.url}: holds no shape of the grid: {'; '.join(planned.left_out[:3])}")
        left_s = settings.budget_s - (monotonic() - began)
        for client in (engine, *([reader] if reader is not None else [])):
            client.wait_at_most(longest_wait(left_s))
        profiler = EngineProfiler(timer, replace(settings, repeats=fitted.repeats, budget_s=left_s))
        run = await profiler.run(before, planned.cells, save=save, progress=progress, spare=spare)
        thinned = _thinned(fitted, planned_for(grid), run)
        if thinned:
            run = replace(run, measurements=_noted(run.measurements, "grid", "; ".join(thinned)))
            save(run.measurements)
        return _evaluated(replace(run, notes=(*planned.left_out, *thinned, *run.notes)), settings.noise, save)


def _spare(
    whole: GridPlan, chosen: GridPlan, repeats: int, settings: ProfilingSettings, speed: EngineSpeed
) -> list[OptionalTiming]:
    """Return what a budget left out of a grid, what costs least first, then the repeats that it left out."""
    once = {cell: speed.seconds([cell], repeats=1, steps=settings.steps) for cell in whole.cells}
    shapes = sorted((cell for cell in whole.cells if cell not in chosen.cells), key=once.__getitem__)
    order = [cell for cell in shapes for _ in range(repeats)]
    order += [cell for _ in range(settings.repeats - repeats) for cell in whole.cells]
    return [OptionalTiming(cell, once[cell]) for cell in order]


def _thinned(fitted: FittedGrid, whole: GridPlan, run: ProfilingRun) -> tuple[str, ...]:
    """Return what a budget left out of a grid, and how much of it was timed all the same."""
    timed = {row.cell for row in run.measurements.rows}
    missing = [cell for cell in whole.cells if cell not in timed | run.dropped]
    if not fitted.left_out or not missing:
        return ()
    return (*fitted.left_out, f"time was left for all but {len(missing)} of {len(whole.cells)} shapes")


def _evaluated(run: ProfilingRun, noise: float, save: SaveMeasurements) -> ProfilingRun:
    """Return a run whose measurements say whether it was cut short, without shapes that noise has spoilt."""
    measurements = run.measurements
    notes = {name: text for name, text in measurements.about.notes.items() if name not in ("partial", "contradictions")}
    odd = set(contradicting_cells(measurements, noise=noise))
    if odd:
        words = "; ".join(map(str, sorted(odd)))
        notes["contradictions"] = f"left out, for they contradicted other shapes by more than {noise:.0%}: {words}"[
            :1000
        ]
        rows = tuple(row for row in measurements.rows if row.cell not in odd)
        measurements = replace(
            measurements, rows=rows, planned=tuple(cell for cell in measurements.planned if cell not in odd)
        )
    if not run.complete:
        missing = len(measurements.missing())
        notes["partial"] = f"the budget ended first: {missing} of {len(measurements.planned)} shapes were not timed"
    if notes == run.measurements.about.notes:
        return run
    measurements = replace(measurements, about=replace(measurements.about, notes=notes))
    save(measurements)
    return replace(run, measurements=measurements)


def _noted(measurements: Measurements, name: str, text: str) -> Measurements:
    about = measurements.about
    return replace(measurements, about=replace(about, notes={**about.notes, name: text}))


def _client(target: ProfilingTarget, url: str) -> EngineClient:
    return EngineClient(url, model=target.served, timeout_s=target.timeout_s, headers=target.headers)


def _about(target: ProfilingTarget, facts: EngineFacts) -> MeasurementContext:
    engine = target.engine or facts.engine
    memory: dict[Degree, Memory] = (
        {target.ends.degree: Memory(0, facts.kv_capacity_tokens)} if facts.kv_capacity_tokens else {}
    )
    return MeasurementContext(
        model=target.model or facts.model,
        gpu=target.gpu,
        engine=engine,
        memory=memory,
        notes={
            "source": "engine",
            "prefill": "time to first token over HTTP, history from the prefix cache",
            "step": "mean gap between tokens of a batch",
            **({"kvFormat": facts.kv_format} if facts.kv_format else {}),
        },
    )


def _continued(start: Measurements | None, about: MeasurementContext) -> Measurements:
    if start is None:
        return Measurements(about, ())
    problems = [
        f"{name}: the file is of {theirs!r}, this engine is {mine!r}; measure into another file"
        for name in ("model", "gpu", "engine")
        if (theirs := getattr(start.about, name)) != (mine := getattr(about, name)) and theirs and mine
    ]
    if problems:
        raise MeasurementError(problems)
    filled = replace(
        start.about,
        model=start.about.model or about.model,
        gpu=start.about.gpu or about.gpu,
        engine=start.about.engine or about.engine,
        memory={**about.memory, **start.about.memory},
        notes={**about.notes, **{name: text for name, text in start.about.notes.items() if name != "grid"}},
    )
    return replace(start, about=filled)
