"""One reason of a condition, with its cause and remedy."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """What a condition reason means, what to do about it, and its usual cause."""

    meaning: str
    remedy: str = ""
    cause: str = ""
