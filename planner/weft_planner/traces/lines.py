"""Read a trace's lines: plain or gzip, one JSON object a line or CSV, each with its number."""

import csv
import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from weft_planner.traces.fields import WHOLE, LineError, Row
from weft_planner.traces.records import BadLineError, TraceError

MOST_BYTES = 2**30
"""Unpacked bytes of a trace: more is no length trace, or a packed file meant to do harm."""
LONGEST_LINE = 16 * 2**20

Line = tuple[int, str]
T = TypeVar("T")


def unpacked(data: bytes, *, file: str) -> bytes:
    """Return a trace's bytes, unpacked when they are gzip.

    Raises:
        TraceError: the gzip data are damaged or unpack to more than 1 GiB.
    """
    if data[:2] != b"\x1f\x8b":
        return data
    parts = zlib.decompressobj(wbits=31)
    try:
        out = parts.decompress(data, MOST_BYTES + 1)
        rest = parts.unused_data
        while rest.startswith(b"\x1f\x8b") and len(out) <= MOST_BYTES:
            parts = zlib.decompressobj(wbits=31)
            out += parts.decompress(rest, MOST_BYTES + 1 - len(out))
            rest = parts.unused_data
    except zlib.error as error:
        raise TraceError(f"{file}: the gzip data are damaged ({error}); copy the file again") from error
    if len(out) > MOST_BYTES:
        raise TraceError(f"{file}: unpacks to more than 1 GiB; cut it into parts")
    if not parts.eof:
        raise TraceError(f"{file}: the gzip data end too soon; copy the file again")
    return out


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        TraceError: it cannot be read.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise TraceError(f"{path}: is larger than 1 GiB; cut it into parts")
        return path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def numbered(data: bytes, *, file: str) -> Iterator[Line]:
    """Yield (number from 1, text) of every line that is not blank.

    Raises:
        TraceError: a line is not UTF-8 or longer than 16 MiB.
    """
    for number, raw in enumerate(data.splitlines(), start=1):
        if len(raw) > LONGEST_LINE:
            raise TraceError(f"{file} line {number}: is longer than 16 MiB")
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise TraceError(f"{file} line {number}: is not UTF-8 text at byte {error.start}") from error
        if text.strip():
            yield number, text


def json_row(text: str) -> Row:
    """Return the object of one line.

    Raises:
        LineError: it is not JSON (NaN and Infinity are not), or no object.
    """
    try:
        row = json.loads(text, parse_constant=_no_number)
    except LineError:
        raise
    except (ValueError, RecursionError) as error:
        raise LineError(WHOLE, f"is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise LineError(WHOLE, f"must be a JSON object, not {type(row).__name__}")
    return row


def _no_number(name: str) -> float:
    raise LineError(WHOLE, f"{name} is no number; write null where nothing was recorded")


def csv_rows(lines: Iterator[Line], *, header: list[str]) -> Iterator[tuple[int, Row]]:
    """Yield (number, fields) of comma-separated lines after the header; numbers are turned into numbers."""
    for number, text in lines:
        cells = next(csv.reader([text]))
        if len(cells) != len(header):
            yield number, {}
            continue
        yield number, {name: _value(cell) for name, cell in zip(header, cells, strict=True)}


def _value(cell: str) -> object:
    try:
        number = float(cell)
    except ValueError:
        return cell
    return int(number) if math.isfinite(number) and number.is_integer() and "." not in cell else number


class LineReader:
    """Refuses the first bad line by number, or skips bad lines and counts them by field."""

    def __init__(self, file: str, *, skip_bad: bool) -> None:
        self._file = file
        self._skip_bad = skip_bad
        self._faults: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def each(self, rows: Iterator[tuple[int, T]], read: Callable[[T], object]) -> None:
        """Give every row to ``read``, which raises LineError for a bad one.

        Raises:
            TraceError: a row is bad and bad rows are not to be skipped.
        """
        for number, row in rows:
            try:
                read(row)
            except LineError as error:
                self.fault(number, error)

    def fault(self, number: int, error: LineError) -> None:
        """Refuse or count one fault.

        Raises:
            TraceError: bad rows are not to be skipped.
        """
        if not self._skip_bad:
            raise BadLineError(self._file, number, error) from error
        self._faults[error.field] += 1
        self._first.setdefault(error.field, f"line {number}: {error}")

    @property
    def skipped(self) -> tuple[str, ...]:
        """Say how many lines were skipped for which field, with the first of each."""
        return tuple(
            f"{count} {'line' if count == 1 else 'lines'} skipped, first {self._first[field]}"
            for field, count in sorted(self._faults.items())
        )
