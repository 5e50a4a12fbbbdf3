"""Lay out the explanation of a plan."""

from collections.abc import Iterator

from weft_core.plan import Plan
from weft_planner.explanation import Explanation
from weft_planner.tables import figures
from weft_planner.tables.plan import BY_LAYOUT, policy_name
from weft_planner.tables.remedies import shortfall_words
from weft_planner.tables.writing import BAD, GOOD, NOTICE, Paragraph, Part, TextTable


def explanation_parts(found: Explanation, plan: Plan, *, name: str) -> list[Part]:
    """Return what to print."""
    return [*_parts(found, plan, name)]


def _parts(found: Explanation, plan: Plan, name: str) -> Iterator[Part]:
    yield Paragraph(
        f"{plan.revision}{f' of {name}' if name else ''}: {found.chosen} on {plan.gpus} GPUs "
        f"({BY_LAYOUT[plan.layout]}), policy {policy_name(plan.policy)}, objective {plan.objective}",
        lead="Plan",
    )
    predicted = plan.predicted
    held = "It holds the SLO" if predicted.slo_met else "It misses the SLO"
    figures_said = f"TTFT {figures.latency(predicted.ttft_p95_s)}, ITL {figures.latency(predicted.itl_p95_s)}"
    more = "" if predicted.attainment is None else f", {figures.share_interval(predicted.attainment)} within the SLO"
    yield Paragraph(f"{held}: {figures_said}{more}.", style=GOOD if predicted.slo_met else BAD)
    yield Paragraph(plan.reason or "the plan gives none", lead="Why this one:")
    yield Paragraph(found.how_found, lead="How it was found:")
    if found.constraints:
        rows = [[text] for text in found.constraints]
        yield TextTable(["WHAT BINDS IT~"], rows)
    if found.rejected:
        rows = [[one.name, one.policy, str(one.gpus), "; ".join(one.reasons)] for one in found.rejected]
        yield TextTable(["WHY NOT", "POLICY", "GPUS>", "BECAUSE~"], rows)
    else:
        yield Paragraph("The plan was stored without its alternatives; `weft plan` lists them again.")
    if plan.shortfall is not None:
        yield Paragraph(shortfall_words(plan.shortfall), lead="What would do:", style=NOTICE)
    for text in found.assumptions:
        yield Paragraph(text, lead="It assumes:")
