"""An integer linear program as plain data, so that it can be built and tested without a solver."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Coefficients = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A decision variable; a binary is 0 or 1, a continuous one is 0 or more."""

    name: str
    kind: Literal["binary", "continuous"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """lower <= sum of coefficient x variable <= upper; None leaves a side open."""

    name: str
    terms: Coefficients
    lower: float | None = None
    upper: float | None = None


@dataclass(slots=True)
class Program:
    """A minimisation over named variables."""

    variables: list[Variable] = field(default_factory=list)
    constraints: list[Constraint] = field(default_factory=list)
    objective: dict[int, float] = field(default_factory=dict)

    def add_variable(self, name: str, kind: Literal["binary", "continuous"]) -> int:
        """Add a variable and return its index."""
        self.variables.append(Variable(name, kind))
        return len(self.variables) - 1

    def add(
        self, name: str, terms: Iterable[tuple[int, float]], *, lower: float | None = None, upper: float | None = None
    ) -> None:
        """Add a constraint; zero coefficients are left out, and without any term it speaks about 0."""
        kept = tuple((index, coefficient) for index, coefficient in terms if coefficient != 0)
        self.constraints.append(Constraint(name, kept, lower, upper))

    def minimise(self, objective: Mapping[int, float]) -> None:
        """Set the objective."""
        self.objective = dict(objective)


@dataclass(frozen=True, slots=True)
class Solved:
    """A solver's answer: the variables' values, and whether they are proved optimal or only the best found in time."""

    values: tuple[float, ...]
    objective: float
    optimal: bool
