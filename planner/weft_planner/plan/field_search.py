"""Change one field of a request, and look for the value of it from which on something holds."""

from collections.abc import Callable, Sequence
from typing import cast

from pydantic import BaseModel

from weft_planner.request.reading import Request


def with_field(request: Request, path: str, value: object) -> Request:
    """Return a request with one field changed; ``path`` is as in its JSON form, list places as numbers."""
    return cast(Request, _changed(request, path.split("."), value))


def _changed(part: object, path: Sequence[str], value: object) -> object:
    if not path:
        return value
    first, *rest = path
    if isinstance(part, tuple):
        at = int(first)
        return (*part[:at], _changed(part[at], rest, value), *part[at + 1 :])
    if not isinstance(part, BaseModel):
        raise TypeError(f"{first}: {part!r} has no such field")
    names = {field.alias or name: name for name, field in type(part).model_fields.items()}
    name = names[first]
    return part.model_copy(update={name: _changed(getattr(part, name), rest, value)})


def least_that(holds: Callable[[int], bool], above: int, most: int) -> int | None:
    """Return the least number above ``above`` for which a rising condition holds; None: none up to ``most`` does."""
    high = above + 1
    step = 1
    while high <= most and not holds(high):
        step *= 2
        high = high + step
    if high > most:
        if not holds(most):
            return None
        high = most
    low = max(above, high - step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def most_that(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest number from ``low``, where a falling condition holds, to below ``high``, where it does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
