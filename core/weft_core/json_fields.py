"""Read single fields of a stored document, a plan or a cost profile; every error names the field and the fix."""

import math
from collections.abc import Mapping, Sequence
from typing import cast

from weft_core.parallelism import Degree, degree_from_json

Json = Mapping[str, object]


def at(where: str, key: str) -> str:
    """Return the path of a key."""
    return f"{where}.{key}" if where else key


def finite_or_none(value: float) -> float | None:
    """Return the figure, None when it is infinite: JSON has no infinity."""
    return value if math.isfinite(value) else None


class FieldReader:
    """Reads the fields of one kind of document; ``where`` is the path of the object that has the field."""

    def __init__(self, error: type[ValueError]) -> None:
        """Raise ``error`` for a field that is missing or wrong."""
        self._error = error

    def rows(self, value: object, where: str, *, some: bool = False) -> list[Json]:
        """Return a list of objects, with ``some`` of one at least; ``where`` is the list's own path."""
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self._error(f"{where}: a list is needed, got {value!r}")
        if some and not value:
            raise self._error(f"{where}: at least one row is needed")
        for i, row in enumerate(value):
            if not isinstance(row, Mapping):
                raise self._error(f"{where}[{i}]: must be an object")
        return cast(list[Json], list(value))

    def part(self, row: Json, key: str, where: str = "") -> Json | None:
        """Return an object, None when it is absent or null."""
        value = row.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._error(f"{at(where, key)}: must be an object")
        return cast(Json, value)

    def seconds(self, row: Json, key: str, where: str = "") -> float:
        """Return a time or other figure of 0 or more; null means infinite."""
        value = self.figure(row, key, where)
        return math.inf if value is None else value

    def figure(self, row: Json, key: str, where: str = "") -> float | None:
        """Return a figure of 0 or more, None when it is absent or null."""
        value = row.get(key)
        return None if value is None else self._figure(value, at(where, key), "a figure of 0 or more or null")

    def degree(self, row: Json, key: str, where: str = "") -> Degree:
        """Return the degree of a worker: a number of GPUs, or the parts as text."""
        value = row.get(key)
        if not isinstance(value, str):
            return self.whole(row, key, where)
        try:
            return degree_from_json(value)
        except ValueError as error:
            raise self._error(f"{at(where, key)}: {error}") from None

    def required(self, row: Json, key: str, where: str = "") -> float:
        """Return a figure of 0 or more that must be there."""
        return self._figure(row.get(key), at(where, key), "a figure of 0 or more")

    def _figure(self, value: object, path: str, needed: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise self._error(f"{path}: {needed} is needed, got {value!r}")
        return float(value)

    def share(self, row: Json, key: str, where: str = "") -> float:
        """Return a share above 0 and up to 1 that must be there."""
        value = self.required(row, key, where)
        if not 0 < value <= 1:
            raise self._error(f"{at(where, key)}: {value!r} is not a share above 0 and up to 1")
        return value

    def whole(self, row: Json, key: str, where: str = "") -> int:
        """Return a whole number of 1 or more."""
        value = row.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 1 or value != value // 1:
            raise self._error(f"{at(where, key)}: a whole number of 1 or more is needed, got {value!r}")
        return int(value)

    def text(self, row: Json, key: str, where: str = "") -> str:
        """Return a text that is not empty."""
        value = row.get(key)
        if not isinstance(value, str) or not value:
            raise self._error(f"{at(where, key)}: a non-empty text is needed")
        return value

    def flag(self, row: Json, key: str, where: str = "") -> bool:
        """Return true or false."""
        value = row.get(key)
        if not isinstance(value, bool):
            raise self._error(f"{at(where, key)}: true or false is needed, got {value!r}")
        return value

    def choice(self, row: Json, key: str, known: Sequence[str], where: str = "") -> str:
        """Return one of the known words."""
        value = row.get(key)
        if value not in known:
            raise self._error(f"{at(where, key)}: {value!r} is not known; use one of {', '.join(known)}")
        return str(value)
