"""Lay out what memory below the GPUs would bring to a plan."""

from collections.abc import Iterator, Sequence

from weft_core.plan import Plan
from weft_core.prediction import prediction_to_json
from weft_planner.request.reading import Request
from weft_planner.study.kv_tiers import TierRow, Tiers, least_sufficient
from weft_planner.tables import figures
from weft_planner.tables.writing import QUIET, Paragraph, Part, TableCell, TextTable, held

UNITS = (("Ti", 2.0**40), ("Gi", 2.0**30), ("Mi", 2.0**20))
SESSIONS = 1000
"""Of which the price is given."""


def tier_parts(plan: Plan, rows: Sequence[TierRow], *, request: Request) -> list[Part]:
    """Return what to print; ``rows`` are of the plan's own workers."""
    return [*_parts(plan, rows, request)]


def _parts(plan: Plan, rows: Sequence[TierRow], request: Request) -> Iterator[Part]:
    priced = plan.predicted.cost_per_hour is not None
    header = ["TIERS OF A WORKER", "GOODPUT /S>", "LATER TTFT P50>", "P95>", "RECOMPUTED>", "LOADED>"]
    header += [f"COST /{SESSIONS} SESSIONS>"] if priced else []
    best = least_sufficient(rows)
    yield TextTable(
        [*header, "HELD"],
        [_row(row, plan) for row in rows],
        title="KV tiers",
        marked=(list(rows).index(best),),
    )
    rate = request.workload.arrival_rate
    prices = " Costs are those of GPUs alone." if priced else ""
    yield Paragraph(
        f"Latencies and shares of history tokens at {rate:g} sessions/s. {_verdict(best)}{prices}", style=QUIET
    )


def _verdict(best: TierRow) -> str:
    if not best.tiers:
        return "No tier carries more than the GPUs alone."
    return f"The smallest that carries as much as any: {named(best.tiers)}."


def _row(row: TierRow, plan: Plan) -> list[str | TableCell]:
    found = row.predicted
    later = found.ttft_later
    cells: list[str | TableCell] = [
        named(row.tiers),
        figures.rate_interval(found.goodput),
        figures.latency(None if later is None else later.p50_s),
        figures.latency(None if later is None else later.p95_s),
        figures.fine_share(row.recomputed),
        figures.fine_share(row.loaded),
    ]
    if plan.predicted.cost_per_hour is not None:
        cells.append(figures.money(_price(row, plan.predicted.cost_per_hour)))
    return [*cells, held(found.slo_met)]


def _price(row: TierRow, per_hour: float) -> float | None:
    """Return what so many sessions cost at the goodput; None where no load holds the SLO."""
    return SESSIONS * per_hour / 3600 / row.goodput if row.goodput > 0 else None


def named(tiers: Tiers) -> str:
    """Return tiers as the option takes them: cpu:200Gi,disk:2Ti."""
    return ",".join(f"{one.name}:{_size(one.size)}" for one in tiers) or "none"


def _size(size: float) -> str:
    unit, bytes_of = next(((unit, of) for unit, of in UNITS if size >= of), UNITS[-1])
    return f"{size / bytes_of:g}{unit}"


def tier_body(rows: Sequence[TierRow]) -> list[dict[str, object]]:
    """Return the same as JSON-ready data; sizes in bytes, latencies in seconds, shares of history tokens."""
    return [
        {
            "kvTiers": [{"name": one.name, "size": one.size} for one in row.tiers],
            "predicted": prediction_to_json(row.predicted),
            "recomputed": row.recomputed,
            "loaded": row.loaded,
        }
        for row in rows
    ]
