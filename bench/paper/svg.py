"""Draw the page's pictures as SVG files that stand alone, by the marks and scales of the plan's report."""

import math
from collections.abc import Mapping, Sequence

from weft_planner.report import marks
from weft_planner.report.scales import Scale, plain

COLOURS = ("#3b6ea8", "#d1762b", "#4f9a57", "#8a5aa8", "#b03a48", "#7a7a3a")
RULES = (
    "text { font: 12px sans-serif; fill: #666 } .title { font-size: 14px; fill: #222 }",
    ".paper { fill: #fff } .grid { stroke: #ddd } .one { stroke: #222 } .line { fill: none; stroke-width: 2 }",
    *(f".dot.c{i} {{ fill: {c}; fill-opacity: .85 }} .line.c{i} {{ stroke: {c} }}" for i, c in enumerate(COLOURS)),
)
WIDTH, LEFT, TOP, ROW = 760.0, 190, 46, 24


def dots(title: str, rows: Mapping[str, Mapping[str, float]], *, ticks: Sequence[float], unit: str) -> str:
    """Return a picture with one line of dots per row on a logarithmic axis; the line at 1 is drawn strongly."""
    width, bottom = WIDTH, TOP + ROW * len(rows) + 6.0
    ticks = _reaching(ticks, [value for row in rows.values() for value in row.values() if math.isfinite(value)])
    x = Scale(ticks[0], ticks[-1], LEFT, width - 30, log=True)
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    parts = _legend(names)
    for tick in ticks:
        parts.append(marks.line(x.at(tick), TOP, x.at(tick), bottom, "one" if tick == 1 else "grid"))
        parts.append(marks.text(x.at(tick), bottom + 16, plain(tick), anchor="middle"))
    parts.append(marks.text(width - 30, bottom + 30, unit, anchor="end"))
    said = []
    for at, (name, row) in enumerate(rows.items()):
        y = TOP + ROW * (at + 0.5)
        known = {label: value for label, value in row.items() if math.isfinite(value)}
        parts.append(marks.text(LEFT - 10, y + 4, name, anchor="end"))
        parts += [
            marks.dot(x.at(value), y, _class("dot", names.index(label)), radius=5, hint=f"{label}: {value:.3g}")
            for label, value in known.items()
        ]
        said.append(f"{name}: " + ", ".join(f"{label} {value:.2g}" for label, value in known.items()))
    return _page(parts, title=title, words=f"{unit.capitalize()}. {'; '.join(said)}.", width=width, height=bottom + 34)


def _reaching(ticks: Sequence[float], values: Sequence[float]) -> list[float]:
    """Return ticks with more of them, each twice or half of the last, until no value lies outside."""
    found = list(ticks)
    while values and max(values) > found[-1]:
        found.append(2 * found[-1])
    while values and 0 < min(values) < found[0]:
        found.insert(0, found[0] / 2)
    return found


def lines(title: str, of: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str, y_label: str) -> str:
    """Return a picture of lines on two logarithmic axes, the upright one in whole decades."""
    width, height = WIDTH, 330.0
    xs = sorted({x for line in of.values() for x, _ in line})
    ys = [y for line in of.values() for _, y in line]
    x = Scale(xs[0], max(xs[-1], 2 * xs[0]), 70, width - 30, log=True)
    least = math.floor(math.log10(min(ys)))
    most = max(least + 1, math.ceil(math.log10(max(ys))))
    y = Scale(10.0**least, 10.0**most, height - 50, 60, log=True)
    parts = _legend(list(of))
    parts += [marks.text(x.at(value), y.start + 18, plain(value), anchor="middle") for value in xs]
    for value in (10.0**power for power in range(least, most + 1)):
        parts.append(marks.line(x.start, y.at(value), x.end, y.at(value), "grid"))
        parts.append(marks.text(x.start - 6, y.at(value) + 4, plain(value), anchor="end"))
    for number, (name, line) in enumerate(of.items()):
        placed = [(x.at(a), y.at(b)) for a, b in line]
        parts.append(marks.path(placed, _class("line", number)))
        parts += [
            marks.dot(px, py, _class("dot", number), radius=4, hint=f"{name}: {a:g}, {b:.3g}")
            for (px, py), (a, b) in zip(placed, line, strict=True)
        ]
    parts.append(marks.text(width / 2, height - 10, x_label, anchor="middle"))
    parts.append(marks.text(width - 30, 36, y_label, anchor="end"))
    words = f"{y_label.capitalize()} by {x_label}: {', '.join(of)}."
    return _page(parts, title=title, words=words, width=width, height=height)


def shares(
    title: str, of: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str, y_label: str, goal: float
) -> str:
    """Return a picture of shares (0 to 1) over a logarithmic axis; the line at the goal is drawn strongly."""
    width, height = WIDTH, 350.0
    xs = sorted({x for line in of.values() for x, _ in line}) or [1.0]
    x = Scale(xs[0], max(xs[-1], 1.1 * xs[0]), 70, width - 30, log=True)
    y = Scale(0.0, 1.0, height - 50, 80)
    parts = _legend(list(of))
    for value in xs:
        parts.append(marks.line(x.at(value), y.start, x.at(value), y.end, "grid"))
        parts.append(marks.text(x.at(value), y.start + 18, f"{value:.2g}", anchor="middle"))
    for value in (0.0, 0.25, 0.5, 0.75, 1.0, goal):
        parts.append(marks.line(x.start, y.at(value), x.end, y.at(value), "one" if value == goal else "grid"))
        parts.append(marks.text(x.start - 6, y.at(value) + 4, plain(value), anchor="end"))
    for number, (name, line) in enumerate(of.items()):
        placed = [(x.at(a), y.at(b)) for a, b in line]
        parts.append(marks.path(placed, _class("line", number)))
        parts += [
            marks.dot(px, py, _class("dot", number), radius=4, hint=f"{name}: {a:.3g}, {b:.3g}")
            for (px, py), (a, b) in zip(placed, line, strict=True)
        ]
    parts.append(marks.text(width / 2, height - 10, x_label, anchor="middle"))
    parts.append(marks.text(width - 30, 70, y_label, anchor="end"))
    said = "; ".join(f"{name} " + ", ".join(f"{b:.2f} at {a:.3g}" for a, b in line) for name, line in of.items())
    words = f"{y_label.capitalize()} by {x_label}: {said}."
    return _page(parts, title=title, words=words, width=width, height=height)


def _legend(names: Sequence[str]) -> list[str]:
    """Return a dot and a label for each name, in as many lines as they need."""
    parts, x, y = [], 10.0, 32.0
    for number, name in enumerate(names):
        across = 34 + marks.width_of(name)
        if x + across > WIDTH:
            x, y = 10.0, y + 16
        parts.append(marks.dot(x + 5, y, _class("dot", number), radius=5))
        parts.append(marks.text(x + 14, y + 4, name))
        x += across
    return parts


def _class(kind: str, number: int) -> str:
    return f"{kind} c{number % len(COLOURS)}"


def _page(parts: Sequence[str], *, title: str, words: str, width: float, height: float) -> str:
    page = (f"<style>{' '.join(RULES)}</style>", marks.rectangle(0, 0, width, height, "paper"))
    heading = marks.text(10, 18, title, "title")
    name = title.split()[0].lower()
    return marks.picture(
        [*page, heading, *parts], name=name, title=title, description=words, width=width, height=height
    )
