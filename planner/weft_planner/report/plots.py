"""Turn the facts of a report into pictures, each with a description in words."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from weft_core.durations import format_seconds
from weft_core.prediction import Estimate
from weft_planner.report import bars, chart, marks
from weft_planner.report.facts import Facts, LayoutScore, LoadPoint, ReportTimeline
from weft_planner.report.scales import plain
from weft_planner.tables.figures import rate

FIRST, LATER, THIRD, MUTED = 1, 2, 3, 4
OVERLOADED = 10
"""TTFT beyond this many times its SLO is drawn at the edge: a queue without end has no height."""
STALLED = 3
"""The same of ITL: the interval of a few overloaded runs would flatten all that matters."""
RATE = "sessions per second"


def ttft_by_load(facts: Facts) -> str:
    """Draw TTFT of first and later rounds against the rate, with the SLO."""
    slo = facts.request.slo
    least = min((value for p in facts.load for value in (p.ttft_first.value, p.ttft_later.value)), default=1)
    picture = chart.Chart(
        name="ttft-load",
        title="Time to first token against load",
        description=_load_words(facts, "time to first token", lambda p: p.ttft_first, slo.ttft),
        x_label=RATE,
        y_label="TTFT P95, s (log scale)",
        lines=[
            _line("first rounds", facts.load, lambda p: p.ttft_first, FIRST),
            _line("later rounds", facts.load, lambda p: p.ttft_later, LATER),
        ],
        thresholds=[chart.Threshold("y", slo.ttft, f"SLO {format_seconds(slo.ttft)}")],
        log_y=True,
        y_most=OVERLOADED * slo.ttft,
        y_least=least / 2,
    )
    return _by_load(facts, picture)


def itl_by_load(facts: Facts) -> str:
    """Draw ITL against the rate, with the SLO."""
    slo = facts.request.slo
    picture = chart.Chart(
        name="itl-load",
        title="Inter-token latency against load",
        description=_load_words(facts, "inter-token latency", lambda p: p.itl, slo.itl),
        x_label=RATE,
        y_label="ITL P95, ms",
        lines=[_line("rounds' mean inter-token latency", facts.load, lambda p: p.itl, FIRST, scale=1e3)],
        y_most=STALLED * slo.itl * 1e3,
        thresholds=[chart.Threshold("y", slo.itl * 1e3, f"SLO {format_seconds(slo.itl)}")],
    )
    return _by_load(facts, picture)


def attainment_by_load(facts: Facts) -> str:
    """Draw the share of sessions within the SLO against the rate, with the goal."""
    slo = facts.request.slo
    goal = 100 * slo.attainment
    shares = ", ".join(f"{100 * p.attainment.value:.0f} % at {p.rate:.3g} per second" for p in facts.load)
    picture = chart.Chart(
        name="attainment-load",
        title=f"{slo.unit.capitalize()}s within the SLO against load",
        description=f"Share of {slo.unit}s within the SLO: {shares}. The goal is {goal:g} %.",
        x_label=RATE,
        y_label=f"{slo.unit}s within the SLO, %",
        lines=[_line(f"{slo.unit}s within the SLO", facts.load, lambda p: p.attainment, LATER, scale=100)],
        y_most=100,
        thresholds=[chart.Threshold("y", goal, f"goal {goal:g} %", below=True)],
    )
    return _by_load(facts, picture)


def _by_load(facts: Facts, picture: chart.Chart) -> str:
    """Draw a picture over the rate from 0 on, with the load that was planned for."""
    planned = chart.Threshold("x", facts.request.workload.arrival_rate, "planned load", "plan")
    return chart.draw(replace(picture, thresholds=[*picture.thresholds, planned], x_zero=True))


def goodput_by_layout(facts: Facts) -> str:
    """Draw each layout's goodput as a bar, with the load that was planned for."""
    known = [row for row in facts.layouts if row.drawn and row.goodput is not None and math.isfinite(row.goodput.value)]
    needed = facts.request.workload.arrival_rate
    rows = [
        bars.Bar(
            label=f"{row.name} ({row.gpus} GPUs)",
            value=row.goodput.value,
            low=row.goodput.low,
            high=row.goodput.high,
            colour=FIRST if row.chosen else MUTED,
            solid=row.chosen,
        )
        for row in known
        if row.goodput is not None
    ]
    said = ", ".join(f"{row.label} {row.value:.3g}" for row in rows)
    return bars.draw(
        bars.Bars(
            name="goodput",
            title="Goodput by layout",
            description=f"Sessions per second within the SLO: {said}. The planned load is {needed:g}.",
            x_label="sessions per second within the SLO",
            rows=rows,
            needed=needed,
            needed_label=f"planned load {needed:g}",
            value_text=rate,
        )
    )


def cost_against_latency(facts: Facts) -> str:
    """Draw each layout's cost against the larger share of its SLO that its latencies take."""
    slo = facts.request.slo
    drawn = [row for row in facts.layouts if row.drawn]
    priced = all(row.cost_per_hour is not None for row in drawn)
    front = {row.name for row in pareto(drawn, slo.ttft, slo.itl)}

    def cost(row: LayoutScore) -> float:
        return row.cost_per_hour if priced and row.cost_per_hour is not None else float(row.gpus)

    spots = [
        chart.Marker(
            x=cost(row),
            y=100 * worst_share(row, slo.ttft, slo.itl),
            label=row.name,
            colour=FIRST if row.chosen else (LATER if row.name in front else MUTED),
            solid=row.chosen or row.name in front,
            named=row.chosen or row.name in front,
        )
        for row in drawn
    ]
    on_front = sorted((s for s in spots if s.label in front and math.isfinite(s.y)), key=lambda s: s.x)
    said = ", ".join(f"{s.label} {plain(round(s.x, 2))} at {s.y:.0f} %" for s in on_front)
    return chart.draw(
        chart.Chart(
            name="pareto",
            title="Cost against latency",
            description=f"Layouts that no other beats in both cost and latency: {said}.",
            x_label="cost per hour" if priced else "GPUs",
            y_label="worse latency, % of its SLO",
            lines=[
                chart.Line(
                    "nothing is both cheaper and faster",
                    [(s.x, s.y) for s in on_front],
                    LATER,
                    dots=False,
                    dashed=True,
                    step=True,
                )
            ],
            spots=spots,
            thresholds=[chart.Threshold("y", 100.0, "SLO")],
            x_zero=True,
        )
    )


def timeline(data: ReportTimeline) -> tuple[str, ...]:
    """Draw queue, batch and memory over time, one wide picture each."""
    waiting = (
        f"Queued or running prefills of all workers: mean {_mean(data.queued):.1f}, largest {_most(data.queued):.0f}."
    )
    decoding = (
        f"Sequences decoded at once on all workers: mean {_mean(data.batch):.1f}, largest {_most(data.batch):.0f}."
    )
    full = f"The fullest KV cache of any worker reaches {100 * _most(data.kv):.0f} %."
    kv = [100 * share for share in data.kv]
    return (
        _over_time("timeline-queue", "Waiting prefills over time", waiting, data.at, data.queued, "prefills", FIRST),
        _over_time("timeline-batch", "Decoding sequences over time", decoding, data.at, data.batch, "sequences", LATER),
        _over_time("timeline-kv", "Fullest KV cache over time", full, data.at, kv, "fullest KV, %", THIRD),
    )


def _over_time(
    name: str, title: str, words: str, at: Sequence[float], values: Sequence[float], label: str, colour: int
) -> str:
    return chart.draw(
        chart.Chart(
            name=name,
            title=title,
            description=words,
            x_label="seconds",
            y_label=label,
            lines=[chart.Line(title.removesuffix(" over time"), [*zip(at, values, strict=True)], colour, dots=False)],
            height=170,
            width=marks.WIDE,
            x_zero=True,
        )
    )


def worst_share(row: LayoutScore, ttft_s: float, itl_s: float) -> float:
    """Return the larger of both latencies, as a share of its threshold."""
    return max(row.ttft_s / ttft_s, row.itl_s / itl_s)


def pareto(layouts: Sequence[LayoutScore], ttft_s: float, itl_s: float) -> list[LayoutScore]:
    """Return the layouts that no other beats in both cost (or GPUs) and latency, the cheapest first."""
    priced = all(row.cost_per_hour is not None for row in layouts)
    ordered = sorted(
        layouts,
        key=lambda row: (row.cost_per_hour if priced else row.gpus, worst_share(row, ttft_s, itl_s)),
    )
    front: list[LayoutScore] = []
    for row in ordered:
        share = worst_share(row, ttft_s, itl_s)
        if math.isfinite(share) and (not front or share < worst_share(front[-1], ttft_s, itl_s)):
            front.append(row)
    return front


def _line(
    label: str, points: Sequence[LoadPoint], of: Callable[[LoadPoint], Estimate], colour: int, *, scale: float = 1.0
) -> chart.Line:
    return chart.Line(
        label,
        [(point.rate, scale * of(point).value) for point in points],
        colour,
        band=[(point.rate, scale * max(0.0, of(point).low), scale * of(point).high) for point in points],
    )


def _load_words(facts: Facts, what: str, of: Callable[[LoadPoint], Estimate], threshold: float) -> str:
    within = [point.rate for point in facts.load if of(point).value <= threshold]
    most = f"up to {max(within):.3g} sessions per second" if within else "at no simulated load"
    return (
        f"The P95 of the {what} is within the SLO of {format_seconds(threshold)} {most}. "
        f"The planned load is {facts.request.workload.arrival_rate:g} sessions per second."
    )


def _most(values: Sequence[float]) -> float:
    return max(values, default=0.0)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
