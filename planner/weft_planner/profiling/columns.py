"""Read measured tables of whole passes whose columns have other names and units than Weft's.

A mapping says, for each field of a row, which column it is and by what to multiply it (milliseconds: 0.001), or what
constant it has. One line of a table may hold several measurements: a list of mappings reads each of them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from weft_planner.profiling.files import csv_lines
from weft_planner.profiling.measurements import COLUMNS, MeasurementContext, MeasurementError, Measurements, rows_of

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SPEC = re.compile(r"(?P<field>\w+)=(?:@(?P<constant>.+)|(?P<column>[^:]+)(?::(?P<unit>\w+))?)")


@dataclass(frozen=True, slots=True)
class Column:
    """One field's column and factor."""

    name: str
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """How to read one measurement from a line: columns and constants by field, and a column that must equal a text."""

    columns: Mapping[str, Column]
    constants: Mapping[str, str]
    only: Mapping[str, str]


def mapping_of(specs: Sequence[str]) -> ColumnMapping:
    """Read ``FIELD=COLUMN``, ``FIELD=COLUMN:UNIT`` and ``FIELD=@CONSTANT`` into a mapping.

    Raises:
        MeasurementError: a text is none of these, names an unknown field or unit, or leaves function or seconds out.
    """
    columns: dict[str, Column] = {}
    constants: dict[str, str] = {}
    problems: list[str] = []
    for spec in specs:
        found = _SPEC.fullmatch(spec)
        if found is None:
            problems.append(f"--column {spec}: is neither FIELD=COLUMN, FIELD=COLUMN:UNIT nor FIELD=@VALUE")
            continue
        field, unit = found["field"], found["unit"] or "s"
        if field not in COLUMNS:
            problems.append(f"--column {spec}: {field!r} is no field; use {', '.join(COLUMNS)}")
        elif found["constant"] is not None:
            constants[field] = found["constant"]
        elif unit not in UNITS:
            problems.append(f"--column {spec}: {unit!r} is no unit of time; use {', '.join(UNITS)}")
        else:
            columns[field] = Column(found["column"], UNITS[unit])
    problems += [
        f"--column: {field} has neither a column nor a value; add {field}=…"
        for field in ("function", "degree", "seconds")
        if field not in columns and field not in constants and not problems
    ]
    if problems:
        raise MeasurementError(problems)
    return ColumnMapping(columns, constants, {})


PASSES = (
    ColumnMapping(
        columns={
            "degree": Column("tp"),
            "history": Column("prefix"),
            "increment": Column("isl"),
            "seconds": Column("ttft", 1e-3),
        },
        constants={"function": "prefill"},
        only={"bs": "1"},
    ),
    ColumnMapping(
        columns={
            "degree": Column("tp"),
            "batch": Column("bs"),
            "context": Column("isl"),
            "seconds": Column("tpot", 1e-3),
        },
        constants={"function": "step"},
        only={},
    ),
)
"""aiconfigurator's tables of whole passes: isl (with prefix cached), bs, tp, ttft and tpot in milliseconds."""


def read_mapped(text: str, source: str, mapped: ColumnMapping) -> Measurements:
    """Read a table by a mapping.

    Raises:
        MeasurementError: a column is missing, or a row is wrong; rows are named by their line.
    """
    return Measurements(MeasurementContext(), rows_of(_mapped(text, source, mapped)))


def read_passes(text: str, source: str) -> Measurements:
    """Read aiconfigurator's table of whole passes: prefills of one prompt, and the steps of every batch.

    A step's context is taken at half of the answer (osl), where there is one.

    Raises:
        MeasurementError: a column is missing, or a row is wrong; rows are named by their line.
    """
    prefill, step = PASSES
    items = list(_mapped(text, source, prefill))
    for fields, _ in items:
        fields["increment"] = _minus(fields["increment"], fields.get("history"))
    answers = [line.get("osl") for line, _ in csv_lines(text, source)]
    for (fields, where), answer in zip(list(_mapped(text, source, step)), answers, strict=True):
        each, batch = _number(fields["context"]), _number(fields["batch"])
        fields["context"] = batch * (each + _number(answer) // 2)
        items.append((fields, where))
    return Measurements(MeasurementContext(), rows_of(items))


def _mapped(text: str, source: str, mapped: ColumnMapping) -> Iterator[tuple[dict[str, object], str]]:
    for line, where in csv_lines(text, source):
        missing = [column.name for column in mapped.columns.values() if column.name not in line]
        if missing:
            raise MeasurementError([f"{source}, {missing[0]}: there is no such column; it has {', '.join(line)}"])
        if any(str(line.get(name)) != value for name, value in mapped.only.items()):
            continue
        fields: dict[str, object] = dict(mapped.constants)
        for field, column in mapped.columns.items():
            value = line[column.name]
            fields[field] = value if column.factor == 1.0 or value == "" else _scaled(value, column.factor)
        yield fields, where


def _scaled(value: object, factor: float) -> object:
    """Return a number times a factor; what is no number is left for the row's check to name."""
    try:
        return float(str(value)) * factor
    except ValueError:
        return value


def _number(value: object) -> int:
    try:
        return int(float(str(value)))
    except (ValueError, OverflowError):
        return 0


def _minus(total: object, part: object) -> object:
    """Return a length less another; what is no number is left for the row's check to name."""
    try:
        return float(str(total)) - float(str(part or 0))
    except ValueError:
        return total
