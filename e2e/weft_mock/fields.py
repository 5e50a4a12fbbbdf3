"""Read fields of a request body by type; what is wrong is refused by name."""

from collections.abc import Mapping

from weft_mock.errors import ApiError


def read_flag(body: Mapping[str, object], name: str, *, default: bool = False) -> bool:
    """Return a truth value.

    Raises:
        ApiError: 400, it is none.
    """
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ApiError(400, f"{name}: true or false is needed, got {value!r}", param=name)
    return value


def read_whole(body: Mapping[str, object], name: str, least: int, *, default: int, most: int | None = None) -> int:
    """Return a whole number of at least ``least`` and at most ``most``.

    Raises:
        ApiError: 400, it is none, or out of range.
    """
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ApiError(400, f"{name}: a whole number is needed, got {value!r}", param=name)
    if value < least:
        raise ApiError(400, f"{name} must be at least {least}, got {value}.", param=name)
    if most is not None and value > most:
        raise ApiError(400, f"{name} must be at most {most}, got {value}.", param=name)
    return value


def read_number(body: Mapping[str, object], name: str, least: float, most: float) -> float | None:
    """Return a number within a range, None when it is not there.

    Raises:
        ApiError: 400, it is none, or out of range.
    """
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ApiError(400, f"{name}: a number from {least} to {most} is needed, got {value!r}", param=name)
    return float(value)


def token_ids(value: object) -> list[int]:
    """Return a list of whole numbers as it is, and anything else as an empty list."""
    if not isinstance(value, list) or not all(type(i) is int for i in value):
        return []
    return value
