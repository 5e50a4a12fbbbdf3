"""Plan a service for a terminal: progress, an early ranking when that takes long, and after Ctrl-C."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import click

from weft_cli.output import emit
from weft_planner.cli.service import Service

if TYPE_CHECKING:
    from weft_planner.evaluation.trials import KnownRuns
    from weft_planner.programs.group_options import LayoutPair

Json = Mapping[str, object]


def solve_service(service: Service, *, top: int | None, output: str, known: "KnownRuns | None" = None) -> Json | None:
    """Return the answer, with ``top`` layouts in all; None after Ctrl-C: then what was ranked by then is printed.

    ``known`` gets what is simulated. While the simulator is compiled, the ranking by phases is on stderr: it is there a
    few seconds after the start.
    """
    from weft_planner.cli.progress import show_progress
    from weft_planner.plan.solve import ALTERNATIVES, answer
    from weft_planner.stages import COMPILING

    early: list[LayoutPair] = []
    try:
        with show_progress() as progress:

            def with_early_ranking(what: str, done: int, total: int) -> None:
                if what == COMPILING and done == 0 and output == "table":
                    progress.say(f"{_ranking(early, service)}\n")
                progress(what, done, total)

            alternatives = ALTERNATIVES if top is None else top - 1
            return answer(
                service.request, top=alternatives, progress=with_early_ranking, early=early.extend, known=known
            )
    except KeyboardInterrupt:
        what = "nothing was ranked by then" if not early else "no layout was simulated whole; ranked by phases"
        click.echo(f"weft plan: interrupted: {what}", err=True)
        if early:
            from weft_planner.tables.preliminary import preliminary_body

            body = {"status": "interrupted", "preliminary": preliminary_body(early)}
            emit(output, body, lambda: _ranking(early, service))
        return None


def plan_text(result: Json, service: Service, *, top: int | None) -> str:
    """Return a plan as text."""
    from weft_core.plan import plan_from_json
    from weft_planner.tables import plan_parts, text_of

    found = plan_from_json(cast(Json, result["plan"]))
    return text_of(plan_parts(found, request=service.request, name=service.name, top=top))


def _ranking(layouts: "Sequence[LayoutPair]", service: Service) -> str:
    from weft_planner.tables import text_of
    from weft_planner.tables.preliminary import preliminary_parts

    return text_of(preliminary_parts(layouts, request=service.request, name=service.name))
