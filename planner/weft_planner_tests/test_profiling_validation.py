"""Tables that contradict themselves, the hardware or their own grid are refused by row."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_planner.profiling.knowledge import FitStrictness, known, merge_measurements, profile_from_measurements
from weft_planner.profiling.measurements import GridCell, Measurement, MeasurementError, Measurements
from weft_planner.profiling.validation import (
    check,
    contradicting_cells,
    plausibility,
    predict_cell,
    with_slowness,
    without_hidden_transfers,
)
from weft_planner_tests.profiled import grid, measured, profile

SOUND = measured(profile(), grid(), noise=0.03)


def changed(at: int, factor: float) -> Measurements:
    """Return the sound table with one row's time multiplied."""
    rows = list(SOUND.rows)
    rows[at] = replace(rows[at], seconds=rows[at].seconds * factor)
    return replace(SOUND, rows=tuple(rows))


def test_a_sound_noisy_table_passes() -> None:
    check(SOUND)
    assert contradicting_cells(SOUND) == ()


def test_shapes_to_time_again_are_those_that_are_refused() -> None:
    assert contradicting_cells(changed(5, 50.0)) == (SOUND.rows[5].cell,)


def test_ways_are_judged_apart() -> None:
    there = [Measurement(GridCell("transfer", 1, tokens=n, destination=1), 1e-5 * n) for n in (500, 1000, 2000)]
    back = [replace(row, cell=replace(row.cell, way="back"), seconds=5 * row.seconds) for row in there]
    check(Measurements(SOUND.about, (*there, *back)))


@settings(max_examples=30)
@given(st.integers(min_value=0, max_value=len(SOUND.rows) - 1), st.sampled_from([1000.0, 0.001]))
def test_a_slip_of_units_is_found_in_any_row(at: int, factor: float) -> None:
    with pytest.raises(MeasurementError) as raised:
        check(changed(at, factor))
    assert raised.value.problems[0].startswith(f"rows[{at}], seconds: ")
    fix = "divide by 1000" if factor > 1 else "multiply by 1000"
    if len(raised.value.problems) == 1 and SOUND.rows[at].cell.function != "transfer":
        assert fix in raised.value.problems[0]


def test_repetitions_are_judged_by_their_middle() -> None:
    noisy = tuple(replace(row, seconds=row.seconds * 3, where=f"late {row.where}") for row in SOUND.rows[::7])
    check(replace(SOUND, rows=SOUND.rows + SOUND.rows + noisy))
    slipped = replace(SOUND.rows[5], seconds=SOUND.rows[5].seconds * 1000, where="again")
    with pytest.raises(MeasurementError, match=r"again, seconds: .* 1000 times above .*divide by 1000"):
        check(replace(SOUND, rows=(*SOUND.rows, slipped)))


def test_a_time_that_shrinks_with_more_work_is_refused() -> None:
    at = next(i for i, row in enumerate(SOUND.rows) if row.cell == GridCell("prefill", 1, history=4096, increment=1024))
    with pytest.raises(MeasurementError, match=rf"rows\[{at}\], seconds: .* times shorter than rows\[\d+\] .* allows"):
        check(changed(at, 0.4))
    check(changed(at, 0.4), noise=3.0)


@given(st.integers(min_value=0, max_value=31))
@settings(max_examples=15)
def test_a_hole_in_the_grid_is_named(at: int) -> None:
    rows = tuple(row for i, row in enumerate(SOUND.rows) if i != at)
    cell = SOUND.rows[at].cell
    with pytest.raises(MeasurementError, match=f"rows: {cell} is missing from the grid"):
        check(replace(SOUND, rows=rows))
    check(replace(SOUND, rows=rows), allow_missing=True)


def test_what_was_planned_and_not_measured_is_named() -> None:
    planned = (*(row.cell for row in SOUND.rows), GridCell("step", 2, batch=3, context=99))
    with pytest.raises(MeasurementError, match=r"step at degree 2, batch 3, context 99 is missing.*go on with the run"):
        check(replace(SOUND, planned=planned))


@pytest.mark.parametrize(("factor", "named"), [(1000.0, "must be divided by 1000"), (0.001, "faster than nvidia-h100")])
def test_a_whole_table_in_the_wrong_unit_is_refused_where_the_hardware_is_known(factor: float, named: str) -> None:
    limits = plausibility(MODELS["meta-llama/Llama-3.1-8B-Instruct"], GPUS["nvidia-h100"], (1, 2))
    rows = []
    for i, cell in enumerate(grid()):
        usual = predict_cell(limits.usual, cell)
        assert usual is not None
        rows.append(Measurement(cell, usual, f"rows[{i}]"))
    table = Measurements(SOUND.about, tuple(rows))
    check(table, limits=limits)
    slipped = replace(table, rows=tuple(replace(row, seconds=row.seconds * factor) for row in rows))
    check(slipped)
    with pytest.raises(MeasurementError, match=named):
        check(slipped, limits=limits)


LIMITS = plausibility(MODELS["meta-llama/Llama-3.1-8B-Instruct"], GPUS["nvidia-h100"], (1, 2))


def transfers(*timed: tuple[int, float]) -> Measurements:
    """Return transfers of so many tokens, each in so many times of what is usual."""
    rows: list[Measurement] = []
    for tokens, factor in timed:
        cell = GridCell("transfer", 1, tokens=tokens, destination=1)
        usual = predict_cell(LIMITS.usual, cell)
        assert usual is not None
        rows.append(Measurement(cell, usual * factor, f"rows[{len(rows)}]"))
    return Measurements(SOUND.about, tuple(rows), tuple(dict.fromkeys(row.cell for row in rows)))


def test_transfers_that_noise_made_faster_than_the_hardware_are_left_out_and_named() -> None:
    """What is timed is the difference of two requests: a slow second one hides the transfer of the first."""
    whole = transfers((1025, 1.0), (4097, 1.1), (4097, 0.02), (16385, 0.02))
    with pytest.raises(MeasurementError):
        check(whole, limits=LIMITS)
    kept = without_hidden_transfers(whole, LIMITS)
    check(kept, limits=LIMITS)
    assert [row.cell.tokens for row in kept.rows] == [1025, 4097]
    assert [cell.tokens for cell in kept.planned] == [1025, 4097]
    said = kept.about.notes["transfersLeftOut"]
    assert said.startswith("2 timings that noise made faster than the hardware: ")
    assert "4097 tokens" in said
    assert "16385 tokens" in said
    assert without_hidden_transfers(kept, LIMITS).rows == kept.rows


def test_transfers_of_one_length_alone_are_left_out_and_named() -> None:
    for table in (transfers((1025, 1.0)), transfers((1025, 1.0), (4097, 0.02))):
        kept = without_hidden_transfers(table, LIMITS)
        assert (kept.rows, kept.planned) == ((), ())
        assert "of one length alone, which tells no rate: " in kept.about.notes["transfersLeftOut"]


def test_without_known_hardware_no_transfer_is_taken_for_noise() -> None:
    table = transfers((1025, 1.0), (4097, 0.02))
    assert without_hidden_transfers(table, None) is table


def test_a_table_that_somebody_wrote_is_refused_all_the_same() -> None:
    facts = known(model="meta-llama/Llama-3.1-8B-Instruct", gpu="nvidia-h100")
    others = tuple(row for row in measured(LIMITS.usual, grid((1,))).rows if row.cell.function != "transfer")
    table = replace(transfers((1025, 1.0), (4097, 0.02)), planned=())
    table = replace(table, rows=(*table.rows, *others))
    with pytest.raises(MeasurementError, match="4097 tokens"):
        profile_from_measurements(table, facts, FitStrictness(allow_missing=True))
    timed = replace(table, about=replace(table.about, notes={"source": "engine"}))
    assert "transfersLeftOut" in profile_from_measurements(timed, facts, FitStrictness(allow_missing=True)).provenance


FACTS = known(model="meta-llama/Llama-3.1-8B-Instruct", gpu="nvidia-h100")


def slower(factor: float, *, source: str = "") -> Measurements:
    """Return a whole table in so many times of what is usual; ``source`` says who timed it."""
    table = measured(LIMITS.usual, grid((1,)))
    rows = tuple(replace(row, seconds=row.seconds * factor) for row in table.rows)
    notes = {"source": source} if source else {}
    return replace(table, about=replace(table.about, notes=notes), rows=rows)


@pytest.mark.parametrize("factor", [150.0, 1000.0])
def test_a_live_engine_far_slower_than_usual_makes_a_profile_that_says_so(factor: float) -> None:
    """Its unit is sure, whatever a GPU is called that engines on other hardware are said to run on."""
    profile = profile_from_measurements(slower(factor, source="engine"), FACTS, FitStrictness(allow_missing=True))
    told = profile.provenance["slow"]
    assert f"{factor:.0f} to {factor:.0f} times what nvidia-h100 usually takes" in told
    usual = LIMITS.usual.t_pre(history=1024, increment=1024, degree=1)
    assert profile.t_pre(history=1024, increment=1024, degree=1) == pytest.approx(factor * usual, rel=0.2)


def test_a_file_of_such_times_is_refused_as_one_in_milliseconds() -> None:
    with pytest.raises(MeasurementError, match=r"150 times what nvidia-h100 usually takes.*must be divided by 1000"):
        profile_from_measurements(slower(150.0), FACTS, FitStrictness(allow_missing=True))
    both = merge_measurements([slower(150.0, source="engine"), slower(150.0)])
    with pytest.raises(MeasurementError, match="must be divided by 1000"):
        profile_from_measurements(both, FACTS, FitStrictness(allow_missing=True))


def test_times_of_a_live_engine_that_no_hardware_could_reach_are_refused_all_the_same() -> None:
    with pytest.raises(MeasurementError, match="faster than nvidia-h100 could be"):
        profile_from_measurements(slower(0.001, source="engine"), FACTS, FitStrictness(allow_missing=True))


def test_a_slip_of_units_among_the_timings_of_a_live_engine_is_found_all_the_same() -> None:
    table = slower(1.0, source="engine")
    rows = (replace(table.rows[0], seconds=table.rows[0].seconds * 1000), *table.rows[1:])
    with pytest.raises(MeasurementError, match="divide by 1000"):
        profile_from_measurements(replace(table, rows=rows), FACTS, FitStrictness(allow_missing=True))


def test_timings_as_usual_or_of_unknown_hardware_are_not_noted_as_slow() -> None:
    table = slower(50.0, source="engine")
    assert with_slowness(table, LIMITS) is table
    slow = slower(150.0, source="engine")
    assert with_slowness(slow, None) is slow
