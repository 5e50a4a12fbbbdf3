"""Shorter simulations in all tests of whole plans (``conftest`` sees to it): what is decided stays the same."""

import atexit
from collections.abc import Callable
from functools import cache

import pytest

from weft_core.cost import CostProfile
from weft_core.plan import Plan
from weft_planner.evaluation import ranking, samples, shortlist
from weft_planner.plan import solve
from weft_planner.programs import inputs
from weft_planner.programs.solver import Solver
from weft_planner.request.reading import Request


def shorten(assign: Callable[[object, str, object], None]) -> None:
    """Have a fifth of the usual rounds simulated, for half as many layouts; ``assign`` sets a module's attribute."""
    for module, name, value in (
        (inputs, "PHASE_ROUNDS", 600),
        (samples, "SIEVE_ROUNDS", 120),
        (samples, "ROUNDS", 320),
        (samples, "MOST_ROUNDS", 1600),
        (samples, "SHORTEST_S", 3.0),
        (shortlist, "BEST", 4),
        (shortlist, "PROMISING", 4),
        (ranking, "RUNNABLE", 4),
        (ranking, "ADVISED", 1),
    ):
        assign(module, name, value)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the simulations of a test's plans short."""
    shorten(monkeypatch.setattr)


@cache
def solver() -> Solver:
    """Return one solver for the plans of all tests; its process ends with theirs."""
    made = Solver()
    atexit.register(made.__exit__, None, None, None)
    return made


def solved(asked: Request) -> tuple[Plan, dict[str, CostProfile]]:
    """Return the plan of a request and its profiles."""
    return solve.solve(asked, solver=solver())


def answered(asked: Request) -> dict[str, object]:
    """Return the answer to a request."""
    return solve.answer(asked, solver=solver())
