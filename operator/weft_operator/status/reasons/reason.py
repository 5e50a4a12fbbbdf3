"""One reason of a condition, as people are told of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """One stable word of a condition: what it means, what to do about it, and what usually brings it about."""

    meaning: str
    remedy: str = ""
    cause: str = ""
