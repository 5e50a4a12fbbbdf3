"""A solver in a process of its own: answers, and every way of not answering."""

import sys

import pytest

from weft_planner.programs import scip
from weft_planner.programs.group_options import PlanLimits
from weft_planner.programs.program import Program, Solution, program_from_json, program_to_json
from weft_planner.programs.search import LayoutSearch
from weft_planner.programs.solver import Solver
from weft_planner_tests.test_programs import candidate


def program(*, lower: float = 3.5) -> Program:
    made = Program()
    x, y = made.add_variable("x", "integer"), made.add_variable("y", "continuous")
    made.add("least", [(x, 2.0), (y, 1.0)], lower=lower)
    made.add("most", [(x, 1.0), (y, 1.0)], upper=5.0)
    made.minimise({x: 1.0, y: 0.7})
    return made


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", f"import os, sys, time; {code}"


def test_a_program_survives_the_way_to_the_solver() -> None:
    assert program_from_json(program_to_json(program())) == program()


def test_it_answers_as_scip_does_and_more_than_once() -> None:
    with Solver() as solver:
        first = solver.solve(program(), time_limit_s=5)
        assert first == scip.solve(program(), time_limit_s=5)
        assert first is not None
        assert first.optimal
        assert solver.solve(program(lower=50.0), time_limit_s=5) is None
        assert solver.solve(program(), time_limit_s=5) == first


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (python("sys.stdin.readline(); os.abort()"), "ended with status -6"),
        (python("raise SystemExit('no such library')"), "no such library"),
        (python("sys.stdin.readline(); time.sleep(60)"), "no answer within"),
        (python("sys.stdin.readline(); print('what?', flush=True); time.sleep(60)"), "ended with status"),
        (python("sys.stdin.readline(); print('[]', flush=True); time.sleep(60)"), "ended with status"),
        (("weft-has-no-such-solver",), "cannot be started"),
    ],
)
def test_no_answer_is_one_plain_error_and_stays_one(command: tuple[str, ...], said: str) -> None:
    with Solver(command, grace_s=3.0 if "no answer" not in said else 0.2) as solver:
        for _ in range(2):
            with pytest.raises(scip.SolverError, match=said):
                solver.solve(program(), time_limit_s=0.1)


def test_an_error_of_one_program_leaves_the_solver_alone() -> None:
    command = python(
        'sys.stdin.readline(); print(\'{"error": "no solution in time"}\', flush=True); '
        "sys.stdin.readline(); print('{\"solved\": null}', flush=True); time.sleep(60)"
    )
    with Solver(command) as solver:
        with pytest.raises(scip.SolverError, match="no solution in time"):
            solver.solve(program(), time_limit_s=1)
        assert solver.solve(program(), time_limit_s=1) is None


class Limited:
    """A solver that ends at a limit with everything chosen."""

    def __init__(self, *, by_clock: bool) -> None:
        self.by_clock = by_clock

    def solve(self, program: Program, *, time_limit_s: float) -> Solution:
        assert time_limit_s > 0
        return Solution((1.0,) * len(program.variables), 0.0, optimal=False, by_clock=self.by_clock)


@pytest.mark.parametrize(
    ("by_clock", "said"), [(False, "limit of branches"), (True, "the same request may get another plan elsewhere")]
)
def test_a_plan_says_which_limit_ended_the_search(by_clock: bool, said: str) -> None:
    search = LayoutSearch(Limited(by_clock=by_clock))
    one = [candidate("prefill", 1, 1, 0.1)], [candidate("decode", 1, 1, 0.1)]
    limits = PlanLimits(2, {"a": (2,)}, {"prefill": (1, None), "decode": (1, None)})
    assert len(search.pairs(*one, limits=limits, objective="latency", count=1)) == 1
    assert search.how == "incumbent"
    assert said in search.notes[0]
