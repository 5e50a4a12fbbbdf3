"""Lay out a plan: its rank among what was considered, its groups, predictions beside the SLO, reasons and limits."""

import math
from collections.abc import Iterator, Sequence

from weft_core.layouts import LayoutKind, PlannedGroup, PlannedPolicy, layout_name, named_workers
from weft_core.plan import Alternative, Plan
from weft_core.prediction import UNBOUNDED, GroupUse, Limit, Prediction
from weft_core.shortfall import Shortfall
from weft_planner.request.parts import Objectives
from weft_planner.request.reading import Request
from weft_planner.request.service import in_manifest
from weft_planner.tables import figures
from weft_planner.tables.remedies import shortfall_words, steps
from weft_planner.tables.writing import BAD, GOOD, NOTICE, QUIET, Paragraph, Part, TableCell, TextTable, held

LIMITS = {
    "compute": "compute of {workers}",
    "kv": "KV cache of {workers}",
    "link": "links between workers",
    "ttft": "the TTFT threshold",
    "itl": "the ITL threshold",
}
SHORT_NOTE = 32
"""Longer notes go below the table, each once."""
BY_LAYOUT: dict[LayoutKind, str] = {
    "disaggregated": "own workers for prefill and decode",
    "colocated": "every worker serves its own sessions whole",
    "symmetric": "every worker decodes its own sessions and prefills for any",
    "hybrid": "workers with both roles decode their own sessions and prefill for any, beside workers with one role",
}


def plan_parts(plan: Plan, *, request: Request, name: str, top: int | None = None) -> list[Part]:
    """Return what to print of a plan; ``top`` is how many layouts to rank."""
    return [*_parts(plan, request=request, name=name, top=top)]


def _parts(plan: Plan, *, request: Request, name: str, top: int | None) -> Iterator[Part]:
    gpu = ", ".join(sorted({pool.gpu_type for pool in request.capacity.pools}))
    yield Paragraph(
        f"for {name or request.model.name}: {request.model.name} on {gpu}, "
        f"{plan.gpus} of {request.capacity.gpus} GPUs, objective {plan.objective}",
        lead=f"Plan {plan.revision}",
    )
    yield _verdict(plan, request)
    yield from _ranking(plan, request, top=top)
    yield _groups(plan)
    yield _latencies(plan.predicted, request.slo)
    if plan.predicted.limits:
        yield Paragraph(_limits(plan.predicted.limits), lead="Limits:")
    if plan.reason:
        yield Paragraph(plan.reason, lead="Why:")
    if plan.shortfall is not None:
        yield Paragraph(shortfall_words(plan.shortfall), lead="What would do:", style=NOTICE)
    assumed = [f"{note[0].upper()}{note[1:]}." for note in request.workload.assumptions if note not in plan.notes]
    for note in [*(note for note in plan.notes if note not in plan.reason), *assumed]:
        yield Paragraph(note, lead="Note:", style=QUIET)
    if plan.slo_reading:
        yield Paragraph(plan.slo_reading, style=QUIET)


def refusal_parts(name: str, reason: str, message: str, shortfall: Shortfall | None) -> list[Part]:
    """Return what to print when no layout is possible."""
    parts: list[Part] = [Paragraph(reason, lead=f"No plan for {name}:", style=BAD), Paragraph(in_manifest(message))]
    if shortfall is not None and shortfall.remedies:
        parts.append(Paragraph(steps(shortfall), style=NOTICE))
    return parts


def _verdict(plan: Plan, request: Request) -> Part:
    predicted = plan.predicted
    said = []
    if predicted.attainment is not None:
        goal = f"goal {request.slo.attainment:.0%}"
        said.append(f"{figures.share_interval(predicted.attainment)} of {request.slo.unit}s within the SLO ({goal})")
    if predicted.goodput is not None and predicted.goodput.value == 0:
        said.append("no load that was tried holds it")
    elif predicted.goodput is not None and math.isfinite(predicted.goodput.value):
        spare = predicted.goodput.value / request.workload.arrival_rate - 1
        words = f"{spare:+.0%} against the {request.workload.arrival_rate:g}/s planned for"
        said.append(f"up to {figures.rate_interval(predicted.goodput)} sessions/s hold it ({words})")
    if predicted.cost_per_hour is not None:
        said.append(f"{figures.money(predicted.cost_per_hour)} an hour")
    if predicted.cost_per_million_tokens is not None:
        said.append(f"{figures.money(predicted.cost_per_million_tokens)} per million tokens")
    verdict = "Holds the SLO" if predicted.slo_met else "Misses the SLO"
    tail = f": {'; '.join(said)}." if said else "."
    return Paragraph(verdict + tail, style=GOOD if predicted.slo_met else BAD)


def _ranking(plan: Plan, request: Request, *, top: int | None) -> Iterator[Part]:
    percentile = f"P{request.slo.percentile:g}"
    own = Alternative(plan.groups, plan.predicted, 0.0, plan.layout, plan.policy, note="this plan")
    listed = [own, *plan.alternatives][: None if top is None else max(1, top)]
    priced = any(row.predicted.cost_per_hour is not None for row in listed)
    simulated = any(row.predicted.attainment is not None for row in listed)
    header = ["#>", "LAYOUT", "POLICY", "GPUS>", f"TTFT {percentile}>", f"ITL {percentile}>"]
    header += ["WITHIN SLO>", "GOODPUT /S>"] if simulated else []
    header += ["COST /H>"] if priced else []
    said = [row.note or ("" if row.runnable else "this operator cannot deploy it") for row in listed]
    long = list(dict.fromkeys(note for note in said if len(note) > SHORT_NOTE))
    notes = [f"see {long.index(note) + 1})" if note in long else note for note in said]
    named = len(request.capacity.pools) > 1
    names = [layout_name(row.groups, row.layout, named=named) for row in listed]
    rows = [
        [str(i + 1), names[i], *_ranked(row, notes[i], simulated=simulated, priced=priced)]
        for i, row in enumerate(listed)
    ]
    yield TextTable([*header, "HELD", "NOTE"], rows, marked=(0,))
    if long:
        yield Paragraph("\n".join(f"{k}) {note}" for k, note in enumerate(long, 1)), style=QUIET)


def _ranked(row: Alternative, note: str, *, simulated: bool, priced: bool) -> list[str | TableCell]:
    predicted = row.predicted
    cells: list[str | TableCell] = [
        policy_name(row.policy),
        str(predicted.gpus),
        figures.latency(predicted.ttft_p95_s),
        figures.latency(predicted.itl_p95_s),
    ]
    if simulated:
        attained, goodput = predicted.attainment, predicted.goodput
        cells += [
            TableCell(
                figures.share_interval(attained), short=figures.share(None if attained is None else attained.value)
            ),
            TableCell(figures.rate_interval(goodput), short=figures.rate(None if goodput is None else goodput.value)),
        ]
    if priced:
        cells.append(figures.money(predicted.cost_per_hour))
    return [*cells, held(predicted.slo_met), note]


def policy_name(policy: PlannedPolicy | None) -> str:
    """Return the rules in short."""
    return "-" if policy is None else str(policy)


def _groups(plan: Plan) -> Part:
    use = {(u.role, u.degree, u.pool): u for u in plan.predicted.use}
    header = ["ROLE", "DEGREE>", "WORKERS>", "GPUS>", "POOL", *(["BUSY>", "FULLEST KV>"] if use else [])]
    rows = [_group(group, use.get((group.role, group.degree, group.pool)), used=bool(use)) for group in plan.groups]
    return TextTable(header, rows, title=f"Run ({BY_LAYOUT[plan.layout]})")


def _group(group: PlannedGroup, use: GroupUse | None, *, used: bool) -> list[str]:
    cells = [group.role, str(group.degree), str(group.replicas), str(group.gpus), group.pool]
    if used:
        cells += [figures.share(use.utilisation), figures.share(use.kv_peak)] if use else ["-", "-"]
    return cells


def _latencies(predicted: Prediction, slo: Objectives) -> Part:
    percentile = f"P{slo.percentile:g}"
    known = (
        ("first rounds", predicted.ttft_first, slo.ttft, "time to first token"),
        ("later rounds", predicted.ttft_later, slo.ttft, "time to first token"),
    )
    if predicted.ttft_first is None and predicted.ttft_later is None:
        rows: list[Sequence[str | TableCell]] = [
            _mean_row("time to first token", predicted.ttft_p95_s, predicted.ttft_mean_s, slo.ttft),
            _mean_row("inter-token latency", predicted.itl_p95_s, predicted.itl_mean_s, slo.itl),
        ]
        return TextTable(["PREDICTED", f"{percentile}>", "MEAN>", "SLO>", "HELD"], rows)
    rows = [
        [f"{what}, {which}", *_quantiles(q.p50_s, q.p95_s, threshold)]
        for which, q, threshold, what in known
        if q is not None
    ]
    rows.append(["time to first token, all", *_quantiles(_median(predicted.ttft), predicted.ttft_p95_s, slo.ttft)])
    rows.append(["inter-token latency", *_quantiles(_median(predicted.itl), predicted.itl_p95_s, slo.itl)])
    return TextTable(["PREDICTED", "P50>", f"{percentile}>", "SLO>", "HELD"], rows)


def _median(quantiles: object) -> float | None:
    value = getattr(quantiles, "p50_s", None)
    return None if value is None else float(value)


def _quantiles(median: float | None, high: float, threshold: float) -> list[str | TableCell]:
    return [figures.latency(median), figures.latency(high), figures.latency(threshold), held(high <= threshold)]


def _mean_row(what: str, high: float, mean: float, threshold: float) -> list[str | TableCell]:
    return [what, figures.latency(high), figures.latency(mean), figures.latency(threshold), held(high <= threshold)]


def _limits(limits: Sequence[Limit]) -> str:
    named = [
        f"unbounded {limit.kind.upper()}"
        if limit.share >= UNBOUNDED
        else f"{figures.share(limit.share)} of {LIMITS[limit.kind].format(workers=_workers(limit))}"
        for limit in limits
    ]
    return ", ".join(named) + " is used, the most first."


def _workers(limit: Limit) -> str:
    return "all workers" if limit.role is None else named_workers(limit.role)
