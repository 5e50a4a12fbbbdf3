"""One reason of a condition, with its cause and remedy."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """One stable word of a condition: what it means, what to do about it, and what usually brings it about."""

    meaning: str
    remedy: str = ""
    cause: str = ""
