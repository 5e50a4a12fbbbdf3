"""Look for the best layouts of both forms with SCIP, and without it when it fails; say how they were found."""

from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from weft_core.plan import SEARCHES, Objective
from weft_core.plan import Search as How
from weft_planner.programs import form_a, form_b
from weft_planner.programs.enumeration import best_layouts, greedy_mixed
from weft_planner.programs.group_options import GroupOption, LayoutPair, PlanLimits
from weft_planner.programs.mixed import MixedLayout, WorkerOption
from weft_planner.programs.program import Program, Solution
from weft_planner.programs.scip import SolverError

LIMIT_S = 10.0
"""Processor time for one program, a last resort that no program seen so far came near: the limit on branches ends them,
which is the same on every machine. A plan that met this one says so."""

BY_BRANCHES = "the solver reached its limit of branches; the best found so far was taken"
BY_CLOCK = (
    "the solver ran out of time; the best found so far was taken, and the same request may get another plan elsewhere"
)


class ProgramSolver(Protocol):
    """What solves programs."""

    def solve(self, program: Program, *, time_limit_s: float) -> Solution | None:
        """Return the best solution, None when there is none; SolverError when that is not known."""


class LayoutSearch:
    """One search over both forms; ``how`` and ``notes`` tell how good its layouts are."""

    def __init__(self, solver: ProgramSolver) -> None:
        """Begin a search."""
        self._solver = solver
        self.how: How = "optimal"
        self.notes: list[str] = []

    def pairs(
        self,
        prefill: Sequence[GroupOption],
        decode: Sequence[GroupOption],
        *,
        limits: PlanLimits,
        objective: Objective,
        count: int,
    ) -> list[LayoutPair]:
        """Return up to ``count`` layouts of form A, best first; without SCIP the same ones by trying every pair."""
        found = form_a.best(prefill, decode, limits=limits, objective=objective, solve=self._values)
        try:
            return list(islice(found, count))
        except SolverError as error:
            self._say("enumeration", f"{error}; every pair of groups was tried instead")
            return best_layouts(prefill, decode, limits=limits, objective=objective, count=count)

    def mixed(
        self, kinds: Sequence[WorkerOption], *, rate: float, limits: PlanLimits, objective: Objective, count: int
    ) -> list[MixedLayout]:
        """Return up to ``count`` layouts of form B, best first; without SCIP by adding workers one by one."""
        found: list[MixedLayout] = []
        try:
            for mixed in form_b.best(kinds, rate=rate, limits=limits, objective=objective, solve=self._values):
                found.append(mixed)
                if len(found) == count:
                    break
        except SolverError as error:
            if not found:
                self._say("heuristic", f"{error}; mixed degrees were put together one worker at a time instead")
                greedy = greedy_mixed(kinds, rate=rate, limits=limits, objective=objective)
                found = list(greedy)[::-1][:count]  # each is better than the one before
        return found

    def _values(self, program: Program) -> Sequence[float] | None:
        solved = self._solver.solve(program, time_limit_s=LIMIT_S)
        if solved is None:
            return None
        if not solved.optimal:
            self._say("incumbent", BY_CLOCK if solved.by_clock else BY_BRANCHES)
        return solved.values

    def _say(self, how: How, note: str) -> None:
        self.how = max(self.how, how, key=SEARCHES.index)
        if note not in self.notes:
            self.notes.append(note)
