"""Lay out how policies compare."""

import math
from collections.abc import Iterator, Sequence

from weft_core.prediction import Estimate
from weft_planner.study.comparison import PolicyComparison
from weft_planner.study.scenario import Scenario
from weft_planner.tables import figures
from weft_planner.tables.load import estimate_body, summary_body
from weft_planner.tables.writing import BAD, GOOD, QUIET, Paragraph, Part, TableCell, TextTable

Json = dict[str, object]


def comparison_parts(scenario: Scenario, rows: Sequence[PolicyComparison], *, rate: float, name: str) -> list[Part]:
    """Return what to print."""
    return [*_parts(scenario, rows, rate, name)]


def _parts(scenario: Scenario, rows: Sequence[PolicyComparison], rate: float, name: str) -> Iterator[Part]:
    request = scenario.sessions.inputs.request
    slo = request.slo
    yield Paragraph(
        f"for {name or request.model.name}: {scenario.name} ({scenario.candidate.gpus} GPUs) at {rate:.3g} sessions a "
        f"second; SLO TTFT {figures.latency(slo.ttft)}, ITL {figures.latency(slo.itl)}",
        lead="Policies",
    )
    searched = any(row.goodput is not None for row in rows)
    header = ["POLICY", "WITHIN SLO>", "AGAINST 1ST>", "TTFT P95>", "ITL P95>", "LOCAL>"]
    header += ["GOODPUT /S>", "OF 1ST>"] if searched else []
    yield TextTable(header, [_row(row, searched=searched) for row in rows])
    first = rows[0]
    yield Paragraph(
        f"{first.summary.seeds} runs each, all policies on the same sessions; in brackets the 95 % interval of the "
        "paired difference or ratio: one that spans 0 (or 1) says nothing. AGAINST 1ST: points of sessions within the "
        f"SLO more than {first.name}.",
        style=QUIET,
    )


def _row(row: PolicyComparison, *, searched: bool) -> list[str | TableCell]:
    found = row.summary
    cells: list[str | TableCell] = [
        row.name,
        TableCell(figures.share_interval(found.attained), short=figures.share(found.attained.value)),
        _points(row.against),
        figures.latency(found.ttft.p95.value),
        figures.latency(found.itl.p95.value),
        figures.share(found.local_share),
    ]
    if not searched:
        return cells
    goodput = None if row.goodput is None else row.goodput.rate
    short = figures.rate(None if goodput is None else goodput.value)
    return [*cells, TableCell(figures.rate_interval(goodput), short=short), _times(row.ratio)]


def _points(difference: Estimate | None) -> str | TableCell:
    if difference is None:
        return "-"
    if not math.isfinite(difference.low):  # one seed has no interval
        return f"{100 * difference.value:+.1f}"
    low, high = 100 * difference.low, 100 * difference.high
    style = GOOD if low > 0 else BAD if high < 0 else ""
    return TableCell(f"{100 * difference.value:+.1f} ({low:+.1f} to {high:+.1f})", style)


def _times(ratio: Estimate | None) -> str | TableCell:
    if ratio is None or not math.isfinite(ratio.value):
        return "-"
    if not math.isfinite(ratio.low):
        return f"x {ratio.value:.2f}"
    style = GOOD if ratio.low > 1 else BAD if ratio.high < 1 else ""
    return TableCell(f"x {ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f})", style, short=f"x {ratio.value:.2f}")


def comparison_body(scenario: Scenario, rows: Sequence[PolicyComparison], *, rate: float, complete: bool) -> Json:
    """Return the same as JSON-ready data."""
    return {
        "layout": scenario.name,
        "gpus": scenario.candidate.gpus,
        "arrivalRate": rate,
        "complete": complete,
        "policies": [
            {
                "policy": row.name,
                "rules": str(row.policy),
                **summary_body(row.summary),
                "attainmentAgainstFirst": estimate_body(row.against),
                "goodput": estimate_body(None if row.goodput is None else row.goodput.rate),
                "goodputOfFirst": estimate_body(row.ratio),
            }
            for row in rows
        ],
    }
