"""Say what keeps a plan from holding, and what would do, with the names and units that the manifest has."""

import math

from weft_core.shortfall import Remedy, Shortfall
from weft_planner.request.service import field, in_manifest
from weft_planner.tables import figures

BINDING = {"ttft": "TTFT binds", "itl": "ITL binds", "gpus": "GPUs bind", "budget": "The budget binds"}
_THRESHOLDS = ("slo.ttft", "slo.itl")


def change(remedy: Remedy) -> tuple[str, str | None]:
    """Return a field of a manifest and its new value, None to leave it out; thresholds are rounded up, so they hold."""
    name, value = field(remedy.path), remedy.value
    if value is None:
        return name, None
    if remedy.path in _THRESHOLDS and isinstance(value, int | float):
        return name, duration(value)
    if isinstance(value, float):
        return name, f"{value:.6g}"
    return name, f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def step(remedy: Remedy) -> str:
    """Return one change to a manifest in words."""
    name, value = change(remedy)
    return f"leave {name} out" if value is None else f"{name}: {value}"


def duration(seconds: float) -> str:
    """Return a time as manifests have it, rounded up to a tenth of a millisecond, or from a second on a hundredth."""
    if seconds < 1:
        return f"{math.ceil(round(seconds * 1e4, 6)) / 10:g}ms"
    return f"{math.ceil(round(seconds * 1e2, 6)) / 100:g}s"


def steps(shortfall: Shortfall) -> str:
    """Return the changes of which one is enough, empty when none is known."""
    listed = [step(remedy) for remedy in shortfall.remedies]
    if len(listed) == 1:
        return f"This would do: {listed[0]}."
    return f"Any one of these would do: {'; '.join(listed)}." if listed else ""


def shortfall_words(shortfall: Shortfall) -> str:
    """Return what binds and what would do, in one paragraph."""
    message = shortfall.message.removeprefix(f"{shortfall.binding}: ")
    binding = f"{BINDING[shortfall.binding]}: " if message != shortfall.message and shortfall.binding in BINDING else ""
    said = [f"{binding}{in_manifest(message).rstrip('.')}."]
    if shortfall.nearest_ttft_s is not None and shortfall.nearest_itl_s is not None:
        ttft, itl = figures.latency(shortfall.nearest_ttft_s), figures.latency(shortfall.nearest_itl_s)
        if f"TTFT {ttft} and ITL {itl}" not in said[0]:
            said.append(f"These GPUs hold TTFT {ttft} and ITL {itl}.")
    if shortfall.least_gpus is not None and f"{shortfall.least_gpus} GPUs would hold" not in said[0]:
        said.append(f"{shortfall.least_gpus} GPUs would hold the SLO.")
    return " ".join(part for part in (*said, steps(shortfall)) if part)
