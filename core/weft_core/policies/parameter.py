"""Describe one parameter of a scheduling rule: its unit, default and range stand where the rule reads it."""

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
        if not self.low <= value <= self.high:  # NaN is in no range
            raise PolicyError(f"{self.name}: {value:g} is not between {self.low:g} and {self.high:g} ({self.unit})")
        return float(value)


def defaults(parameters: tuple[Parameter, ...]) -> tuple[float, ...]:
    """Return the vector of defaults."""
    return tuple(parameter.default for parameter in parameters)
