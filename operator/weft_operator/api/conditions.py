"""The value of a condition: status, reason and message."""

from typing import Literal, NamedTuple

Truth = Literal["True", "False", "Unknown"]


class ConditionValue(NamedTuple):
    """The value of one condition."""

    status: Truth
    reason: str
    message: str
