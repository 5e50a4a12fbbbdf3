"""Profile a mock engine on loopback: the fitted profile is the one that the engine follows."""

from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from weft_core.cost import CostProfile, DecodePiece, DegreeCosts, PrefillPiece, TransferCost
from weft_mock_tests.engines import MODEL, at_rest, config, engines
from weft_planner.profiling import engine_budget, engine_transfers
from weft_planner.profiling.engine_client import EngineClient, EngineError, EngineFacts
from weft_planner.profiling.engine_errors import TooSlow
from weft_planner.profiling.engine_grid import Grid, TransferEnds, plan_cells
from weft_planner.profiling.engine_profiler import (
    EngineProfiler,
    OptionalTiming,
    ProfilingProgress,
    ProfilingRun,
    ProfilingSettings,
)
from weft_planner.profiling.engine_run import ProfilingTarget, measure_engine
from weft_planner.profiling.engine_timer import EngineTimer
from weft_planner.profiling.files import read_measurements, write_measurements
from weft_planner.profiling.fit import fit_profile
from weft_planner.profiling.measurements import GridCell, Measurement, MeasurementContext, Measurements, Memory
from weft_planner.profiling.validation import predict_cell
from weft_planner_tests.profiled import measured, median_error, profile

pytestmark = [pytest.mark.component, pytest.mark.alone]  # it times an engine: what runs beside it is noise

SMALL = Grid(
    histories=(0, 1024),
    increments=(16, 512, 1024, 2048),
    batches=(1, 2, 4),
    contexts=(64, 512),
    chunks=(),
    transfers=(64, 1024),
)
SETTINGS = ProfilingSettings(steps=6, repeats=1, seed=7)


def slow_profile(*, prefill: float = 1.0) -> CostProfile:
    """Return a profile so slow that a busy machine's scheduling is small beside it; ``prefill`` scales that part."""
    costs = DegreeCosts(
        prefill=(
            PrefillPiece(alpha=0.2 * prefill, per_token=1e-4 * prefill, per_pair=1e-7 * prefill),
            PrefillPiece(alpha=0.3 * prefill, per_context_token=2e-5 * prefill),
        ),
        decode=(
            DecodePiece(0.02, 2e-3, 2e-6, per_chunk_token=1e-4, per_chunk_pair=5e-8),
            DecodePiece(0.025, 0.0, 4e-6, per_chunk_token=1e-4, per_chunk_pair=5e-8),
        ),
        weight_bytes_per_gpu=1,
        kv_capacity_tokens=65536,
    )
    transfers = {(1, 1, "inter-node"): TransferCost(alpha=0.3, per_token=2e-4)}
    return CostProfile(MODEL, "none", "mock", 100, {1: costs}, transfers)  # type: ignore[arg-type]


def quick_profile() -> CostProfile:
    """Return a profile in which prefills take little, and transfers enough to be seen."""
    profile = slow_profile(prefill=0.02)
    return replace(profile, transfers={(1, 1, "inter-node"): TransferCost(alpha=0.03, per_token=3e-5)})


def profiler_of(
    engine: EngineClient, facts: EngineFacts, settings: ProfilingSettings, *, reader: EngineClient | None = None
) -> EngineProfiler:
    """Return what times a grid on an engine."""
    return EngineProfiler(EngineTimer(engine, facts, steps=settings.steps, seed=settings.seed, reader=reader), settings)


async def profiled(
    url: str, grid: Grid, settings: ProfilingSettings, *, reader: str = "", back: bool = False
) -> tuple[ProfilingRun, list[Measurements]]:
    """Profile an engine; return the run and every state it kept."""
    kept: list[Measurements] = []
    async with EngineClient(url) as engine, EngineClient(reader or url) as decode:
        facts = await engine.facts()
        planned = plan_cells(
            grid, facts, TransferEnds(1, 1 if reader else 0, back=back), steps=settings.steps, most_batch=0
        )
        profiler = profiler_of(engine, facts, settings, reader=decode if reader else None)
        run = await profiler.run(
            Measurements(MeasurementContext(), ()), planned.cells, save=kept.append, progress=lambda _: None
        )
    return run, kept


async def test_the_fitted_profile_is_the_one_the_engine_follows() -> None:
    truth = slow_profile()
    settings = config(profile=truth, max_model_len=8192)
    readers = replace(settings, engine_id="reader", role="decode")
    async with engines(settings, readers) as (client, reader):
        run, kept = await profiled(client.url, SMALL, replace(SETTINGS, repeats=2), reader=reader.url, back=True)
        await at_rest(client, reader)  # no KV waits for anybody
        assert not client.engine.ledger.violations
        assert not reader.engine.ledger.violations
        forms = {record.form for record in client.engine.ledger.recent}
    assert forms >= {"export", "export_with_history"}
    assert run.complete, run.notes
    assert not run.notes
    counts = [len(state.rows) for state in kept]
    assert list(dict.fromkeys(counts)) == list(range(1, len(run.measurements.rows) + 1))
    cells = run.measurements.planned
    assert {cell.function for cell in cells} == {"prefill", "step", "transfer"}
    ways = [(cell.tokens, cell.way) for cell in cells if cell.function == "transfer"]
    assert ways == [(65, "there"), (65, "back"), (1025, "there"), (1025, "back")]
    about = MeasurementContext(truth.model, truth.gpu, truth.engine, truth.kv_bytes_per_token, {1: Memory(1, 65536)})
    # A busy machine only ever adds to what the engine takes: the shorter of two timings is the better one.
    shortest = [min((r for r in run.measurements.rows if r.cell == cell), key=lambda r: r.seconds) for cell in cells]
    fitted = fit_profile(Measurements(about, tuple(shortest)))
    for function in ("prefill", "step", "transfer"):
        of_it = [cell for cell in cells if cell.function == function]
        assert median_error(fitted, truth, of_it) < 0.05, function
    assert fitted.provenance["transferWays"].startswith(
        "both ways between equal degrees are fitted as one; each by itself: 1->1"
    )


async def test_an_engine_that_cannot_read_back_is_a_note() -> None:
    common = {"profile": quick_profile(), "max_model_len": 4096, "bidirectional": False}
    grid = Grid((0,), (16,), (1,), (64,), chunks=(), transfers=(256, 1024))
    async with engines(config(**common), config(engine_id="reader", role="decode", **common)) as (client, reader):
        run, _ = await profiled(client.url, grid, SETTINGS, reader=reader.url, back=True)
        await at_rest(client, reader)
        assert not client.engine.ledger.violations
    assert run.complete
    assert {cell.way for cell in run.measurements.planned if cell.function == "transfer"} == {"there"}
    assert len([row for row in run.measurements.rows if row.cell.function == "transfer"]) == 2
    assert sum("name no KV to read back" in note for note in run.notes) == 2


async def test_an_engine_that_computes_anew_what_it_should_read_back_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    async def the_same(_: EngineClient) -> float:
        return 7.0

    monkeypatch.setattr(EngineClient, "bytes_read", the_same)
    monkeypatch.setattr(engine_transfers, "_COUNTED_S", 0.3)
    grid = Grid((0,), (16,), (1,), (64,), chunks=(), transfers=(256, 1024))
    common = {"profile": quick_profile(), "max_model_len": 4096}
    async with engines(config(**common), config(engine_id="reader", role="decode", **common)) as (client, reader):
        run, _ = await profiled(client.url, grid, SETTINGS, reader=reader.url, back=True)
        await at_rest(client, reader)
    assert {cell.way for cell in run.measurements.planned if cell.function == "transfer"} == {"there"}
    assert sum("recomputed what it was to read back" in note for note in run.notes) == 2


async def test_degrees_that_differ_have_a_key_for_each_way(tmp_path: Path) -> None:
    profile = replace(quick_profile(), degrees={n: quick_profile().degrees[1] for n in (1, 2)})
    cost = {(1, 2, "inter-node"): TransferCost(0.02, 2e-5), (2, 1, "inter-node"): TransferCost(0.04, 4e-5)}
    profile = replace(profile, transfers=cost)  # type: ignore[arg-type]
    here = config(profile=profile, max_model_len=4096)
    grid = Grid((0,), (16,), (1,), (64,), chunks=(), transfers=(256, 1024))
    async with engines(here, replace(here, engine_id="reader", role="decode", degree=2)) as (client, reader):
        target = ProfilingTarget(client.url, TransferEnds(1, 2, back=True), decode_url=reader.url)
        run = await measure_engine(target, grid, ProfilingSettings(steps=4, repeats=3, seed=3))
    rows = [row for row in run.measurements.rows if row.cell.function == "transfer"]
    assert {(r.cell.degree, r.cell.destination, r.cell.way) for r in rows} == {(1, 2, "there"), (2, 1, "back")}
    for cell in {row.cell for row in rows}:
        assert min(row.seconds for row in rows if row.cell == cell) == pytest.approx(
            profile.t_kv(cell.tokens, source=cell.degree, destination=cell.destination), rel=0.3
        )
    for name in ("m.json", "m.csv"):
        write_measurements(run.measurements, tmp_path / name)
        assert read_measurements(tmp_path / name).rows == run.measurements.rows


async def test_a_grid_too_large_for_the_budget_is_thinned_and_ends_whole() -> None:
    grid = Grid((0, 64, 128), tuple(range(16, 1024, 8)), (1, 2, 4, 8), (64, 128, 256), chunks=(), transfers=())
    async with engines(config(profile=slow_profile(prefill=0.1), max_model_len=2048)) as (client,):
        run = await measure_engine(
            ProfilingTarget(client.url, TransferEnds(1)), grid, ProfilingSettings(steps=4, repeats=5, budget_s=10.0)
        )
        assert run.complete, run.notes
        assert "left out for the budget of" in run.measurements.about.notes["grid"]
        assert {row.cell.function for row in run.measurements.rows} == {"prefill", "step"}
        assert run.measurements.missing() == ()
        cut = await measure_engine(
            ProfilingTarget(client.url, TransferEnds(1)), grid, ProfilingSettings(steps=4, repeats=1, budget_s=0.5)
        )
    assert not cut.complete
    assert "shapes were not timed" in cut.measurements.about.notes["partial"]


async def test_time_that_is_left_goes_to_what_fits_into_it() -> None:
    short, long, never = (GridCell("prefill", 1, increment=n) for n in (16, 64, 128))
    async with engines(config(profile=slow_profile(prefill=0.1))) as (client,), EngineClient(client.url) as engine:
        profiler = profiler_of(engine, await engine.facts(), ProfilingSettings(steps=4, repeats=2, budget_s=60.0))
        spare = (OptionalTiming(never, 61.0), OptionalTiming(long, 0.1))
        start = Measurements(MeasurementContext(), ())
        run = await profiler.run(start, (short,), save=lambda _: None, progress=lambda _: None, spare=spare)
    assert run.complete
    assert [row.cell for row in run.measurements.rows] == [short, short, long]
    assert run.measurements.planned == (short, long)


async def test_an_engine_that_fails_at_what_is_spare_takes_nothing_from_what_was_wanted() -> None:
    short, long = (GridCell("prefill", 1, increment=n) for n in (16, 64))
    async with engines(config(profile=slow_profile(prefill=0.1))) as (client,), EngineClient(client.url) as engine:
        facts = await engine.facts()
        profiler = profiler_of(engine, facts, ProfilingSettings(steps=4, repeats=1))
        timed = await profiler.run(
            Measurements(MeasurementContext(), ()), (short,), save=lambda _: None, progress=lambda _: None
        )
        await client.faults(status=503)
        run = await profiler.run(
            timed.measurements,
            (short,),
            save=lambda _: None,
            progress=lambda _: None,
            spare=(OptionalTiming(long, 0.1),),
        )
    assert run.complete
    assert run.measurements.rows == timed.measurements.rows
    assert any(note.startswith("ended early") and "answered 503" in note for note in run.notes)


async def test_mixed_steps_are_measured_on_an_engine_that_has_them() -> None:
    truth = slow_profile(prefill=0.1)
    grid = replace(SMALL, increments=(16,), histories=(0, 256), contexts=(64,), batches=(2, 4), chunks=(128, 512))
    async with engines(config(profile=truth, max_model_len=8192, chunk=516)) as (client,):
        run, _ = await profiled(client.url, grid, SETTINGS)
    mixed = [row for row in run.measurements.rows if row.cell.chunk]
    assert len(mixed) == 8, run.notes
    errors = []
    for row in mixed:
        cell = row.cell
        right = truth.t_step(
            batch=cell.batch, context=cell.context, chunk=cell.chunk, chunk_history=cell.history, degree=1
        )
        errors.append(abs(row.seconds / right - 1))
    assert sorted(errors)[len(errors) // 2] < 0.2


async def test_an_engine_that_prefills_alone_has_no_mixed_steps() -> None:
    grid = Grid((0,), (16,), (2,), (64,), chunks=(64, 128, 256), transfers=())
    async with engines(config(profile=slow_profile(prefill=0.1))) as (client,):
        run, _ = await profiled(client.url, grid, SETTINGS)
    assert not [cell for cell in run.measurements.planned if cell.chunk]
    assert any("came between two steps" in note for note in run.notes), "one shape may be noise"
    assert sum("it has no mixed steps" in note for note in run.notes) == 2


async def test_a_run_is_bounded_and_resumed() -> None:
    grid = Grid((0,), (16, 32, 64), (1,), (64,), chunks=(), transfers=())
    async with engines(config(profile=slow_profile(prefill=0.1))) as (client,), EngineClient(client.url) as engine:
        facts = await engine.facts()
        cells = plan_cells(grid, facts, TransferEnds(1), steps=4, most_batch=0).cells
        none = profiler_of(engine, facts, ProfilingSettings(steps=4, repeats=2, budget_s=0.0))
        cut = await none.run(
            Measurements(MeasurementContext(), ()), cells, save=lambda _: None, progress=lambda _: None
        )
        assert not cut.complete
        assert cut.notes[0].endswith("8 timings left; resume the run")
        before = Measurements(
            MeasurementContext(model="kept"), tuple(Measurement(cell, 1.0) for cell in (*cells[:2], cells[0]))
        )
        told: list[ProfilingProgress] = []
        rest = profiler_of(engine, facts, ProfilingSettings(steps=4, repeats=2, noise=100.0))
        run = await rest.run(before, cells, save=lambda _: None, progress=told.append)
    assert run.measurements.rows[:3] == before.rows
    assert run.measurements.about == before.about
    assert sorted(row.cell for row in run.measurements.rows) == sorted((*cells, *cells))
    assert [p.done for p in told] == list(range(5))
    assert told[-1].left >= 0


async def test_what_contradicts_is_timed_again_and_left_out_when_there_is_no_time() -> None:
    grid = Grid((0,), (64, 256, 1024), (1,), (64,), chunks=(), transfers=())
    odd = GridCell("prefill", 1, increment=64)
    async with engines(config(profile=slow_profile(prefill=0.1))) as (client,):
        target = ProfilingTarget(client.url, TransferEnds(1))
        first = (await measure_engine(target, grid, ProfilingSettings(steps=4, repeats=1))).measurements
        rows = tuple(replace(row, seconds=1.0) if row.cell == odd else row for row in first.rows)
        start = replace(first, rows=rows)
        mended = await measure_engine(target, grid, ProfilingSettings(steps=4, repeats=1), start=start)
        late = await measure_engine(target, grid, ProfilingSettings(steps=4, repeats=1, budget_s=0.0), start=start)
    assert [row.cell for row in mended.measurements.rows].count(odd) == 2
    assert "contradictions" not in mended.measurements.about.notes
    assert odd not in [row.cell for row in late.measurements.rows] + list(late.measurements.planned)
    assert "history 0, increment 64" in late.measurements.about.notes["contradictions"]


async def test_without_the_engine_that_reads_the_rest_is_profiled() -> None:
    grid = Grid((0,), (16, 64), (1,), (64,), chunks=(), transfers=(256, 512))
    one = config(profile=quick_profile())
    async with (
        engines(one, replace(one, engine_id="reader", role="decode")) as (client, other),
        EngineClient(client.url) as engine,
        EngineClient(other.url) as reader,
    ):
        facts = await engine.facts()
        await reader.facts()
        await other.faults(status=503)
        profiler = profiler_of(engine, facts, ProfilingSettings(steps=4, repeats=2), reader=reader)
        cells = plan_cells(grid, facts, TransferEnds(1, 1, back=True), steps=4, most_batch=0).cells
        start = Measurements(MeasurementContext(model=MODEL, gpu="none", engine="mock"), ())
        run = await profiler.run(start, cells, save=lambda _: None, progress=lambda _: None)
    assert run.complete
    assert {row.cell.function for row in run.measurements.rows} == {"prefill", "step"}
    assert run.measurements.missing() == ()
    assert sum("transfers ended when an engine failed: " in note for note in run.notes) == 4, "each is said"


async def test_what_an_engine_says_of_itself_is_used() -> None:
    async with engines(config(max_model_len=1024)) as (client,), EngineClient(client.url + "/v1") as engine:
        facts = await engine.facts()
    assert (facts.model, facts.max_model_len, facts.block_size) == (MODEL, 1024, 16)
    assert facts.kv_capacity_tokens == 4096
    assert len(facts.token_ids) >= 8
    planned = plan_cells(Grid(), facts, TransferEnds(1, 2), steps=16, most_batch=3)
    assert max(cell.history + cell.increment for cell in planned.cells) < 1024
    assert {cell.batch for cell in planned.cells if cell.function == "step"} == {1}
    assert any("longer than the engine's limit of 1024 tokens" in text for text in planned.left_out)
    assert any("larger than a batch of 3" in text for text in planned.left_out)


async def test_another_model_is_refused() -> None:
    async with engines(config()) as (client,), EngineClient(client.url, model="other") as engine:
        with pytest.raises(EngineError, match=f"serves {MODEL} and not 'other'"):
            await engine.facts()


async def test_a_dead_or_failing_engine_is_named() -> None:
    async with EngineClient("http://127.0.0.1:9") as engine:
        with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:9: ConnectError .*is it up and reachable"):
            await engine.facts()
    async with engines(config()) as (client,), EngineClient(client.url) as engine:
        await client.faults(status=503)
        with pytest.raises(EngineError, match="answered 503: a fault says so"):
            await engine.first_token([300, 301])
        await client.faults()
        with pytest.raises(EngineError, match=r"answered 400: .*maximum context length is 2048"):
            await engine.first_token([300] * 5000)


async def test_an_engine_without_room_for_the_batch_is_told_from_a_slow_one() -> None:
    async with engines(config(profile=slow_profile(prefill=0.1), max_sequences=2)) as (client,):
        run, _ = await profiled(client.url, Grid((0,), (16,), (4,), (64,), (), ()), SETTINGS)
    assert any("does not decode 4 sequences together" in note for note in run.notes)
    assert [cell for cell in run.measurements.planned if cell.function == "step"] == []


async def test_a_prefill_that_waits_for_a_full_batch_is_not_waited_for() -> None:
    """A batch of as many sequences as an engine takes decodes thousands of tokens before anything is let in."""
    grid = Grid((0,), (16,), (1, 2), (64,), chunks=(64, 128), transfers=())
    full = config(profile=slow_profile(prefill=0.1), max_sequences=2, chunk=512, max_model_len=4096)
    async with engines(full) as (client,):
        began = monotonic()
        run, _ = await profiled(client.url, grid, SETTINGS)
        took = monotonic() - began
        await at_rest(client)
    assert run.complete
    assert 2 not in {cell.batch for cell in run.measurements.planned if cell.chunk}
    assert sum("takes no prefill beside a batch of 2" in note for note in run.notes) == 2
    assert took < 30, "two batches of 4,000 steps take 3 minutes"


async def test_shapes_that_take_too_long_are_left_out_and_no_larger_ones_are_tried() -> None:
    grid = Grid((0, 1024), (16, 512, 3072), (1,), (64,), chunks=(), transfers=())
    slow = config(profile=slow_profile(), max_model_len=8192)
    async with engines(slow) as (client,), EngineClient(client.url, timeout_s=0.7) as engine:
        facts = await engine.facts()
        profiler = profiler_of(engine, facts, SETTINGS)
        cells = plan_cells(grid, facts, TransferEnds(1), steps=6, most_batch=0).cells
        run = await profiler.run(
            Measurements(MeasurementContext(), ()), cells, save=lambda _: None, progress=lambda _: None
        )
    assert run.complete
    timed = {(c.history, c.increment) for c in run.measurements.planned if c.function == "prefill"}
    assert timed == {(0, 16), (0, 512), (1024, 16), (1024, 512)}, run.notes
    assert any(note.endswith("no answer within 0.7 s") for note in run.notes)
    assert any("is no smaller than prefill at degree 1, history 0, increment 3072" in note for note in run.notes)


async def test_one_shape_does_not_take_the_whole_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of the grid come first: an engine that hangs at one of them leaves time for the others."""
    monkeypatch.setattr(engine_budget, "SHORTEST_WAIT_S", 0.5)
    uneven = DegreeCosts(
        prefill=(PrefillPiece(alpha=0.02, per_token=1e-5, per_pair=1e-6),),
        decode=slow_profile().degrees[1].decode, weight_bytes_per_gpu=1, kv_capacity_tokens=65536,
    )  # fmt: skip
    hangs = config(profile=replace(slow_profile(), degrees={1: uneven}), max_model_len=8192)
    grid = Grid((0,), (16, 64, 3072), (1,), (64,), chunks=(), transfers=())  # 3,072 tokens take 9.5 s
    async with engines(hangs) as (client,):
        began = monotonic()
        run = await measure_engine(
            ProfilingTarget(client.url, TransferEnds(1)), grid, ProfilingSettings(steps=4, repeats=1, budget_s=9.0)
        )
        took = monotonic() - began
    assert took < 20, run.notes
    assert {c.increment for c in run.measurements.planned if c.function == "prefill"} == {16, 64}, run.notes
    assert any("no answer within" in note for note in run.notes)


@pytest.mark.parametrize("spare", [False, True], ids=["wanted", "spare"])
async def test_a_repeat_that_takes_too_long_takes_nothing_from_what_was_timed(
    monkeypatch: pytest.MonkeyPatch, spare: bool
) -> None:
    """One request that an engine is late with, for once, is not a shape that it is too slow for."""
    short, long = (GridCell("prefill", 1, increment=n) for n in (16, 64))
    asked: list[GridCell] = []

    async def late_in_round_two(_: EngineTimer, cell: GridCell) -> float:
        asked.append(cell)
        if asked.count(short) == 2 and cell == short:
            raise TooSlow("no answer within 120 s")
        return 0.01 + 1e-4 * cell.increment

    monkeypatch.setattr(EngineTimer, "time_cell", late_in_round_two)
    more = [OptionalTiming(cell, 0.01) for _ in "ab" for cell in (short, long)] if spare else []
    async with engines(config()) as (client,), EngineClient(client.url) as engine:
        profiler = profiler_of(engine, await engine.facts(), ProfilingSettings(repeats=1 if spare else 3))
        start = Measurements(MeasurementContext(), ())
        run = await profiler.run(start, (short, long), save=lambda _: None, progress=lambda _: None, spare=more)
    assert run.complete
    assert [row.cell for row in run.measurements.rows] == [short, long, long, long]
    assert run.measurements.planned == (short, long)
    assert run.notes == ()


async def test_an_engine_that_fails_at_a_shape_is_named_with_it() -> None:
    async with engines(config(profile=slow_profile(prefill=0.1))) as (client,), EngineClient(client.url) as engine:
        facts = await engine.facts()
        cells = plan_cells(Grid((0,), (16,), (1,), (64,), (), ()), facts, TransferEnds(1), steps=4, most_batch=0).cells
        timer = EngineTimer(engine, facts, steps=4)
        await timer.warm_up()
        profiler = EngineProfiler(timer, ProfilingSettings(repeats=1))
        await client.faults(status=503)
        with pytest.raises(EngineError, match=r"^prefill at degree 1, history 0, increment 16: .*answered 503"):
            await profiler.run(
                Measurements(MeasurementContext(), ()), cells, save=lambda _: None, progress=lambda _: None
            )


def test_cells_come_in_an_order_that_grows_prefixes() -> None:
    facts = EngineFacts("m", "", 0, 16, 0, tuple(range(9)))
    cells = plan_cells(Grid(), facts, TransferEnds(2, 4), steps=16, most_batch=0).cells
    steps = [cell.context // cell.batch for cell in cells if cell.function == "step" and not cell.chunk]
    assert steps[8:] == sorted(steps[8:])
    assert all((cell.context // cell.batch - 8) % 16 == 1 for cell in cells if cell.batch)
    assert all(cell.history % 16 == 0 for cell in cells)


def test_sequences_take_whole_blocks() -> None:
    """64 sequences of 289 tokens are 18,496 tokens, and 192 blocks of 128 where an engine has 160."""
    small = EngineFacts("m", "", 4096, 128, 160 * 128, tuple(range(9)))
    cells = plan_cells(Grid(batches=(1, 16, 64), contexts=(256,)), small, TransferEnds(1), steps=16, most_batch=0)
    assert {cell.batch for cell in cells.cells if cell.function == "step" and not cell.chunk} == {1, 16}
    assert any("needs 24960" in words and "the engine holds 20480" in words for words in cells.left_out), cells.left_out


def test_wherever_the_time_is_up_after_the_ends_a_profile_can_be_made() -> None:
    facts = EngineFacts("m", "", 8192, 16, 60000, tuple(range(9)))
    cells = plan_cells(Grid(), facts, TransferEnds(1, 1, back=True), steps=16, most_batch=0).cells
    assert len(set(cells)) == len(cells)
    truth = profile(degrees=(1,))
    for count in (16, 17, 20, len(cells)):
        first = cells[:count]
        fitted = fit_profile(measured(truth, first))
        middle = GridCell("step", 1, batch=8, context=8192)
        said, right = predict_cell(fitted, middle), predict_cell(truth, middle)
        assert said is not None
        assert said == pytest.approx(right, rel=0.5)
        assert {cell.way for cell in first if cell.function == "transfer"} == {"there", "back"}
