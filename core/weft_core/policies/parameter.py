"""Describe one parameter of a scheduling rule: its unit, default and range stand where the rule reads it."""

import math
from dataclasses import dataclass


class PolicyError(ValueError):
    """Report a policy, mode or parameter that does not exist or is out of range; the message names the fix."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One place of a rule's parameter vector; ``low`` and ``high`` are allowed themselves."""

    name: str
    default: float
    low: float
    high: float
    unit: str
    meaning: str

    def check(self, value: float) -> float:
        """Return a value for this parameter.

        Raises:
            PolicyError: it is out of range, or not a number.
        """
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise PolicyError(f"{self.name}: {value!r} is not a number; give one from {self.low:g} to {self.high:g}")
        if not self.low <= value <= self.high:
            raise PolicyError(f"{self.name}: {value:g} is not between {self.low:g} and {self.high:g} ({self.unit})")
        return float(value)


def defaults(parameters: tuple[Parameter, ...]) -> tuple[float, ...]:
    """Return the vector of defaults."""
    return tuple(parameter.default for parameter in parameters)
