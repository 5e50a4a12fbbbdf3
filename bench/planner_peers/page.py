"""Write what was found as one page in Markdown, with the aims first. Pure but for the writing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.paper.page import table
from bench.planner_peers import words
from bench.planner_peers.cells import MULTI, SINGLE, SLOS, Traffic
from bench.planner_peers.record import Comparison, Contender, Record, geometric_mean

OWN_METRIC, SIMULATED, PLANNING_S = 0.98, 1.15, 5.0
"""Least ratio in aiconfigurator's own metric, in every cell; the geometric mean of ratios of goodput with multi-round
sessions; and the most seconds of a plan."""
RATE, GOODPUT, REROUTED = "tokens_per_s_gpu", "goodput", "rerouted"
RATIOS: dict[str, Callable[[Comparison], float]] = {
    "by aiconfigurator's model": lambda one: one.ratio(RATE),
    "the same of Weft's rate matching": lambda one: one.matched_ratio,
    "by simulation": lambda one: one.ratio(GOODPUT),
    "by simulation, both with Weft's router": lambda one: one.ratio(REROUTED),
}
"""Columns of Weft's figures over aiconfigurator's; one without any figure is left out."""


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim and what came of it; NaN: not measured."""

    words: str
    wanted: float
    found: float
    note: str
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Tell whether the figure is there and within the aim."""
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted


def aims_of(record: Record) -> list[Aim]:
    """Return the aims with their figures."""
    single = [one for one in record.of(SINGLE.name) if not math.isnan(one.ratio(RATE))]
    multi = [ratio for one in record.of(MULTI.name) if not math.isnan(ratio := one.ratio(GOODPUT))]
    worst = min(single, key=lambda one: one.ratio(RATE), default=None)
    slowest = max(record.comparisons, key=lambda one: one.planning_s, default=None)
    matched = [one for one in single if not math.isnan(one.matched_ratio)]
    least = min(matched, key=lambda one: one.matched_ratio, default=None)
    below_matched = sum(one.matched_ratio < OWN_METRIC for one in matched)
    below = sum(one.ratio(RATE) < OWN_METRIC for one in single)
    return [
        Aim(
            "tokens/s per GPU by aiconfigurator's model, single round: Weft / aiconfigurator, least",
            OWN_METRIC,
            math.nan if worst is None else worst.ratio(RATE),
            "" if worst is None else f"{_name(worst)}; {below} of {len(single)} are below",
        ),
        Aim(
            "the same of Weft's rate matching (`weft plan --rate-match`): Weft / aiconfigurator, least",
            OWN_METRIC,
            math.nan if least is None else least.matched_ratio,
            "" if least is None else f"{_name(least)}; {below_matched} of {len(matched)} are below",
        ),
        Aim(
            "goodput by simulation, multi-round sessions: Weft / aiconfigurator, geometric mean",
            SIMULATED,
            geometric_mean(multi),
            f"{len(multi)} comparisons, {min(multi):.2f} to {max(multi):.2f}" if multi else "",
        ),
        Aim(
            "seconds of a plan, most",
            PLANNING_S,
            math.nan if slowest is None else slowest.planning_s,
            "" if slowest is None else f"{_name(slowest)}, {slowest.workload}; by the clock {slowest.weft_s:.1f} s",
            at_most=True,
        ),
    ]


def write(record: Record, page: Path) -> list[Aim]:
    """Write the page; return the aims."""
    aims = aims_of(record)
    lines = [words.HEAD.format(how=record.how, machine=record.machine)]
    lines.append(table(("aim", "wanted", "found", "where", ""), [_aim_row(aim) for aim in aims]))
    for traffic, text in ((SINGLE, words.SINGLE), (MULTI, words.MULTI)):
        found = record.of(traffic.name)
        if found:
            lines += [text.format(lengths=_lengths(traffic)), _ratios(found), words.PLANS, _plans(found)]
    lines.append(words.METHOD.format(slos=_slos()))
    if record.left_out:
        lines += [words.LEFT_OUT, "\n".join(f"* **{cell}**: {why}." for cell, why in record.left_out.items()), ""]
    if any(record.notes.values()):
        lines += [words.NOTES, _notes(record)]
    lines.append(words.LIMITS)
    page.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return aims


def verdict(aim: Aim) -> str:
    """Say whether an aim is met."""
    return "not measured" if math.isnan(aim.found) else "met" if aim.met else "**missed**"


def _aim_row(aim: Aim) -> tuple[str, ...]:
    return aim.words, f"{aim.wanted:g}", _number(aim.found), aim.note, verdict(aim)


def _ratios(found: Sequence[Comparison]) -> str:
    figures = {name: [ratio(one) for one in found] for name, ratio in RATIOS.items()}
    shown = {name: ratios for name, ratios in figures.items() if not all(map(math.isnan, ratios))}
    rows = [
        (one.cell, one.slo, *(_number(ratios[k]) for ratios in shown.values()), f"{one.planning_s:.1f}",
         f"{one.peer_s:.1f}")
        for k, one in enumerate(found)
    ]  # fmt: skip
    means = [_number(geometric_mean(ratios)) for ratios in shown.values()]
    return table(
        ("cell", "SLO", *shown, "plan, s", "aiconfigurator, s"), [*rows, ("geometric mean", "", *means, "", "")]
    )


def _plans(found: Sequence[Comparison]) -> str:
    def cell(one: Contender | None) -> str:
        if one is None:
            return "-"
        other = f" ({one.simulated})" if one.simulated else ""
        return f"{one.layout}: {_number(one.tokens_per_s_gpu, 4)}; {_number(one.goodput)}{other}"

    def matched(one: Contender | None) -> str:
        return "-" if one is None else f"{one.layout}: {_number(one.tokens_per_s_gpu, 4)}"

    head = ("cell", "SLO", "Weft", "aiconfigurator, disaggregated", "aiconfigurator, aggregated")
    rows = [
        (one.cell, one.slo, f"{cell(one.weft)} ({one.weft.policy})", cell(one.disaggregated), cell(one.aggregated))
        for one in found
    ]
    if all(one.matched is None for one in found):
        return table(head, rows)
    whole = [(*row, matched(one.matched)) for row, one in zip(rows, found, strict=True)]
    return table((*head, "Weft's rate matching"), whole)


def _notes(record: Record) -> str:
    return "\n".join(f"* **{cell}**: {'; '.join(notes)}." for cell, notes in record.notes.items() if notes) + "\n"


def _number(value: float, digits: int = 3) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}g}"


def _lengths(traffic: Traffic) -> str:
    isl, osl, prefix = traffic.lengths
    return f"isl {isl:,}, osl {osl:,}, prefix {prefix:,}"


def _slos() -> str:
    said: Callable[[float], str] = lambda seconds: f"{seconds * 1e3:g} ms"  # noqa: E731
    return "; ".join(f"{slo.name}: TTFT {slo.ttft:g} s, {said(slo.itl)} between tokens" for slo in SLOS)


def _name(one: Comparison) -> str:
    return f"{one.cell}, {one.slo}"
