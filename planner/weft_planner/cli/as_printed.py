"""``weft plan --as-printed``: AMPD's Eq. (5) as the paper prints it, and where it is degenerate."""

import click

from weft_cli.output import emit
from weft_planner.cli.service import Service


def show_as_printed(service: Service, *, output: str) -> int:
    """Solve Eq. (5) and print its optimum; 0, or 1 when there is none."""
    from weft_planner.programs.as_printed import build, optimum_of, worker_latencies
    from weft_planner.programs.inputs import prepare_inputs
    from weft_planner.programs.scip import SolverError
    from weft_planner.programs.search import LIMIT_S
    from weft_planner.programs.solver import Solver
    from weft_planner.request.infeasible import Infeasible
    from weft_planner.tables import refusal_parts, text_of
    from weft_planner.tables.as_printed import as_printed_body, as_printed_parts

    request = service.request
    name = service.name or request.model.name

    def refused(reason: str, message: str) -> int:
        body = {"status": "infeasible", "reason": reason, "message": message}
        emit(output, body, lambda: text_of(refusal_parts(name, reason, message, None)))
        return 1

    with Solver() as solver:
        try:
            inputs = prepare_inputs(request)
            kinds = worker_latencies(inputs)
            gpus = inputs.limits.gpus
            solution = solver.solve(build(kinds, gpus=gpus), time_limit_s=LIMIT_S)
        except Infeasible as error:
            return refused(error.reason, str(error))
        except SolverError as error:
            raise click.ClickException(f"{error}; Eq. (5) is solved by SCIP alone: install weft[planner]") from None
    if solution is None:
        return refused(
            "CapacityInsufficient",
            f"capacity: {gpus} GPUs do not hold a prefill and a decode worker; add GPUs, or smaller degrees",
        )
    found = optimum_of(kinds, solution.values, gpus=gpus)
    emit(
        output,
        {"status": "ok", "asPrinted": as_printed_body(found)},
        lambda: text_of(as_printed_parts(found, request=request, name=service.name)),
    )
    return 0
