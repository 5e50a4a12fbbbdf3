"""Lay out how a layout does at several rates."""

import math
from collections.abc import Iterator, Sequence

from weft_core.plan_fields import finite_or_none
from weft_core.prediction import Estimate
from weft_planner.study.figures import Figures, Pair
from weft_planner.study.load import LoadRow
from weft_planner.study.scenario import Scenario
from weft_planner.tables import figures
from weft_planner.tables.writing import QUIET, Cell, Part, Rows, Words, held

Json = dict[str, object]


def load_parts(scenario: Scenario, rows: Sequence[LoadRow], *, name: str) -> list[Part]:
    """Return what to print."""
    return [*_parts(scenario, rows, name)]


def _parts(scenario: Scenario, rows: Sequence[LoadRow], name: str) -> Iterator[Part]:
    request = scenario.sessions.inputs.request
    slo = request.slo
    percentile = f"P{slo.percentile:g}"
    yield Words(
        f"of {name or request.model.name}: {scenario.name} ({scenario.contestant.gpus} GPUs) under "
        f"{scenario.contestant.policy}; SLO TTFT {figures.latency(slo.ttft)}, ITL {figures.latency(slo.itl)} for "
        f"{slo.attainment:.0%} of the {slo.unit}s",
        lead="Simulation",
    )
    header = ["SESSIONS/S>", "WITHIN SLO>", "TTFT 1ST P50>", f"{percentile}>", "LATER P50>", f"{percentile}>"]
    header += ["ITL P50>", f"{percentile}>", "PREFILL BUSY>", "DECODE BUSY>", "KV>", "LOCAL>", "HELD"]
    planned = [k for k, row in enumerate(rows) if math.isclose(row.rate, request.workload.arrival_rate)]
    yield Rows(header, [_row(row, slo.attainment) for row in rows], marked=planned)
    runs, events = len(rows[0].figures.runs), sum(row.events for row in rows)
    yield Words(
        f"Each row: {runs} runs of about {scenario.sessions.rounds:,} rounds, in brackets the 95 % interval over them; "
        f"{events:,} events in all. HELD: at least {slo.attainment:.0%} within the SLO.",
        style=QUIET,
    )
    for note in request.workload.assumptions:
        yield Words(f"{note[0].upper()}{note[1:]}.", lead="Note:", style=QUIET)


def _row(row: LoadRow, goal: float) -> list[str | Cell]:
    found = row.figures
    latencies = [
        figures.latency(value)
        for pair in (found.ttft_first, found.ttft_later, found.itl)
        for value in (pair.median.value, pair.high.value)
    ]
    shares = [figures.share(v) for v in (found.prefill_busy, found.decode_busy, found.kv_peak, found.local_share)]
    return [
        f"{row.rate:.3g}",
        figures.share_interval(found.attainment),
        *latencies,
        *shares,
        held(found.attainment.value >= goal),
    ]


def load_body(scenario: Scenario, rows: Sequence[LoadRow], *, complete: bool) -> Json:
    """Return the same as JSON-ready data; times in seconds."""
    contestant = scenario.contestant
    return {
        "layout": scenario.name,
        "kind": contestant.kind,
        "gpus": contestant.gpus,
        "policy": str(contestant.policy),
        "complete": complete,
        "rates": [{"arrivalRate": row.rate, **row_body(row.figures), "events": row.events} for row in rows],
    }


def row_body(found: Figures) -> Json:
    """Return the figures of some runs as JSON-ready data."""
    return {
        "attainment": estimate_body(found.attainment),
        "ttftFirst": _pair_body(found.ttft_first),
        "ttftLater": _pair_body(found.ttft_later),
        "ttft": _pair_body(found.ttft),
        "itl": _pair_body(found.itl),
        "prefillBusy": found.prefill_busy,
        "decodeBusy": found.decode_busy,
        "kvPeak": found.kv_peak,
        "localShare": found.local_share if math.isfinite(found.local_share) else None,
        "runs": len(found.runs),
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


def _pair_body(pair: Pair) -> Json:
    return {"median": estimate_body(pair.median), "percentile": estimate_body(pair.high)}
