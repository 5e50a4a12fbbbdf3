"""Lay out what differs between two plans."""

from collections.abc import Iterator

from weft_core.layouts import layout_name
from weft_core.parallelism import gpus_of
from weft_core.plan import Plan
from weft_planner.difference import Difference, FigureChange
from weft_planner.tables import figures
from weft_planner.tables.writing import BAD, GOOD, QUIET, Paragraph, Part, TableCell, TextTable

NAMES = {
    "ttftP95": "TTFT P95",
    "itlP95": "ITL P95",
    "attainment": "sessions within the SLO",
    "goodput": "goodput, sessions/s",
    "gpus": "GPUs",
    "costPerHour": "cost per hour",
    "costPerMillionTokens": "cost per million tokens",
}


def difference_parts(difference: Difference, *, old: Plan, new: Plan, name: str) -> list[Part]:
    """Return what to print of a difference."""
    return [*_parts(difference, old=old, new=new, name=name)]


def _parts(difference: Difference, *, old: Plan, new: Plan, name: str) -> Iterator[Part]:
    yield Paragraph(
        f"of {name or 'the service'}: {layout_name(old.groups, old.layout)} ({old.revision}) to "
        f"{layout_name(new.groups, new.layout)} ({new.revision})",
        lead="Change",
    )
    if difference.same_workers:
        same = "from the same inputs" if difference.same_inputs else "from other inputs"
        yield Paragraph(f"The workers stay as they are, {same}.", style=GOOD)
    else:
        yield TextTable(["ROLE", "DEGREE>", "POOL", "BEFORE>", "AFTER>", "WORKERS>", "GPUS>"], [*_groups(difference)])
        yield Paragraph(f"{difference.gpus:+d} GPUs in all, {new.gpus} after.")
    for what, (before, after) in (("Layout", difference.layout), ("Policy", difference.policy)):
        if before != after and (before or after):
            yield Paragraph(f"{before or 'not said'} to {after or 'not said'}.", lead=f"{what}:")
    yield TextTable(["PREDICTED", "BEFORE>", "AFTER>", ""], [_figure(change) for change in difference.figures])
    if difference.spec:
        rows = [[change.path, change.before, change.after] for change in difference.spec]
        yield TextTable(["CHANGED IN THE SPEC", "BEFORE", "AFTER"], rows)
    elif not difference.same_inputs:
        yield Paragraph(_inputs(difference), style=QUIET)
    yield Paragraph(new.reason, lead="Why:")


def _inputs(difference: Difference) -> str:
    if difference.spec_known:
        return "No field of the spec differs: the cost profile, defaults, or the planner itself changed."
    return (
        "The inputs differ (another inputs hash). For the fields, give the old plan as the service: "
        "kubectl get dis NAME -o yaml | weft plan -f NEW --diff -"
    )


def _groups(difference: Difference) -> Iterator[list[str | TableCell]]:
    for change in difference.groups:
        more = change.after - change.before
        style = GOOD if more > 0 else BAD
        yield [
            change.role,
            str(change.degree),
            change.pool,
            str(change.before),
            str(change.after),
            TableCell(f"{more:+d}", style),
            f"{more * gpus_of(change.degree):+d}",
        ]


def _figure(change: FigureChange) -> list[str | TableCell]:
    verdict = {None: TableCell("same", QUIET), True: TableCell("better", GOOD), False: TableCell("worse", BAD)}[
        change.better
    ]
    return [NAMES[change.name], _shown(change.before, change.unit), _shown(change.after, change.unit), verdict]


def _shown(value: float, unit: str) -> str:
    if unit == "s":
        return figures.latency(value)
    if unit == "share":
        return figures.share(value)
    return f"{value:.0f}" if unit == "GPUs" else f"{value:,.3g}"
