"""Put a remedy into the words of a manifest: the field and its new value. Loads nothing of the planner."""

import math

from weft_core.shortfall import Remedy
from weft_planner.request.service import field

SPEC = "spec."
"""Before the fields of remedies that were read from a status."""
THRESHOLDS = ("slo.ttft", "slo.itl")


def manifest_change(remedy: Remedy) -> tuple[str, str | None]:
    """Return a field of a manifest and its new value, None to leave it out; thresholds are rounded up, so they hold."""
    value = remedy.value
    name = remedy.path if remedy.path.startswith(SPEC) else field(remedy.path)
    if value is None:
        return name, None
    if remedy.path in THRESHOLDS and isinstance(value, int | float):
        return name, duration(value)
    if isinstance(value, bool):
        return name, str(value).lower()
    if isinstance(value, float):
        return name, f"{value:.6g}"
    return name, f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def duration(seconds: float) -> str:
    """Return a time as manifests have it, rounded up to a tenth of a millisecond, or from a second on a hundredth."""
    if seconds < 1:
        return f"{math.ceil(round(seconds * 1e4, 6)) / 10:g}ms"
    return f"{math.ceil(round(seconds * 1e2, 6)) / 100:g}s"
