"""Lay out how a layout does at several rates."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from weft_core.json_fields import finite_or_none
from weft_core.policies.retention import Retention
from weft_core.prediction import Estimate
from weft_planner.simulation.statistics import Percentiles, Summary
from weft_planner.study.load import LoadRow
from weft_planner.study.scenario import Scenario
from weft_planner.tables import figures
from weft_planner.tables.writing import NOTICE, QUIET, Paragraph, Part, TableCell, TextTable, held

Json = dict[str, object]
GIB = 2.0**30
RULES: Mapping[Retention, str] = {
    "lru": "least recently used first",
    "ttl": "not before its time to live (Continuum)",
    "value": "worth least first",
}


def load_parts(scenario: Scenario, rows: Sequence[LoadRow], *, name: str) -> list[Part]:
    """Return what to print."""
    return [*_parts(scenario, rows, name)]


def _parts(scenario: Scenario, rows: Sequence[LoadRow], name: str) -> Iterator[Part]:
    request = scenario.sessions.inputs.request
    slo = request.slo
    yield Paragraph(
        f"of {name or request.model.name}: {scenario.name} ({scenario.candidate.gpus} GPUs) under "
        f"{scenario.candidate.policy}; SLO TTFT {figures.latency(slo.ttft)}, ITL {figures.latency(slo.itl)} for "
        f"{slo.attainment:.0%} of the {slo.unit}s",
        lead="Simulation",
    )
    header = ["SESSIONS/S>", "WITHIN SLO>", "TTFT 1ST P50>", "P95>", "LATER P50>", "P95>"]
    header += ["ITL P50>", "P95>", "PREFILL BUSY>", "DECODE KV>", "LOCAL>", "HELD"]
    planned = [k for k, row in enumerate(rows) if math.isclose(row.rate, request.workload.arrival_rate)]
    yield TextTable(header, [_row(scenario, row, slo.attainment) for row in rows], marked=planned)
    runs, events = rows[0].summary.seeds, sum(row.summary.events for row in rows)
    yield Paragraph(
        f"Each row: {runs} runs of about {scenario.sessions.rounds:,} rounds, in brackets the 95 % interval over them; "
        f"{events:,} events in all. HELD: at least {slo.attainment:.0%} within the SLO.",
        style=QUIET,
    )
    yield Paragraph(_history(scenario, rows), style=QUIET)
    for remark in dict.fromkeys(remark for row in rows for remark in row.remarks):
        at = ", ".join(f"{row.rate:.3g}/s" for row in rows if remark in row.remarks)
        yield Paragraph(f"at {at}: {remark}.", lead="Note:", style=NOTICE)
    for note in request.workload.assumptions:
        yield Paragraph(f"{note[0].upper()}{note[1:]}.", lead="Note:", style=QUIET)


def _history(scenario: Scenario, rows: Sequence[LoadRow]) -> str:
    """Say what happens to the KV of idle sessions, and what that does to histories at the highest rate."""
    rule = RULES[scenario.retention]
    below = "".join(f", then in {tier.name} ({tier.capacity_bytes / GIB:,.0f} GiB a worker)" for tier in scenario.tiers)
    most = rows[-1]
    found = most.summary
    shares = [
        f"{figures.fine_share(tokens / found.history_tokens)} {what}"
        for tokens, what in (
            (found.recomputed_tokens, "computed again"),
            (found.loaded_tokens if scenario.tiers else None, "loaded from tiers"),
        )
        if tokens is not None and found.history_tokens > 0
    ]
    of = f" Of history tokens, at {most.rate:.3g}/s: {', '.join(shares)}." if shares else ""
    return f"Idle sessions' KV is evicted {rule}{below}.{of}"


def _row(scenario: Scenario, row: LoadRow, goal: float) -> list[str | TableCell]:
    found = row.summary
    latencies = [
        figures.latency(value)
        for of in (found.ttft_first, found.ttft_later, found.itl)
        for value in (of.p50.value, of.p95.value)
    ]
    return [
        f"{row.rate:.3g}",
        TableCell(figures.share_interval(found.attained), short=figures.share(found.attained.value)),
        *latencies,
        figures.share(prefill_busy(scenario, found)),
        figures.share(max(found.kv_peak)),
        figures.share(found.local_share),
        held(found.attained.value >= goal),
    ]


def prefill_busy(scenario: Scenario, found: Summary) -> float | None:
    """Return the share of time that prefill workers compute, None without any."""
    workers = sum(group.replicas for group in scenario.candidate.groups if group.role == "prefill")
    return sum(found.busy[:workers]) / workers if workers else None


def load_body(scenario: Scenario, rows: Sequence[LoadRow], *, complete: bool) -> Json:
    """Return the same as JSON-ready data; times in seconds."""
    candidate = scenario.candidate
    return {
        "layout": scenario.name,
        "kind": candidate.kind,
        "gpus": candidate.gpus,
        "policy": str(candidate.policy),
        "retention": scenario.retention,
        "kvTiers": [asdict(tier) for tier in scenario.tiers],
        "complete": complete,
        "rates": [{"arrivalRate": row.rate, **summary_body(row.summary), "remarks": list(row.remarks)} for row in rows],
    }


def summary_body(found: Summary) -> Json:
    """Return the figures of some runs as JSON-ready data; latencies in seconds."""
    return {
        "reading": str(found.reading),
        "attainment": estimate_body(found.attained),
        "readings": {f"{r.unit}, {r.itl}": estimate_body(found.attainment[r]) for r in found.attainment},
        "classes": {name: estimate_body(share) for name, share in found.of_class.items()},
        "ttftFirst": _percentiles_body(found.ttft_first),
        "ttftLater": _percentiles_body(found.ttft_later),
        "ttft": _percentiles_body(found.ttft),
        "itl": _percentiles_body(found.itl),
        "unserved": found.unserved,
        "busy": list(found.busy),
        "kvPeak": list(found.kv_peak),
        "queueMean": list(found.queue_mean),
        "localShare": finite_or_none(found.local_share),
        "preemptions": found.preemptions,
        "historyTokens": found.history_tokens,
        "recomputedTokens": found.recomputed_tokens,
        "loadedTokens": found.loaded_tokens,
        "runs": found.seeds,
        "sessions": found.sessions,
        "events": found.events,
    }


def estimate_body(estimate: Estimate | None) -> Json | None:
    """Return a figure with its interval; what has no bound is null."""
    if estimate is None:
        return None
    return {
        "value": finite_or_none(estimate.value),
        "low": finite_or_none(estimate.low),
        "high": finite_or_none(estimate.high),
    }


def _percentiles_body(of: Percentiles) -> Json:
    return {"p50": estimate_body(of.p50), "p95": estimate_body(of.p95), "mean": estimate_body(of.mean)}
