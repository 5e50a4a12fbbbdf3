"""Profile an engine from its URL to its measurements: ask what it is, choose the grid, time it."""

import secrets
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from time import monotonic

from weft_planner.profiling.engine import EngineProfiler, Keep, Progress, Run, Settings
from weft_planner.profiling.engine_budget import Fitted, fitting
from weft_planner.profiling.engine_client import EngineClient, EngineFacts
from weft_planner.profiling.engine_errors import EngineError
from weft_planner.profiling.engine_grid import Ends, Grid, Planned, plan_cells
from weft_planner.profiling.measurements import About, Cell, MeasurementError, Measurements, Memory
from weft_planner.profiling.validation import contradicting


@dataclass(frozen=True, slots=True)
class Target:
    """Where to measure: the engine, the decode engine that reads its KV (empty: none), and what to call them.

    ``served`` is the name requests use, ``gpu`` and ``engine`` go into the profile, ``model`` too (empty: as served).
    """

    url: str
    ends: Ends
    decode_url: str = ""
    served: str = ""
    model: str = ""
    gpu: str = ""
    engine: str = ""
    headers: Mapping[str, str] | None = None
    timeout_s: float = 120.0


async def measure_engine(
    target: Target,
    grid: Grid,
    settings: Settings,
    *,
    start: Measurements | None = None,
    most_batch: int = 0,
    keep: Keep = lambda _: None,
    tell: Callable[[Progress], None] = lambda _: None,
) -> Run:
    """Time everything that fits engine and budget; ``start`` holds what an earlier run measured of the same one.

    A grid too large for the budget is thinned first; where the time is up all the same, what was measured is the
    result, and says so.

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
        seeded = replace(settings, seed=settings.seed or secrets.randbits(32))
        profiler = EngineProfiler(engine, facts, settings=seeded, reader=reader)
        fitted = Fitted(grid, settings.repeats)

        def planned_for(some: Grid) -> Planned:
            return plan_cells(some, facts, target.ends, steps=settings.steps, most_batch=most_batch)

        if start is None and settings.budget_s > 0 and planned_for(grid).cells:
            pace = await profiler.pace()

            def cost(some: Grid, repeats: int) -> float:
                return pace.seconds(planned_for(some).cells, repeats=repeats, steps=settings.steps)

            fitted = fitting(grid, settings.repeats, cost, settings.budget_s - (monotonic() - began))
        planned = planned_for(fitted.grid)
        if not planned.cells:
            raise EngineError(f"{target.url}: holds no shape of the grid: {'; '.join(planned.left_out[:3])}")
        if fitted.left_out:
            before = _noted(before, "grid", "; ".join(fitted.left_out))
        profiler.use(replace(seeded, repeats=fitted.repeats, budget_s=settings.budget_s - (monotonic() - began)))
        run = await profiler.run(before, planned.cells, keep=keep, tell=tell)
        return _judged(replace(run, notes=(*planned.left_out, *fitted.left_out, *run.notes)), settings.noise, keep)


def _judged(run: Run, noise: float, keep: Keep) -> Run:
    """Return a run whose measurements say whether it was cut short, without shapes that noise has spoilt."""
    measurements = run.measurements
    notes = {name: text for name, text in measurements.about.notes.items() if name not in ("partial", "contradictions")}
    odd = set(contradicting(measurements, noise=noise))
    if odd:
        words = "; ".join(map(str, sorted(odd)))
        notes["contradictions"] = f"left out, for they contradicted other shapes by more than {noise:.0%}: {words}"[
            :1000
        ]
        rows = tuple(row for row in measurements.rows if row.cell not in odd)
        measurements = replace(
            measurements, rows=rows, planned=tuple(cell for cell in measurements.planned if cell not in odd)
        )
    if lone := _lone_transfers(measurements):
        notes["transfersLeftOut"] = "of one length alone, which tells no rate: " + "; ".join(map(str, lone))
        measurements = replace(
            measurements,
            rows=tuple(row for row in measurements.rows if row.cell not in lone),
            planned=tuple(cell for cell in measurements.planned if cell not in lone),
        )
    if not run.complete:
        missing = len(measurements.missing())
        notes["partial"] = f"the budget ended first: {missing} of {len(measurements.planned)} shapes were not timed"
    if notes == run.measurements.about.notes:
        return run
    measurements = replace(measurements, about=replace(measurements.about, notes=notes))
    keep(measurements)
    return replace(run, measurements=measurements)


def _lone_transfers(measurements: Measurements) -> list[Cell]:
    """Return the transfers of pairs that only one length was timed of: the others failed, or the time was up."""
    lengths: dict[tuple[int, int, str], set[int]] = {}
    cells = sorted({row.cell for row in measurements.rows if row.cell.function == "transfer"})
    for cell in cells:
        lengths.setdefault((cell.degree, cell.destination, cell.link), set()).add(cell.tokens)
    return [cell for cell in cells if len(lengths[cell.degree, cell.destination, cell.link]) == 1]


def _noted(measurements: Measurements, name: str, text: str) -> Measurements:
    about = measurements.about
    return replace(measurements, about=replace(about, notes={**about.notes, name: text}))


def _client(target: Target, url: str) -> EngineClient:
    return EngineClient(url, model=target.served, timeout_s=target.timeout_s, headers=target.headers)


def _about(target: Target, facts: EngineFacts) -> About:
    engine = target.engine or f"vllm {facts.version}".strip()
    memory = {target.ends.degree: Memory(0, facts.kv_capacity_tokens)} if facts.kv_capacity_tokens else {}
    return About(
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


def _continued(start: Measurements | None, about: About) -> Measurements:
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
        notes={**about.notes, **start.about.notes},
    )
    return replace(start, about=filled)
