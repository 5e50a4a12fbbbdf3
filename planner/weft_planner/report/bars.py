"""Draw one bar for each thing, with its interval and a line for what is needed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft_planner.report import marks
from weft_planner.report.scales import linear_scale, plain

ROW, BAR, TOP, BOTTOM, RIGHT = 26.0, 16.0, 26.0, 46.0, 74.0
MOST_LEFT = 290.0
BOLD = 1.1
"""Bold letters are wider."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A value with its interval; ``solid`` ones stand out."""

    label: str
    value: float
    low: float
    high: float
    colour: int
    solid: bool = True


@dataclass(frozen=True, slots=True)
class Bars:
    """One picture of bars; ``needed`` is drawn as a line across them all."""

    name: str
    title: str
    description: str
    x_label: str
    rows: Sequence[Bar]
    needed: float | None = None
    needed_label: str = ""
    value_text: Callable[[float], str] = plain


def draw(bars: Bars) -> str:
    """Return the picture as SVG."""
    left = min(MOST_LEFT, 16 + max((BOLD * marks.width_of(row.label) for row in bars.rows), default=0.0))
    bottom = TOP + ROW * len(bars.rows)
    values = [value for row in bars.rows for value in (row.value, row.high)] + [bars.needed or 0.0]
    x = linear_scale(values, left, marks.HALF - RIGHT, room=0.02)
    parts = []
    for value in x.ticks(6):
        parts.append(marks.line(x.at(value), TOP, x.at(value), bottom, "grid"))
        parts.append(marks.text(x.at(value), bottom + 18, plain(value), "tick", anchor="middle"))
    for i, row in enumerate(bars.rows):
        parts += _bar(row, TOP + ROW * i, x.start, x.at, bars.value_text)
    parts.append(marks.line(left, TOP, left, bottom, "axis"))
    if bars.needed is not None:
        place = x.at(bars.needed)
        parts.append(marks.line(place, TOP - 6, place, bottom, "threshold plan"))
        late = place + marks.width_of(bars.needed_label) > marks.HALF - 8
        parts.append(marks.text(place, TOP - 11, bars.needed_label, "note plan", anchor="end" if late else "middle"))
    parts.append(marks.text((left + marks.HALF - RIGHT) / 2, bottom + 38, bars.x_label, anchor="middle"))
    return marks.picture(
        parts, name=bars.name, title=bars.title, description=bars.description, width=marks.HALF, height=bottom + BOTTOM
    )


def _bar(
    row: Bar, top: float, left: float, at: Callable[[float], float], value_text: Callable[[float], str]
) -> list[str]:
    middle = top + ROW / 2
    parts = [marks.text(left - 8, middle + 4, row.label, "label strong" if row.solid else "label", anchor="end")]
    if not math.isfinite(row.value):
        return [*parts, marks.text(left + 6, middle + 4, "unknown", "tick")]
    kind = f"bar c{row.colour}{'' if row.solid else ' pale'}"
    parts.append(marks.rectangle(left, middle - BAR / 2, at(row.value) - left, BAR, kind))
    end = at(row.value)
    if row.high > row.low:
        parts.append(marks.line(at(row.low), middle, at(row.high), middle, "whisker"))
        parts += [marks.line(at(v), middle - 4, at(v), middle + 4, "whisker") for v in (row.low, row.high)]
        end = at(row.high)
    parts.append(marks.text(end + 8, middle + 4, value_text(row.value), "note"))
    return parts
