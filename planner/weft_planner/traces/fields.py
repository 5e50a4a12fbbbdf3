"""Check single fields of a trace's line; every fault names the field, the value and what is allowed."""

import math
from collections.abc import Mapping

Row = Mapping[str, object]

WHOLE = "line"
"""Stands for the line itself where no field of it can be named."""
MOST_TOKENS = 10_000_000
LONGEST_S = 10 * 366 * 86_400
"""Ten years: anything beyond is a time in milliseconds or of another epoch."""


class LineError(ValueError):
    """Report what is wrong with a line; ``field`` names the field, or WHOLE, for the count of skipped lines."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message if field == WHOLE else f"{field}: {message}")
        self.field = field


def tokens(row: Row, name: str, *, where: str = "", least: int = 1) -> int:
    """Return a number of tokens of at least ``least``.

    Raises:
        LineError: it is missing, no whole number, or out of range.
    """
    value = row.get(name)
    field = f"{where}{name}"
    if value is None:
        raise LineError(field, "is missing")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST_TOKENS:
        raise LineError(field, f"must be a whole number of tokens from {least} to {MOST_TOKENS:,}, not {value!r}")
    return value


def seconds(row: Row, name: str, *, where: str = "", per_second: int = 1) -> float | None:
    """Return a time of at least 0 in seconds, None where it is null or missing; the field may count milliseconds.

    Raises:
        LineError: it is no number, not finite, negative or longer than ten years.
    """
    value = row.get(name)
    if value is None:
        return None
    field = f"{where}{name}"
    unit = "seconds" if per_second == 1 else "milliseconds"
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise LineError(field, f"must be null or {unit}, not {value!r}")
    most = per_second * LONGEST_S
    if not 0 <= value <= most:
        raise LineError(field, f"must be null or {unit} from 0 to {most:,} (ten years), not {value!r}")
    return value / per_second


def required_seconds(row: Row, name: str, *, per_second: int = 1) -> float:
    """Return a time of at least 0 in seconds that must be there.

    Raises:
        LineError: as ``seconds``, or it is null or missing.
    """
    value = seconds(row, name, per_second=per_second)
    if value is None:
        raise LineError(name, "is missing")
    return value


def text(row: Row, name: str) -> str:
    """Return a name.

    Raises:
        LineError: it is missing, empty or no text.
    """
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise LineError(name, "is missing" if value is None else f"must be text, not {value!r}")
    return value


def objects(row: Row, name: str) -> list[Row]:
    """Return a list of at least one object.

    Raises:
        LineError: it is missing, empty, or holds something else.
    """
    value = row.get(name)
    if not isinstance(value, list) or not value:
        raise LineError(name, f"must be a list of at least one object, not {value!r}"[:200])
    for k, item in enumerate(value):
        if not isinstance(item, dict):
            raise LineError(f"{name}[{k}]", f"must be an object, not {item!r}"[:200])
    return value


def counts(row: Row, name: str) -> list[int]:
    """Return a list of numbers of tokens, each at least 1.

    Raises:
        LineError: it is missing, empty, or holds something else.
    """
    value = row.get(name)
    if not isinstance(value, list) or not value:
        raise LineError(name, f"must be a list of at least one number, not {value!r}"[:200])
    return [tokens({"": item}, "", where=f"{name}[{k}]") for k, item in enumerate(value)]


def labels(row: Row) -> dict[str, str]:
    """Return a line's plain text fields, which may tell sessions apart (agent, system, kind)."""
    return {name: value for name, value in row.items() if isinstance(value, str)}
