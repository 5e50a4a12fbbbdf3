"""Read single fields of a stored plan; every error names the field and the fix."""

import math
from collections.abc import Mapping, Sequence
from typing import cast

Json = Mapping[str, object]


class PlanError(ValueError):
    """Report a plan that cannot be read; the message names the field and the fix."""


def at(where: str, key: str) -> str:
    """Return the path of a key."""
    return f"{where}.{key}" if where else key


def finite_or_none(value: float) -> float | None:
    """Return the figure, None when it is infinite: JSON has no infinity."""
    return value if math.isfinite(value) else None


def rows(value: object, where: str) -> list[Json]:
    """Return a list of objects."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise PlanError(f"{where}: a list is needed, got {value!r}")
    for i, row in enumerate(value):
        if not isinstance(row, Mapping):
            raise PlanError(f"{where}[{i}]: must be an object")
    return cast(list[Json], list(value))


def part(row: Json, key: str, where: str = "") -> Json | None:
    """Return an object, None when it is absent or null."""
    value = row.get(key)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise PlanError(f"{at(where, key)}: must be an object")
    return cast(Json, value)


def seconds(row: Json, key: str, where: str = "") -> float:
    """Return a time or other figure of 0 or more; null means infinite."""
    value = figure(row, key, where)
    return math.inf if value is None else value


def figure(row: Json, key: str, where: str = "") -> float | None:
    """Return a figure of 0 or more, None when it is absent or null."""
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise PlanError(f"{at(where, key)}: a figure of 0 or more or null is needed, got {value!r}")
    return float(value)


def required(row: Json, key: str, where: str = "") -> float:
    """Return a figure of 0 or more that must be there."""
    value = figure(row, key, where)
    if value is None:
        raise PlanError(f"{at(where, key)}: a figure of 0 or more is needed, got None")
    return value


def whole(row: Json, key: str, where: str = "") -> int:
    """Return a whole number of 1 or more."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(f"{at(where, key)}: a whole number of 1 or more is needed, got {value!r}")
    return value


def text(row: Json, key: str, where: str = "") -> str:
    """Return a text that is not empty."""
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise PlanError(f"{at(where, key)}: a non-empty text is needed")
    return value


def flag(row: Json, key: str, where: str = "") -> bool:
    """Return true or false."""
    value = row.get(key)
    if not isinstance(value, bool):
        raise PlanError(f"{at(where, key)}: true or false is needed, got {value!r}")
    return value


def choice(row: Json, key: str, known: Sequence[str], where: str = "") -> str:
    """Return one of the known words."""
    value = row.get(key)
    if value not in known:
        raise PlanError(f"{at(where, key)}: {value!r} is not known; use one of {', '.join(known)}")
    return str(value)
