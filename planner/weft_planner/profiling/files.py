"""Read and write measurements: JSON holds everything about a run, CSV the rows alone."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from weft_core.parallelism import Degree, degree_to_json
from weft_planner.profiling.measurements import (
    COLUMNS,
    WHOLES,
    GridCell,
    MeasurementContext,
    MeasurementError,
    Measurements,
    Memory,
    measurement,
    rows_of,
    whole,
)

FORMAT = "weft-measurements/1"


def to_csv(measurements: Measurements) -> str:
    """Return the rows in Weft's CSV form; what was measured and planned does not fit in there."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in measurements.rows:
        cells = [getattr(row.cell, name) or "" for name in WHOLES]
        writer.writerow([row.cell.function, *cells, row.cell.link, row.cell.way, repr(row.seconds)])
    return out.getvalue()


def to_json(measurements: Measurements) -> dict[str, object]:
    """Return everything as a JSON-ready object."""
    about = measurements.about
    return {
        "format": FORMAT,
        "model": about.model,
        "gpu": about.gpu,
        "engine": about.engine,
        "kvBytesPerToken": about.kv_bytes_per_token,
        "memory": [
            {
                "degree": degree_to_json(degree),
                "weightBytesPerGpu": memory.weight_bytes_per_gpu,
                "kvCapacityTokens": memory.kv_capacity_tokens,
            }
            for degree, memory in sorted(about.memory.items())
        ],
        "notes": dict(sorted(about.notes.items())),
        "planned": [_cell_json(cell) for cell in measurements.planned],
        "rows": [{**_cell_json(row.cell), "seconds": row.seconds} for row in measurements.rows],
    }


def _cell_json(cell: GridCell) -> dict[str, object]:
    body: dict[str, object] = {"function": cell.function}
    body |= {name: value for name in WHOLES if (value := getattr(cell, name))}
    if cell.function == "transfer":
        body["link"] = cell.link
    if cell.way == "back":
        body["way"] = cell.way
    return body


def from_json(body: Mapping[str, object], source: str = "measurements") -> Measurements:
    """Read what ``to_json`` wrote.

    Raises:
        MeasurementError: a field is missing or wrong.
    """
    if body.get("format") != FORMAT:
        raise MeasurementError(
            [f"{source}, format: {body.get('format')!r} is not {FORMAT!r}; is this a measurement file?"]
        )
    memory: dict[Degree, Memory] = {}
    for index, entry in enumerate(_objects(body, "memory", source)):
        where, problems = f"{source}, memory[{index}]", list[str]()
        degree, weights, capacity = (
            whole(entry.get(name), f"{where}.{name}", problems)
            for name in ("degree", "weightBytesPerGpu", "kvCapacityTokens")
        )
        if problems or not degree:
            raise MeasurementError(problems or [f"{where}.degree: missing; give the tensor-parallel degree"])
        memory[degree] = Memory(weights, capacity)
    notes = body.get("notes")
    problems = []
    about = MeasurementContext(
        model=_text(body, "model"),
        gpu=_text(body, "gpu"),
        engine=_text(body, "engine"),
        kv_bytes_per_token=whole(body.get("kvBytesPerToken"), f"{source}, kvBytesPerToken", problems),
        memory=memory,
        notes={str(k): str(v) for k, v in notes.items()} if isinstance(notes, Mapping) else {},
    )
    planned: list[GridCell] = []
    for index, entry in enumerate(_objects(body, "planned", source)):
        try:
            planned.append(measurement({**entry, "seconds": 1.0}, f"{source}, planned[{index}]").cell)
        except MeasurementError as error:
            problems += error.problems
    if problems:
        raise MeasurementError(problems)
    entries = _objects(body, "rows", source)
    rows = rows_of((entry, f"{source}, rows[{i}]") for i, entry in enumerate(entries)) if entries else ()
    return Measurements(about, rows, tuple(planned))


def _objects(body: Mapping[str, object], name: str, source: str) -> list[Mapping[str, object]]:
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise MeasurementError([f"{source}, {name}: a list of objects is needed"])
    return value


def _text(body: Mapping[str, object], name: str) -> str:
    value = body.get(name)
    return value if isinstance(value, str) else ""


def from_csv(text: str, source: str) -> Measurements:
    """Read Weft's own CSV form.

    Raises:
        MeasurementError: a row is wrong; it is named by its line in the file.
    """
    return Measurements(MeasurementContext(), rows_of(csv_lines(text, source)))


def csv_lines(text: str, source: str) -> Iterable[tuple[dict[str, object], str]]:
    """Yield each line of a CSV text as its fields and where it stands.

    Raises:
        MeasurementError: there is no header, or a line has more or fewer fields than it.
    """
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")))
    try:
        header = [name.strip() for name in next(reader)]
    except StopIteration:
        raise MeasurementError([f"{source}: the file is empty; the first line must name the columns"]) from None
    for values in reader:
        if not any(value.strip() for value in values):
            continue
        where = f"{source} line {reader.line_num}"
        if len(values) != len(header):
            raise MeasurementError([f"{where}: {len(values)} fields where the header has {len(header)}; add or remove"])
        yield {name: value.strip() for name, value in zip(header, values, strict=True)}, where


def read_measurements(path: Path) -> Measurements:
    """Read a file of measurements, JSON or CSV by its ending.

    Raises:
        MeasurementError: it is neither, or something in it is wrong.
        OSError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise MeasurementError(
            [f"{path.name}: no UTF-8 text (byte {error.start}); is this a measurement file?"]
        ) from error
    if path.suffix == ".csv":
        return from_csv(text, path.name)
    try:
        body = json.loads(text)
    except ValueError as error:
        raise MeasurementError([f"{path.name}: no JSON ({error}); CSV files end in .csv"]) from error
    if not isinstance(body, Mapping):
        raise MeasurementError([f"{path.name}: a JSON object is needed"])
    return from_json(body, path.name)


def write_measurements(measurements: Measurements, path: Path) -> None:
    """Write a file at once, JSON or CSV by its ending: a reader never sees half of it.

    Raises:
        OSError: it cannot be written.
    """
    text = to_csv(measurements) if path.suffix == ".csv" else json.dumps(to_json(measurements), indent=1) + "\n"
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
