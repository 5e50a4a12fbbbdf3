"""Lay out the demo's figures as one table for a terminal. Pure."""

import textwrap
from collections.abc import Sequence

from weft_e2e.demo import comparison
from weft_e2e.demo.facts import (
    Facts,
    drift_words,
    group_words,
    kv_words,
    latency_rows,
    load_findings,
    load_words,
    planned_share,
    seconds_words,
    share_words,
    slo_words,
    source_words,
)
from weft_e2e.demo.measures import Attained, Summary

_NAME = 22
_COLUMN = 11
_HEADINGS = ("P50", "P95", "mean", "plan P50", "plan P95", "plan mean")


def render(facts: Facts) -> str:
    """Return the whole table, without a trailing newline."""
    plan, summary = facts.plan, facts.summary
    groups = ", ".join(group_words(g) for g in plan.groups)
    percent = f"P{facts.slo.percentile:g}"
    lines = [
        f"{facts.service}: {facts.model} on {facts.cluster}",
        "",
        *_compared(facts),
        _row("Plan", f"{groups}; {plan.gpus} GPUs; objective {plan.objective}; revision {plan.revision}"),
        _row("", "the plan expects the SLO to be met" if plan.predicted.slo_met else "the plan expects a missed SLO"),
        _row("", source_words(facts)),
        _row("Replay", _replayed(summary)),
        "",
        f"{'':<{_NAME}}" + "".join(f"{h:>{_COLUMN}}" for h in _HEADINGS).replace("plan P95", f"plan {percent}"),
    ]
    for row in latency_rows(facts):
        found = row.measured
        cells = ("-", "-", "-") if found is None else (found.p50, found.p95, found.mean)
        lines.append((f"{row.name:<{_NAME}}" + "".join(_cell(c) for c in (*cells, *row.planned))).rstrip())
    lines += ["", _row("SLO", slo_words(facts.slo))]
    lines += [
        _row("SLO attainment" if k == 0 else "", f"{share_words(a.met, a.total)}{_planned(facts, a)} ({a.reading})")
        for k, a in enumerate(_both_units(facts))
    ]
    routed = summary.rounds_ok
    routes = ", ".join(f"{name} {share_words(count, routed)}" for name, count in sorted(summary.routes.items()))
    lines.append(_row("Prefill route", routes or "-"))
    if facts.kv is not None:
        moved, history = kv_words(facts.kv)
        lines += [_row("KV moved", moved), _row("History tokens", history)]
    else:
        lines.append(_row("KV moved", "not measured"))
    for one in facts.replans:
        lines += _list("Replan", drift_words(one))
    lines += _list("Measured by", load_words(facts.load, facts.pace))
    lines += _list("Note", load_findings(facts.load, facts.pace))
    lines += _list("Chosen", facts.choices)
    lines += _list("Simulated", facts.simulated)
    lines += _list("PROBLEM", facts.problems)
    return "\n".join(lines)


def _compared(facts: Facts) -> list[str]:
    rows = comparison.rows(facts)
    if not rows:
        return []
    wide = max(len(row.name) for row in rows) + 2
    marks = {"service": "  better", "baseline": "  worse", "": ""}
    lines = [f"{'':<{wide}}{'Weft':>20}{'always remote':>20}"]
    lines += [f"{row.name:<{wide}}{row.service:>20}{row.baseline:>20}{marks[row.better]}" for row in rows]
    return [*lines, "", *(_wrapped(comparison.caveats(facts))), ""]


def _wrapped(items: Sequence[str]) -> list[str]:
    return [line for item in items for line in textwrap.wrap(item, 110, initial_indent="- ", subsequent_indent="  ")]


def _replayed(summary: Summary) -> str:
    words = (
        f"{summary.sessions} sessions, {summary.rounds} rounds, up to {summary.most_at_once} at once, "
        f"{summary.output_tokens:,} tokens in {summary.span_s:.0f} s"
    )
    failed = summary.rounds - summary.rounds_ok
    return f"{words}; {failed} rounds FAILED" if failed else f"{words}; none failed"


def _planned(facts: Facts, attained: Attained) -> str:
    share = planned_share(facts, attained.reading)
    return "" if share is None else f", plan {100 * share:.1f} %"


def _both_units(facts: Facts) -> list[Attained]:
    return [a for a in facts.summary.attained if a.reading.itl == "mean"]


def _cell(value: float | str | None) -> str:
    text = value if isinstance(value, str) else "" if value is None else seconds_words(value)
    return f"{text:>{_COLUMN}}"


def _row(name: str, text: str) -> str:
    return f"{name:<{_NAME}}{text}".rstrip()


def _list(name: str, items: Sequence[str]) -> list[str]:
    return [_row(name if k == 0 else "", item) for k, item in enumerate(items)]
