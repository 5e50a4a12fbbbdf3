"""The value of a condition: status, reason and message."""

from dataclasses import dataclass
from typing import Literal

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class ConditionValue:
    """The value of one condition."""

    status: Truth
    reason: str
    message: str
