"""``weft plan -f FILE``: show a service's plan before it is applied, with predictions, alternatives and reasons."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from weft_cli.output import emit, output_option
from weft_cli.running import INTERRUPTED
from weft_planner.cli.planning import plan_text, solve_service
from weft_planner.cli.ranges import TIER_SIZES, TierSizes
from weft_planner.cli.service import Service, ServiceFlags, read_service, service_options

if TYPE_CHECKING:
    from weft_planner.evaluation.trials import KnownRuns

Json = Mapping[str, object]


@click.command()
@service_options
@click.option("--objective", type=click.Choice(["latency", "cost"]), help="Instead of spec.planning.objective.")
@click.option("--top", type=click.IntRange(1, 50), metavar="N", help="Rank at most this many layouts (default: 7).")
@click.option(
    "--diff",
    metavar="OLD",
    help="Say what changes from this plan: a file (JSON or YAML, of weft plan or of a service), live for the running "
    "service of the same name, or live:NAMESPACE/NAME.",
)
@click.option("--rate-match", is_flag=True, help="Match rates of context and generation servers instead of planning.")
@click.option(
    "--as-printed", is_flag=True, help="Solve AMPD's Eq. (5) as the paper prints it, and say where it is degenerate."
)
@click.option(
    "--curves",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="With --rate-match: curves of a live engine (weft profile sweep) instead of the cost profile's; a file for "
    "each degree.",
)
@click.option(
    "--kv-tiers",
    "tiers",
    type=TIER_SIZES,
    multiple=True,
    metavar="NAME:SIZE[,NAME:SIZE]",
    help="Also show what this memory below each worker's GPUs would bring to the plan, such as cpu:200Gi,disk:2Ti; may "
    "be repeated to compare sizes.",
)
@click.option("--report", metavar="HTML", help="Also write a report: one page with plots, for a browser or print.")
@output_option
def plan(
    *,
    objective: str | None,
    top: int | None,
    diff: str | None,
    rate_match: bool,
    as_printed: bool,
    curves: tuple[str, ...],
    tiers: tuple[TierSizes, ...],
    report: str | None,
    output: str,
    **given: Any,
) -> int:
    """Plan a service's workers from its manifest, and say why.

    Exit status: 0 with a plan, 1 when none is possible, 2 for a manifest that the API server would refuse.
    """
    changes: dict[str, object] = {} if objective is None else {"objective": objective}
    if rate_match and (diff or top or tiers):
        raise click.UsageError("--rate-match makes no plan: leave --diff, --top and --kv-tiers out")
    if diff and tiers:
        raise click.UsageError("--diff shows changes of a plan, --kv-tiers the plan itself: leave one of them out")
    if as_printed and (rate_match or diff or top or report or objective or tiers):
        raise click.UsageError("--as-printed makes no plan: leave all options but the service's own out")
    if curves and not rate_match:
        raise click.UsageError("--curves: a plan is made from a cost profile; add --rate-match, or leave --curves out")
    if report is not None:
        from weft_planner.cli.report import check_report_path, write_report

        check_report_path(report)
    service = read_service(ServiceFlags.taken_from(given), command="plan", changes=changes)
    if service.hours is not None and (output == "table" or rate_match):
        click.echo(service.hours.words(), err=rate_match)
    if rate_match:
        from weft_planner.cli.rate_match import show_rate_match

        return show_rate_match(service, curves=curves, output=output, report=report)
    if as_printed:
        from weft_planner.cli.as_printed import show_as_printed

        return show_as_printed(service, output=output)
    before = None
    if diff is not None:
        from weft_planner.cli.stored import stored_plan

        metadata = service.document.get("metadata")
        namespace = metadata.get("namespace") if isinstance(metadata, Mapping) else None
        if diff == "live" and namespace:
            diff = f"live:{namespace}/{service.name}"
        before = stored_plan(diff, name=service.name)
    known = _known_for_report() if report is not None else None
    result = solve_service(service, top=top, output=output, known=known)
    if result is None:
        return INTERRUPTED
    if service.hours is not None:
        result = {**result, "schedule": service.hours.to_json()}
    if result["status"] != "ok":
        emit(output, result, lambda: _refusal(result, service))
        if report is not None:
            click.echo("weft plan: no report was written, because there is no plan", err=True)
        return 1
    if before is not None:
        from weft_planner.cli.difference import show_difference

        show_difference(before, result, service=service, output=output)
    elif tiers:
        from weft_planner.cli.kv_tiers import show_with_tiers

        if show_with_tiers(result, service, tiers, top=top, output=output):
            return INTERRUPTED
    else:
        emit(output, result, lambda: plan_text(result, service, top=top))
    return 0 if report is None or known is None else write_report(report, service, cast(Json, result["plan"]), known)


def _known_for_report() -> "KnownRuns":
    from weft_planner.evaluation.trials import KnownRuns  # loads numpy

    return KnownRuns()


def _refusal(result: Json, service: Service) -> str:
    from weft_core.shortfall import shortfall_from_json
    from weft_planner.tables import refusal_parts, text_of

    name = service.name or service.request.model.name
    return text_of(
        refusal_parts(name, str(result["reason"]), str(result["message"]), shortfall_from_json(result, "shortfall"))
    )
