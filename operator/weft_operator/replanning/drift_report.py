"""Growth of the traffic since the last replanning decision, after which a new decision is due early."""

from collections.abc import Mapping
from typing import Any

from weft_operator.metrics.history import CONFIDENCE, FIGURES, Mean, Sample

Json = Mapping[str, Any]

RISE = 0.05
"""Growth of the rate that asks another question while a load rises; less is not worth a run of the planner."""

_WIRE = {"rounds": "rounds", "first_prompt": "firstPrompt", "increment": "increment", "decode": "decode"}


def judged_traffic(workload: Json) -> dict[str, float]:
    """Return the figures of a workload (in a planner request's form) with which later traffic is compared."""
    known = {"rate": workload.get("arrivalRate")}
    known |= {name: (workload.get(_WIRE[name]) or {}).get("mean") for name in FIGURES}
    return {name: float(value) for name, value in known.items() if isinstance(value, int | float) and value > 0}


def has_risen(judged: Mapping[str, float] | None, newest: Sample | None) -> bool:
    """Return whether the newest sample's rate is above the old one by more than ``RISE``, with 95 % confidence."""
    if not judged or "rate" not in judged or newest is None or newest.rate is None:
        return False
    return max(_lower_end(newest.rate), newest.fast_rate or 0.0) > judged["rate"] * (1 + RISE)


def has_grown(judged: Mapping[str, float] | None, newest: Sample | None, *, tolerance: float) -> bool:
    """Return whether a figure of the newest sample is above the old one by ``tolerance``, with 95 % confidence."""
    if not judged or newest is None or not newest.seen:
        return False
    lower_ends: dict[str, float] = {name: _lower_end(mean) for name, mean in newest.figures.items()}
    if newest.rate is not None:
        lower_ends["rate"] = max(_lower_end(newest.rate), newest.fast_rate or 0.0)
    return any(value > judged[name] * (1 + tolerance) for name, value in lower_ends.items() if name in judged)


def differs(judged: Mapping[str, float] | None, asked: Mapping[str, float], *, tolerance: float) -> bool:
    """Return whether a figure of the traffic that another plan would be made for is longer or shorter by ``tolerance``.

    With shorter prompts and longer answers another ratio of roles is right, though nothing of it need have grown since.
    """
    known = [asked[name] / value for name, value in (judged or {}).items() if name in asked]
    return any(not 1 / (1 + tolerance) <= ratio <= 1 + tolerance for ratio in known)


def _lower_end(mean: Mean) -> float:
    return mean.value * (1 - CONFIDENCE * mean.error)
