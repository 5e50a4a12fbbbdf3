"""Say what keeps a plan from holding, and what would do, with the names and units that the manifest has."""

from weft_core.shortfall import Remedy, Shortfall
from weft_planner.request.manifest_change import manifest_change
from weft_planner.request.service import in_manifest
from weft_planner.tables import figures

BINDING = {"ttft": "TTFT binds", "itl": "ITL binds", "gpus": "GPUs bind", "budget": "The budget binds"}


def step(remedy: Remedy) -> str:
    """Return one change to a manifest in words."""
    name, value = manifest_change(remedy)
    return f"leave {name} out" if value is None else f"{name}: {value}"


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
