"""Tell whether the traffic has grown beyond that of the last replanning decision, which then no longer stands."""

from collections.abc import Mapping
from typing import Any

from weft_operator.metrics.history import CONFIDENCE, FIGURES, Mean, Sample

Json = Mapping[str, Any]

_WIRE = {"rounds": "rounds", "first_prompt": "firstPrompt", "increment": "increment", "decode": "decode"}


def judged_traffic(workload: Json) -> dict[str, float]:
    """Return the figures of a workload (in a request's form) that a later look is compared with."""
    known = {"rate": workload.get("arrivalRate")}
    known |= {name: (workload.get(_WIRE[name]) or {}).get("mean") for name in FIGURES}
    return {name: float(value) for name, value in known.items() if isinstance(value, int | float) and value > 0}


def has_grown(judged: Mapping[str, float] | None, newest: Sample | None, *, tolerance: float) -> bool:
    """Tell whether a figure of the newest look is surely above the judged one by ``tolerance``; less is not."""
    if not judged or newest is None or not newest.seen:
        return False
    surely: dict[str, float] = {name: _low(mean) for name, mean in newest.figures.items()}
    if newest.rate is not None:
        surely["rate"] = max(_low(newest.rate), newest.lately or 0.0)
    return any(value > judged[name] * (1 + tolerance) for name, value in surely.items() if name in judged)


def _low(mean: Mean) -> float:
    return mean.value * (1 - CONFIDENCE * mean.error)
