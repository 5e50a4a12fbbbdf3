"""Read and write durations the way Kubernetes users type them: 5s, 50ms, 1m30s."""

import math
import re

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d)")


def parse_duration(value: object) -> float:
    """Return seconds from a text such as 5s, 50ms or 1m30s; a number is taken as seconds.

    Raises:
        ValueError: the value is neither; the message shows the accepted form.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    if isinstance(value, str) and value and _PART.sub("", value) == "":
        # Each part is rounded to the nearest float once, so that 50ms and 0.05 are the same figure.
        return math.fsum(_seconds(number, unit) for number, unit in _PART.findall(value))
    raise ValueError(f"{value!r} is not a duration; write 5s, 50ms, 1m30s or 10m")


def _seconds(number: str, unit: str) -> float:
    scale = _UNITS[unit]
    return float(number) * scale if scale >= 1 else float(number) / round(1 / scale)


def format_seconds(seconds: float) -> str:
    """Return a duration for people, with three significant digits: 3.42 s, 50.0 ms."""
    if not math.isfinite(seconds):
        return "unbounded"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"
