"""Put the page together; it needs no network, no script and no font of its own."""

from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files

from weft_core.durations import format_seconds
from weft_planner.evaluation.trials import reading_of
from weft_planner.report import html, plots, summary
from weft_planner.report.facts import Facts, Sensitivity, SensitivityCell
from weft_planner.tables import figures

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The browser itself refuses to load anything: the page is what it is, wherever it is opened."""


def page(facts: Facts) -> str:
    """Return the page as HTML."""
    return whole_page(f"Plan for {facts.service}", _sections(facts))


def whole_page(title: str, sections: Iterable[str]) -> str:
    """Return a page of these sections, markup already, with the reports' style."""
    css = files("weft_planner.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style></head>\n<body><main>\n"
        + "\n".join(sections)
        + "\n</main></body></html>\n"
    )


def _sections(facts: Facts) -> Iterator[str]:
    yield _header(facts)
    yield summary.verdict(facts)
    yield summary.cards(facts)
    if facts.interrupted:
        yield html.paragraph("The study was interrupted: only the finished parts are shown.", "quiet")
    yield f'<h2>What to run</h2><div class="panel">{summary.workers(facts)}</div>'
    if facts.load:
        yield _load(facts)
    if facts.layouts:
        yield _layouts(facts)
    if facts.timeline is not None:
        pictures = f'<div class="scroll wide">{"".join(plots.timeline(facts.timeline))}</div>'
        caption = "A queue that drains again is healthy. Larger batches use a GPU better and slow each token."
        yield (
            "<h2>A stretch of time at the planned load</h2>"
            + html.paragraph("One simulated run: what waits, what decodes, and how full memory gets.", "quiet")
            + html.figure(pictures, title="Queue, batch and memory", caption=caption)
        )
    if facts.sensitivity is not None:
        yield _sensitivity(facts, facts.sensitivity)
    yield _basis(facts)
    yield (
        f"<footer>Weft {escape(facts.version)} · plan {escape(facts.plan.revision)} · inputs "
        f"{escape(facts.plan.inputs_hash)} · seed {facts.request.seed}</footer>"
    )


def _header(facts: Facts) -> str:
    request = facts.request
    gpus = ", ".join(sorted({pool.gpu_type for pool in request.capacity.pools}))
    slo = request.slo
    asked = (
        f"{request.model.name} on {gpus}. Asked for: {request.workload.arrival_rate:g} sessions per second of "
        f"{request.workload.mean_rounds:.3g} rounds; first token within {format_seconds(slo.ttft)} and tokens at most "
        f"{format_seconds(slo.itl)} apart, for {slo.attainment:.0%} of the {slo.unit}s; objective {request.objective}."
    )
    return (
        f'<header><p class="mark">Weft plan</p><h1>{escape(facts.service)}</h1>'
        f"{html.paragraph(asked, 'quiet')}</header>"
    )


def _load(facts: Facts) -> str:
    slo = facts.request.slo
    header = ["sessions/s", "TTFT, first", "TTFT, later", "ITL", "within the SLO"]
    rows = [
        [
            f"{p.rate:.3g}",
            figures.latency(p.ttft_first.value),
            figures.latency(p.ttft_later.value),
            figures.latency(p.itl.value),
            figures.share_interval(p.attainment),
        ]
        for p in facts.load
    ]
    numbers = html.table(header, rows, caption="P95 of first and later rounds, by load")
    return (
        "<h2>How it behaves as load grows</h2>"
        + html.paragraph(
            "Shaded bands are 95 % intervals over independent runs. Where a line crosses its SLO, this layout is full.",
            "quiet",
        )
        + '<div class="two">'
        + html.figure(
            plots.ttft_by_load(facts),
            title="Time to first token",
            caption="P95 of TTFT. Far above the SLO the queue grows without end; such points lie at the edge.",
        )
        + html.figure(
            plots.itl_by_load(facts),
            title="Inter-token latency",
            caption="P95 of the rounds' mean gaps.",
        )
        + "</div>"
        + '<div class="two">'
        + html.figure(
            plots.attainment_by_load(facts),
            title=f"{slo.unit.capitalize()}s within the SLO",
            caption=f"Counted {reading_of(facts.request)}.",
        )
        + f'<div class="panel">{numbers}</div></div>'
    )


def _layouts(facts: Facts) -> str:
    drawn = []
    if any(row.goodput is not None for row in facts.layouts):
        drawn.append(
            html.figure(
                plots.goodput_by_layout(facts),
                title="Goodput by layout",
                caption="Most sessions per second of which the goal's share holds the SLO; whiskers: 95 % interval.",
            )
        )
    drawn.append(
        html.figure(
            plots.cost_against_latency(facts),
            title="Cost against latency",
            caption="The worse of TTFT and ITL as a share of its SLO. Below the line nothing was found.",
        )
    )
    return (
        "<h2>What else was considered</h2>"
        f'<div class="panel tight">{summary.ranking(facts)}</div><div class="two">{"".join(drawn)}</div>'
    )


def _sensitivity(facts: Facts, found: Sensitivity) -> str:
    own = summary.name_of(facts)
    goal = facts.request.slo.attainment
    head = "".join(f'<th scope="col">load {_factor(rate)}</th>' for rate in found.rates)
    rows = []
    for speed, cells in zip(found.speeds, found.cells, strict=True):
        shown = "".join(
            _cell(cell, own, goal, here=(rate, speed) == (1, 1)) for rate, cell in zip(found.rates, cells, strict=True)
        )
        rows.append(f'<tr><th scope="row" class="words">GPUs {_speed(speed)}</th>{shown}</tr>')
    every = [cell for cells in found.cells for cell in cells]
    same = sum(cell.layout == own for cell in every)
    none = sum(cell.attainment < goal for cell in every)
    missed = f" In {none} none of them holds the goal of {goal:.0%} (red)." if none else ""
    return (
        "<h2>If the assumptions are off</h2>"
        + html.paragraph(
            f"The best of the considered layouts when load or GPU efficiency differ from what was planned. {own} stays "
            f"the choice in {same} of {len(every)} cases (tinted); the case planned for is framed.{missed}",
            "quiet",
        )
        + '<div class="panel"><div class="scroll"><table class="grid"><caption>Best layout, and in brackets how many '
        f"{facts.request.slo.unit}s stay within the SLO with it; small: with {escape(own)} instead</caption>"
        f"<thead><tr><td></td>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div></div>"
    )


def _cell(cell: SensitivityCell, own: str, goal: float, *, here: bool) -> str:
    kind = f"cell{' same' if cell.layout == own else ''}{' here' if here else ''}"
    other = "" if cell.layout == own else f"<small>{escape(own)}: {100 * cell.chosen_attainment:.0f} %</small>"
    share = f"{100 * cell.attainment:.0f} %"
    shown = f"({share})" if cell.attainment >= goal else f'<span class="no">({share})</span>'
    return f'<td class="{kind}">{escape(cell.layout)} {shown}{other}</td>'


def _factor(rate: float) -> str:
    return "as planned" if rate == 1 else f"x {rate:g}"


def _speed(speed: float) -> str:
    if speed == 1:
        return "as planned"
    return f"{100 * abs(speed - 1):.0f} % {'faster' if speed > 1 else 'slower'}"


def _basis(facts: Facts) -> str:
    notes = [*facts.plan.notes, *(n for n in facts.request.workload.assumptions if n not in facts.plan.notes)]
    said = [facts.plan.slo_reading, *facts.method, *(f"{note[0].upper()}{note[1:]}" for note in notes if note)]
    return f'<h2>What this rests on</h2><div class="panel">{html.listed(item for item in said if item)}</div>'
