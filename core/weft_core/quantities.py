"""Amounts as Kubernetes writes them: 1.5Gi, 1500m, 2e3."""

import math
import re
from fractions import Fraction

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:(n|u|m|[kMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?")
"""Kubernetes' quantities (API conventions, resource.Quantity): 1.5Gi, 1500m, 2e3, .5."""
_SCALE = (
    {"": Fraction(1)}
    | {unit: Fraction(1, 1000**power) for power, unit in enumerate("mun", start=1)}
    | {unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", start=1)}
    | {f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)}
)


def amount(value: object) -> Fraction | None:
    """Return the number that a quantity is, None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number, unit, exponent = match.groups()
    return Fraction(number) * _SCALE[unit or ""] * Fraction(10) ** int(exponent or 0)


def bytes_of(value: object) -> int:
    """Return the bytes that a valid quantity is, a part of one as a whole one; 0 where it is none."""
    return math.ceil(amount(value) or 0)


def size_text(size: int) -> str:
    """Return a number of bytes as a quantity, in the largest binary unit that gives a whole number."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if size % int(_SCALE[unit]) == 0:
            return f"{size // int(_SCALE[unit])}{unit}"
    return str(size)
