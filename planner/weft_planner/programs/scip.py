"""Solve integer programs with SCIP; the only module that speaks to pyscipopt.

As a program of its own (``python -m weft_planner.programs.scip``) it answers one program per line, so that a
solver that crashes or hangs takes nothing else with it; ``weft_planner.programs.solver`` is its caller.
"""

import json
import sys
from dataclasses import asdict

from weft_planner.programs.program import Program, Solution, program_from_json

TOLERANCE = 1e-9
"""Below the smallest tie-break weight (1e-6 for one GPU); SCIP's default of 1e-6 could not tell ties apart."""
MOST_NODES = 2_000
"""Branches of one program: a limit that is the same on every machine, so that the same request gives the same plan.
Form A takes 16 at most up to 256 GPUs; form B, where it takes more, has its best layout long before."""
CPU_CLOCK = 1


class SolverError(RuntimeError):
    """Report that SCIP ended without an answer."""


def solve(program: Program, *, time_limit_s: float) -> Solution | None:
    """Return an optimal or, at a limit, the best known solution; None when the program is infeasible.

    ``time_limit_s`` is of processor time, and a last resort: the limit on branches ends whatever takes too long.

    Raises:
        SolverError: SCIP is not installed, failed, or found no solution in time.
    """
    try:
        from pyscipopt import Model, quicksum
    except (ImportError, OSError) as error:
        raise SolverError(f"SCIP cannot be loaded ({error})") from error
    model = Model("weft")
    model.hideOutput()
    model.setParam("timing/clocktype", CPU_CLOCK)
    model.setParam("limits/time", time_limit_s)
    model.setParam("limits/totalnodes", MOST_NODES)
    model.setParam("numerics/feastol", TOLERANCE)
    # SCIP 10.0 cuts off the optimum of some programs in this presolving step (seed 83675 of test_programs.py).
    model.setParam("constraints/linear/simplifyinequalities", False)
    model.setParam("parallel/maxnthreads", 1)
    kinds = {"binary": "B", "integer": "I", "continuous": "C"}
    variables = [model.addVar(name=v.name, vtype=kinds[v.kind], lb=0.0) for v in program.variables]
    for constraint in program.constraints:
        if not constraint.terms:
            if _broken_by_zero(constraint.lower, constraint.upper):
                return None
            continue
        expression = quicksum(coefficient * variables[index] for index, coefficient in constraint.terms)
        if constraint.lower is not None and constraint.lower == constraint.upper:
            model.addCons(expression == constraint.lower, name=constraint.name)
            continue
        if constraint.lower is not None:
            model.addCons(expression >= constraint.lower, name=f"{constraint.name} (lower)")
        if constraint.upper is not None:
            model.addCons(expression <= constraint.upper, name=f"{constraint.name} (upper)")
    model.setObjective(quicksum(weight * variables[index] for index, weight in program.objective.items()), "minimize")
    model.optimize()
    status = model.getStatus()
    if status == "infeasible":
        return None
    if model.getNSols() == 0:
        raise SolverError(f"SCIP ended with status {status} and no solution within {time_limit_s:g} s")
    best = model.getBestSol()
    values = tuple(float(model.getSolVal(best, variable)) for variable in variables)
    return Solution(
        values=values,
        objective=float(model.getSolObjVal(best)),
        optimal=status == "optimal",
        by_clock=status == "timelimit",
    )


def _broken_by_zero(lower: float | None, upper: float | None) -> bool:
    return (lower is not None and lower > 0) or (upper is not None and upper < 0)


def main() -> int:
    """Answer programs, one JSON object per line, until the input ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, object]
        try:
            solved = solve(program_from_json(asked["program"]), time_limit_s=asked["timeLimit"])
        except SolverError as error:
            answer = {"error": str(error)}
        else:
            answer = {"solved": None if solved is None else asdict(solved)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
