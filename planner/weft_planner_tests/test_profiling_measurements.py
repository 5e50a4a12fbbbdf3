"""Rows of measurements: what is refused, with which row and field, and what files hold."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.cost import LINKS
from weft_planner.profiling.files import from_csv, from_json, read_measurements, to_csv, to_json, write_measurements
from weft_planner.profiling.measurements import (
    GridCell,
    Measurement,
    MeasurementContext,
    MeasurementError,
    Measurements,
    Memory,
    measurement,
)

counts = st.integers(min_value=1, max_value=10**6)
some = st.integers(min_value=0, max_value=10**6)
prefills = st.builds(GridCell, st.just("prefill"), counts, history=some, increment=counts)
transfers = st.builds(
    GridCell, st.just("transfer"), counts, tokens=counts, destination=counts, link=st.sampled_from(LINKS)
)


@st.composite
def steps(draw: st.DrawFn) -> GridCell:
    """Draw a step, mixed or not."""
    batch, chunk = draw(some), draw(some)
    batch = batch or (0 if chunk else 1)
    context = batch + draw(some) if batch else 0
    return GridCell("step", draw(counts), history=draw(some) if chunk else 0, batch=batch, context=context, chunk=chunk)


rows = st.builds(Measurement, prefills | transfers | steps(), st.floats(min_value=1e-9, max_value=1e6))
abouts = st.builds(
    MeasurementContext,
    model=st.text(max_size=5),
    gpu=st.text(max_size=5),
    engine=st.text(max_size=5),
    kv_bytes_per_token=some,
    memory=st.dictionaries(counts, st.builds(Memory, some, some), max_size=2),
    notes=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)


@given(abouts, st.lists(rows, min_size=1, max_size=5), st.lists(steps(), max_size=3))
def test_json_gives_back_what_was_written(
    about: MeasurementContext, some_rows: list[Measurement], planned: list[GridCell]
) -> None:
    before = Measurements(about, tuple(some_rows), tuple(planned))
    assert from_json(to_json(before)) == before


@given(st.lists(rows, min_size=1, max_size=5))
def test_csv_gives_back_the_rows(some_rows: list[Measurement]) -> None:
    before = Measurements(MeasurementContext(), tuple(some_rows))
    assert from_csv(to_csv(before), "m.csv").rows == before.rows


def test_files_are_read_by_their_ending(tmp_path: Path) -> None:
    kept = Measurements(MeasurementContext(model="m"), (Measurement(GridCell("prefill", 1, increment=5), 0.1),))
    for name in ("a.json", "a.csv"):
        write_measurements(kept, tmp_path / name)
        assert read_measurements(tmp_path / name).rows == kept.rows
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(MeasurementError, match=r"b\.json: no JSON .*CSV files end in \.csv"):
        read_measurements(tmp_path / "b.json")
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(MeasurementError, match=r"c\.json, format: None is not 'weft-measurements/1'"):
        read_measurements(tmp_path / "c.json")


PREFILL: dict[str, object] = {"function": "prefill", "degree": 1, "increment": 16, "seconds": 0.1}
STEP: dict[str, object] = {"function": "step", "degree": 1, "batch": 2, "context": 64, "seconds": 0.1}
TRANSFER: dict[str, object] = {"function": "transfer", "degree": 1, "tokens": 2, "destination": 1, "seconds": 0.1}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (PREFILL | {"seconds": math.nan}, r"row 7, seconds: nan is no time; measure again"),
        (PREFILL | {"seconds": math.inf}, r"row 7, seconds: inf is no time"),
        (PREFILL | {"seconds": -0.1}, r"row 7, seconds: negative is no time"),
        (PREFILL | {"seconds": 0}, r"row 7, seconds: 0 is no time"),
        (PREFILL | {"seconds": ""}, r"row 7, seconds: missing"),
        (PREFILL | {"seconds": "fast"}, r"row 7, seconds: 'fast' is not a number"),
        (PREFILL | {"seconds": True}, r"row 7, seconds: True is not a number"),
        (PREFILL | {"function": "prefil"}, r"row 7, function: 'prefil' is not one of prefill, step, transfer"),
        (PREFILL | {"degree": ""}, r"row 7, degree: 0 is not a number of GPUs"),
        (PREFILL | {"increment": 0}, r"row 7, increment: 0 tokens take no prefill"),
        (PREFILL | {"history": -1}, r"row 7, history: -1 is negative"),
        (PREFILL | {"history": 1.5}, r"row 7, history: 1\.5 is not a whole number"),
        (PREFILL | {"batch": 2}, r"row 7, batch: a prefill has none; leave it empty"),
        (PREFILL | {"latency": 2}, r"row 7, latency: unknown field; use function, degree"),
        (STEP | {"batch": 0, "context": 0}, r"row 7, batch: 0 sequences and no chunk are no step"),
        (STEP | {"context": 1}, r"row 7, context: 1 tokens cannot be held by 2 sequences"),
        (STEP | {"history": 5}, r"row 7, history: without a chunk"),
        (STEP | {"batch": 0, "chunk": 5}, r"row 7, context: 64 tokens without a sequence"),
        (TRANSFER | {"tokens": 0}, r"row 7, tokens: nothing moves"),
        (TRANSFER | {"destination": None}, r"row 7, destination: 0 is not a number of GPUs"),
        (TRANSFER | {"link": "air"}, r"row 7, link: 'air' is not a link; use intra-node or inter-node"),
    ],
)
def test_a_bad_field_is_named_with_its_row(fields: dict[str, object], named: str) -> None:
    with pytest.raises(MeasurementError, match=named):
        measurement(fields, "row 7")


def test_every_bad_row_of_a_file_is_named_by_its_line() -> None:
    text = "function,degree,increment,seconds\nprefill,1,16,0.1\nprefill,1,32,nan\n\nprefill,1,,0.2\n"
    with pytest.raises(MeasurementError) as raised:
        from_csv(text, "t.csv")
    assert [problem.split(":")[0] for problem in raised.value.problems] == [
        "t.csv line 3, seconds",
        "t.csv line 5, increment",
    ]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", r"t\.csv: the file is empty"),
        ("function,degree\n", r"rows: there is no measurement"),
        ("function,degree\nstep\n", r"t\.csv line 2: 1 fields where the header has 2"),
    ],
)
def test_a_file_without_rows_or_header_is_refused(text: str, named: str) -> None:
    with pytest.raises(MeasurementError, match=named):
        from_csv(text, "t.csv")


def test_a_long_list_of_problems_is_cut() -> None:
    error = MeasurementError([f"p{i}" for i in range(30)])
    assert str(error).endswith("… and 20 more")
    assert len(error.problems) == 30
