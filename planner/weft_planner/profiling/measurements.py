"""Measured times as rows.

One row says how long one thing took: a *prefill* (``increment`` tokens after ``history`` cached ones), an engine
*step* (``batch`` sequences holding ``context`` tokens in total decode one token each, with ``chunk`` prefill tokens
after ``history`` cached ones beside them), or a KV *transfer* (``tokens`` from a worker of ``degree`` GPUs to one of
``destination``). Seconds and tokens throughout. Reading refuses a row that cannot be and names its row and field.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from weft_core.cost import LINKS, Link
from weft_core.parallelism import Degree, gpus_of

Function = Literal["prefill", "step", "transfer"]
Way = Literal["there", "back"]
"""Of a transfer: from a prefill engine to the decode engine, or from that back to the prefill engine."""
WAYS: tuple[Way, ...] = ("there", "back")
_MOST_PROBLEMS = 10


class MeasurementError(ValueError):
    """Report measurements that cannot be used; every line of the message names a row, a field and the fix."""

    def __init__(self, problems: Sequence[str]) -> None:
        """Keep the problems; the message shows the first of them and says how many more there are."""
        self.problems = tuple(problems)
        more = len(problems) - _MOST_PROBLEMS
        shown = [*problems[:_MOST_PROBLEMS], *([f"… and {more} more"] if more > 0 else [])]
        super().__init__("\n".join(shown))


@dataclass(frozen=True, slots=True, order=True)
class GridCell:
    """What was, or is to be, timed; lengths in tokens, fields that a function does not have are 0."""

    function: Function
    degree: Degree
    history: int = 0
    increment: int = 0
    batch: int = 0
    context: int = 0
    chunk: int = 0
    tokens: int = 0
    destination: int = 0
    link: Link = "inter-node"
    way: Way = "there"

    def __str__(self) -> str:
        """Return the fields that matter, as an error names them."""
        if self.function == "prefill":
            return f"prefill at degree {self.degree}, history {self.history}, increment {self.increment}"
        if self.function == "step":
            mixed = f", chunk {self.chunk} after {self.history}" if self.chunk else ""
            return f"step at degree {self.degree}, batch {self.batch}, context {self.context}{mixed}"
        back = " back" if self.way == "back" else ""
        return f"{self.link} transfer{back} from degree {self.degree} to {self.destination}, {self.tokens} tokens"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One timing; ``where`` is the row it came from, for errors."""

    cell: GridCell
    seconds: float
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a worker of one degree holds."""

    weight_bytes_per_gpu: int
    kv_capacity_tokens: int


@dataclass(frozen=True, slots=True)
class MeasurementContext:
    """What was measured; 0, empty and missing where it is not known (yet)."""

    model: str = ""
    gpu: str = ""
    engine: str = ""
    kv_bytes_per_token: int = 0
    memory: Mapping[Degree, Memory] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything one profiling run gave; ``planned`` lists what it set out to measure (empty: not known)."""

    about: MeasurementContext
    rows: tuple[Measurement, ...]
    planned: tuple[GridCell, ...] = ()

    def missing(self) -> tuple[GridCell, ...]:
        """Return what was planned and has no row."""
        done = {row.cell for row in self.rows}
        return tuple(cell for cell in self.planned if cell not in done)


WHOLES = ("degree", "history", "increment", "batch", "context", "chunk", "tokens", "destination")
"""Fields of a cell that are whole numbers."""
COLUMNS = ("function", *WHOLES, "link", "way", "seconds")
"""The columns of Weft's own CSV form; an empty field means 0, for ``link`` inter-node, and for ``way`` there."""


def measurement(fields: Mapping[str, object], where: str) -> Measurement:
    """Build one row from named fields, given as numbers or text.

    Raises:
        MeasurementError: fields are unknown, missing, of the wrong type or out of range; all that is wrong in the row.
    """
    unknown = [name for name in fields if name not in COLUMNS]
    problems = [f"{where}, {name}: unknown field; use {', '.join(COLUMNS)}" for name in unknown]
    function = fields.get("function")
    if function not in get_args(Function):
        known = ", ".join(get_args(Function))
        raise MeasurementError([*problems, f"{where}, function: {function!r} is not one of {known}"])
    wholes = {name: whole(fields.get(name), f"{where}, {name}", problems) for name in WHOLES}
    link = fields.get("link") or "inter-node"
    if link not in LINKS:
        problems.append(f"{where}, link: {link!r} is not a link; use {' or '.join(LINKS)}")
        link = "inter-node"
    way = fields.get("way") or "there"
    if way not in WAYS:
        problems.append(f"{where}, way: {way!r} is not a way; use {' or '.join(WAYS)}")
        way = "there"
    seconds = _seconds(fields.get("seconds"), f"{where}, seconds", problems)
    cell = GridCell(function=cast(Function, function), link=cast(Link, link), way=cast(Way, way), **wholes)
    if not problems:
        problems += [f"{where}, {text}" for text in _impossible(cell)]
    if problems:
        raise MeasurementError(problems)
    return Measurement(cell, seconds, where)


def _impossible(cell: GridCell) -> Iterable[str]:
    """Yield what is wrong with a cell: the field, its value, and what it must be."""
    if gpus_of(cell.degree) < 1:
        yield f"degree: {cell.degree} is not a number of GPUs; give the tensor-parallel degree, 1 or more"
    if cell.function == "prefill" and cell.increment < 1:
        yield "increment: 0 tokens take no prefill; give the new tokens, 1 or more"
    if cell.function == "step":
        if cell.batch < 1 and cell.chunk < 1:
            yield "batch: 0 sequences and no chunk are no step; give the decoding sequences, 1 or more"
        if cell.context < cell.batch:
            yield (
                f"context: {cell.context} tokens cannot be held by {cell.batch} sequences; "
                "give the tokens of all sequences together"
            )
        if cell.batch < 1 <= cell.context:
            yield f"context: {cell.context} tokens without a sequence; give batch, or leave context out"
        if cell.chunk < 1 <= cell.history:
            yield "history: without a chunk there is nothing it belongs to; give chunk, or leave history out"
    if cell.function == "transfer":
        if cell.tokens < 1:
            yield "tokens: nothing moves; give the tokens, 1 or more"
        if cell.destination < 1:
            yield f"destination: {cell.destination} is not a number of GPUs; give the reader's degree, 1 or more"
    belongs = {
        "prefill": {"history", "increment"},
        "step": {"history", "batch", "context", "chunk"},
        "transfer": {"tokens", "destination"},
    }[cell.function]
    for name in WHOLES[1:]:
        if name not in belongs and getattr(cell, name):
            yield f"{name}: a {cell.function} has none; leave it empty"
    if cell.way == "back" and cell.function != "transfer":
        yield f"way: a {cell.function} has none; leave it empty"


def whole(value: object, where: str, problems: list[str]) -> int:
    """Return a whole number of 0 or more given as a number or text, 0 for nothing; else add to the problems."""
    if value is None or value == "":
        return 0
    number = _number(value)
    if number is None or not math.isfinite(number) or number != int(number):
        problems.append(f"{where}: {value!r} is not a whole number; give tokens or counts as whole numbers")
        return 0
    if number < 0:
        problems.append(f"{where}: {value!r} is negative; give 0 or more")
        return 0
    return int(number)


def _seconds(value: object, where: str, problems: list[str]) -> float:
    number = _number(value)
    if value is None or value == "":
        problems.append(f"{where}: missing; give the measured time, or remove the row")
    elif number is None:
        problems.append(f"{where}: {value!r} is not a number; give the measured time in seconds")
    elif not math.isfinite(number):
        problems.append(f"{where}: {value!r} is no time; measure again, or remove the row")
    elif number <= 0:
        what = "negative" if number < 0 else "0"
        problems.append(f"{where}: {what} is no time; measure again, or remove the row")
    else:
        return number
    return 1.0


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def rows_of(items: Iterable[tuple[Mapping[str, object], str]]) -> tuple[Measurement, ...]:
    """Build all rows.

    Raises:
        MeasurementError: any of them is wrong; the problems of all rows together, or there is no row at all.
    """
    rows: list[Measurement] = []
    problems: list[str] = []
    for fields, where in items:
        try:
            rows.append(measurement(fields, where))
        except MeasurementError as error:
            problems += error.problems
    if problems:
        raise MeasurementError(problems)
    if not rows:
        raise MeasurementError(["rows: there is no measurement; measure something first"])
    return tuple(rows)
