"""Number the reasons of routing decisions: a compiled policy returns the number, logs and metrics show the name.

A policy's file declares its own reasons. Their numbers follow the order in which the files are loaded, which is always
the same, and nothing stores them.
"""

from typing import Final

_meanings: dict[str, str] = {}


def reason(name: str, meaning: str) -> int:
    """Register a reason and return its number."""
    if name in _meanings:
        raise ValueError(f"reason {name!r} is declared twice")
    _meanings[name] = meaning
    return len(_meanings) - 1


def meanings() -> dict[str, str]:
    """Return the meaning of each reason, in the order of their numbers."""
    return dict(_meanings)


NO_PREFILL_WORKER: Final = reason("no-prefill-worker", "there is no prefill worker to send it to")
PROFILE_INCOMPLETE: Final = reason(
    "profile-incomplete", "a prediction is missing, so the prefill worker with the shortest queue was taken"
)
SHORTEST_FINISH: Final = reason("shortest-finish", "the prefill worker that should finish it first")
LEAST_COST: Final = reason("least-cost", "the option with the least predicted cost")
FIRST_ROUND: Final = reason("first-round", "a session's first round always goes to a prefill worker")
LOCAL_CHUNKED: Final = reason("local-chunked", "on the decode worker in chunks sized by the ITL SLO, at the least cost")
LOCAL_WHOLE: Final = reason("local-whole", "on the decode worker in one piece, at the least cost")
DEGRADED: Final = reason("degraded", "a low-priority task keeps off busy prefill workers")
PREDICTIONS_WRONG: Final = reason(
    "predictions-wrong",
    "predicted times proved wrong lately; the policy's choice by what they are after correction",
)
