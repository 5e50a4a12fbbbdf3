"""Lay out a fitted cost profile: shapes measured, regimes and held-out errors per degree, and what was not measured."""

from collections.abc import Sequence

from weft_core.cost import CostProfile, FitError
from weft_planner.tables.writing import Paragraph, Part, TextTable, text_of

_GOOD_MEDIAN, _GOOD_P95 = 0.05, 0.15
"""What a profile should reach for plans to be trusted."""


def profile_table(profile: CostProfile, *, notes: Sequence[str] = ()) -> str:
    """Return one row per fitted function, then what the provenance and the run have to say."""
    rows: list[tuple[str, ...]] = []
    for degree, costs in sorted(profile.degrees.items()):
        rows.append(_row(f"prefill TP{degree}", len(costs.prefill), costs.prefill_fit))
        rows.append(_row(f"step TP{degree}", len(costs.decode), costs.step_fit))
    for (source, destination, link), cost in sorted(profile.transfers.items()):
        if cost.fit is not None:
            rows.append(_row(f"transfer TP{source} to TP{destination} {link}", 1, cost.fit))
    parts: list[Part] = [
        Paragraph(f"{profile.model} on {profile.gpu}, {profile.engine}."),
        TextTable(("function", "shapes>", "regimes>", "median error>", "P95 error>", ""), rows),
        Paragraph("Errors are of shapes that were held out, as shares of the measured time.", style="dim"),
    ]
    parts += [Paragraph(text, lead=f"{name}: ") for name, text in sorted(profile.provenance.items())]
    parts += [Paragraph(note, lead="left out: ") for note in notes]
    return text_of(parts)


def _row(name: str, regimes: int, fit: FitError | None) -> tuple[str, ...]:
    if fit is None:
        return name, "0", str(regimes), "", "", "not measured"
    loose = fit.median > _GOOD_MEDIAN or fit.p95 > _GOOD_P95
    verdict = f"loose: aim at {_GOOD_MEDIAN:.0%} and {_GOOD_P95:.0%}; measure more shapes or repeats" if loose else ""
    return name, str(fit.points), str(regimes), f"{fit.median:.1%}", f"{fit.p95:.1%}", verdict
