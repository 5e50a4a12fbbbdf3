"""Draw lines with intervals, scattered spots and thresholds on two axes."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft_planner.report import marks
from weft_planner.report.scales import Scale, linear_scale, log_scale, plain

LEFT, RIGHT, BOTTOM = 62.0, 16.0, 46.0
LEGEND_ROW = 20.0


@dataclass(frozen=True, slots=True)
class Line:
    """A line through (x, y), with the interval (x, low, high) around it; infinite values break it."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: int
    band: Sequence[tuple[float, float, float]] = ()
    dashed: bool = False
    dots: bool = True
    step: bool = False


@dataclass(frozen=True, slots=True)
class Marker:
    """A point with a name of its own; ``solid`` ones stand out."""

    x: float
    y: float
    label: str
    colour: int
    solid: bool = True
    named: bool = True


@dataclass(frozen=True, slots=True)
class Threshold:
    """A line across the whole picture at a value of one axis."""

    axis: str
    value: float
    label: str
    kind: str = "slo"
    below: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture. ``description`` says in words what it shows, for people who do not see it."""

    name: str
    title: str
    description: str
    x_label: str
    y_label: str
    lines: Sequence[Line] = ()
    spots: Sequence[Marker] = ()
    thresholds: Sequence[Threshold] = ()
    log_y: bool = False
    y_most: float = math.inf
    """Values above it are drawn at the upper edge."""
    y_least: float = 0.0
    """On a logarithmic axis, ends of intervals below it are drawn at the lower edge."""
    x_zero: bool = False
    height: float = 290.0
    width: float = marks.HALF
    x_text: Callable[[float], str] = plain
    y_text: Callable[[float], str] = plain


def draw(chart: Chart) -> str:
    """Return the picture as SVG."""
    legend, rows = _legend(chart)
    top = 12.0 + LEGEND_ROW * rows
    x, y = _scales(chart, top)
    parts = [*legend, *_axes(chart, x, y, top)]
    for item in chart.lines:
        parts += _line(item, x, y)
    for threshold in chart.thresholds:
        parts += _threshold(threshold, x, y, top)
    parts += _spots(chart.spots, x, y)
    return marks.picture(
        parts, name=chart.name, title=chart.title, description=chart.description, width=chart.width, height=chart.height
    )


def _scales(chart: Chart, top: float) -> tuple[Scale, Scale]:
    xs = [p[0] for item in chart.lines for p in item.points] + [spot.x for spot in chart.spots]
    ys = [p[1] for item in chart.lines for p in item.points] + [spot.y for spot in chart.spots]
    ys += [high for item in chart.lines for _, _, high in item.band]
    xs += [t.value for t in chart.thresholds if t.axis == "x"]
    ys += [t.value for t in chart.thresholds if t.axis == "y"]
    ys = [min(value, chart.y_most) for value in ys]
    x = linear_scale(xs, LEFT, chart.width - RIGHT, zero=chart.x_zero, room=0.14 if chart.spots else 0.03)
    bottom = chart.height - BOTTOM
    if chart.log_y:
        ys += [low for item in chart.lines for _, low, _ in item.band if low > chart.y_least]
        return x, log_scale(ys, bottom, top)
    return x, linear_scale(ys, bottom, top, room=0.12)


def _axes(chart: Chart, x: Scale, y: Scale, top: float) -> list[str]:
    bottom = chart.height - BOTTOM
    parts = []
    for value in y.ticks(5 if chart.height > 200 else 3):
        place = y.at(value)
        parts.append(marks.line(LEFT, place, chart.width - RIGHT, place, "grid"))
        parts.append(marks.text(LEFT - 8, place + 4, chart.y_text(value), "tick", anchor="end"))
    for value in x.ticks(6 if chart.width <= marks.HALF else 12):
        place = x.at(value)
        parts.append(marks.line(place, bottom, place, bottom + 4, "axis"))
        parts.append(marks.text(place, bottom + 18, chart.x_text(value), "tick", anchor="middle"))
    parts.append(marks.line(LEFT, bottom, chart.width - RIGHT, bottom, "axis"))
    middle = (LEFT + chart.width - RIGHT) / 2
    parts.append(marks.text(middle, chart.height - 8, chart.x_label, anchor="middle"))
    parts.append(marks.text(14, (top + bottom) / 2, chart.y_label, anchor="middle", turned=True))
    return parts


def _line(item: Line, x: Scale, y: Scale) -> list[str]:
    parts = []
    band = [(at, low, high) for at, low, high in item.band if math.isfinite(low) and math.isfinite(high)]
    if len(band) > 1:
        upper = [(x.at(at), y.at(high)) for at, _, high in band]
        lower = [(x.at(at), y.at(low)) for at, low, _ in reversed(band)]
        parts.append(marks.area([*upper, *lower], f"band c{item.colour}"))
    for run in _finite_runs(item.points):
        placed = [(x.at(a), y.at(b)) for a, b in run]
        if len(placed) > 1:
            drawn = _stairs(placed) if item.step else placed
            parts.append(marks.path(drawn, f"line c{item.colour}{' dashed' if item.dashed else ''}"))
        if item.dots or len(placed) == 1:
            parts += [
                marks.dot(px, py, f"dot c{item.colour}", hint=f"{item.label}: {a:.4g}, {b:.4g}")
                for (px, py), (a, b) in zip(placed, run, strict=True)
            ]
    return parts


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    stairs = [points[0]]
    for (_, before), (at, value) in itertools.pairwise(points):
        stairs += [(at, before), (at, value)]
    return stairs


def _finite_runs(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    runs: list[list[tuple[float, float]]] = [[]]
    for a, b in points:
        if math.isfinite(b):
            runs[-1].append((a, b))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _threshold(threshold: Threshold, x: Scale, y: Scale, top: float) -> list[str]:
    kind = f"threshold {threshold.kind}"
    if threshold.axis == "y":
        place = y.at(threshold.value)
        # On the left, where load is low and lines are far from it.
        label = marks.text(
            x.start + 5, place + (15 if threshold.below else -5), threshold.label, f"note {threshold.kind}"
        )
        return [marks.line(x.start, place, x.end, place, kind), label]
    place = x.at(threshold.value)
    late = place + marks.width_of(threshold.label) + 8 > x.end
    label = marks.text(
        place + (-5 if late else 5),
        top + 10,
        threshold.label,
        f"note {threshold.kind}",
        anchor="end" if late else "start",
    )
    return [marks.line(place, top, place, y.start, kind), label]


def _spots(spots: Sequence[Marker], x: Scale, y: Scale) -> list[str]:
    parts = []
    taken: list[tuple[float, float, float]] = []
    for spot in sorted(spots, key=lambda s: not s.solid):
        if not math.isfinite(spot.y):
            continue
        px, py = x.at(spot.x), y.at(spot.y)
        kind = f"{'dot' if spot.solid else 'ring'} c{spot.colour}"
        parts.append(marks.dot(px, py, kind, radius=6 if spot.solid else 4.5, hint=spot.label))
        wide = marks.width_of(spot.label)
        start = px + 9 if px + 12 + wide < x.end else px - 9 - wide
        place = py - 6  # above a line that goes on to the right
        free = all(abs(place - other) > 13 or start > right or start + wide < left for left, right, other in taken)
        if spot.named and free:
            parts.append(marks.text(start, place, spot.label, "note"))
            taken.append((start, start + wide, place))
        taken.append((px - 7, px + 7, py))
    return parts


def _legend(chart: Chart) -> tuple[list[str], int]:
    """Return the keys of all lines and how many rows they take."""
    parts: list[str] = []
    at, row = LEFT, 0
    for item in chart.lines:
        wide = 26 + marks.width_of(item.label) + 18
        if at + wide > chart.width - RIGHT and at > LEFT:
            at, row = LEFT, row + 1
        middle = 14 + LEGEND_ROW * row
        parts.append(marks.line(at, middle, at + 20, middle, f"line c{item.colour}{' dashed' if item.dashed else ''}"))
        parts.append(marks.text(at + 26, middle + 4, item.label))
        at += wide
    return parts, row + 1 if chart.lines else 0
