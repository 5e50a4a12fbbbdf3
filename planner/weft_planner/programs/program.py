"""An integer linear program as plain data, so that it can be built and tested without a solver."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

Kind = Literal["binary", "integer", "continuous"]
Coefficients = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A decision variable; a binary is 0 or 1, an integer and a continuous one are 0 or more."""

    name: str
    kind: Kind


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

    def add_variable(self, name: str, kind: Kind) -> int:
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
class Solution:
    """A solver's answer: the variables' values, and whether they are proved optimal or only the best found by a limit.

    ``by_clock``: the limit was one of time, so that another machine might find another solution.
    """

    values: tuple[float, ...]
    objective: float
    optimal: bool
    by_clock: bool = False


class ProgramModel(Protocol):
    """A program with the knowledge of what its variables mean."""

    @property
    def program(self) -> Program:
        """Return the program."""


Model = TypeVar("Model", bound=ProgramModel)
Found = TypeVar("Found")


def enumerate_best(
    without: Callable[[Sequence[Found]], Model],
    extract: Callable[[Model, Sequence[float]], Found],
    solve: Callable[[Program], Sequence[float] | None],
) -> Iterator[Found]:
    """Yield solutions, best first, until there is no other: each is cut off (``without``) before the next is sought."""
    found: list[Found] = []
    while True:
        built = without(found)
        values = solve(built.program)
        if values is None:
            return
        found.append(extract(built, values))
        yield found[-1]


def program_to_json(program: Program) -> dict[str, object]:
    """Return a JSON-ready form of a program."""
    return {
        "variables": [[v.name, v.kind] for v in program.variables],
        "constraints": [[c.name, c.terms, c.lower, c.upper] for c in program.constraints],
        "objective": list(program.objective.items()),
    }


def program_from_json(body: Mapping[str, Any]) -> Program:
    """Read what ``program_to_json`` wrote."""
    return Program(
        variables=[Variable(name, kind) for name, kind in body["variables"]],
        constraints=[
            Constraint(name, tuple((index, weight) for index, weight in terms), lower, upper)
            for name, terms, lower, upper in body["constraints"]
        ],
        objective=dict(body["objective"]),
    )
