"""Draw the page's three pictures as plain SVG: no script, no font, no library."""

import math
from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#3b6ea8", "#d1762b", "#4f9a57", "#8a5aa8")
GREY = "#666"
LEFT, TOP, ROW = 190, 46, 24


def dots(title: str, rows: Mapping[str, Mapping[str, float]], *, ticks: Sequence[float], unit: str) -> str:
    """Return a picture with one line of dots per row on a logarithmic axis; the line at 1 is drawn strongly."""
    width, height = 760, TOP + ROW * len(rows) + 40
    low, high = math.log(ticks[0]), math.log(ticks[-1])

    def x(value: float) -> float:
        return LEFT + (width - LEFT - 30) * (math.log(min(max(value, ticks[0]), ticks[-1])) - low) / (high - low)

    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    parts = [_text(10, 18, title, size=14), *_legend(names, 10, 36)]
    bottom = TOP + ROW * len(rows) + 6
    for tick in ticks:
        stroke = "#222" if tick == 1 else "#ddd"
        parts.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{bottom}" stroke="{stroke}"/>')
        parts.append(_text(x(tick), bottom + 16, f"{tick:g}", anchor="middle"))
    parts.append(_text(width - 30, bottom + 30, unit, anchor="end"))
    for at, (name, row) in enumerate(rows.items()):
        y = TOP + ROW * at + ROW / 2
        parts.append(_text(LEFT - 10, y + 4, name, anchor="end"))
        for label, value in row.items():
            if math.isfinite(value):
                colour = COLOURS[names.index(label) % len(COLOURS)]
                parts.append(f'<circle cx="{x(value):.1f}" cy="{y:.1f}" r="5" fill="{colour}" fill-opacity="0.85"/>')
    return _page(width, height, title, parts)


def lines(title: str, of: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str, y_label: str) -> str:
    """Return a picture of lines on two logarithmic axes."""
    width, height = 560, 330
    points = [point for line in of.values() for point in line]
    ends = [(min(p[k] for p in points), max(p[k] for p in points)) for k in (0, 1)]
    ends[0] = (ends[0][0], max(ends[0][1], 2 * ends[0][0]))
    least = 10.0 ** math.floor(math.log10(ends[1][0]))
    ends[1] = (least, max(10 * least, 10.0 ** math.ceil(math.log10(ends[1][1]))))

    def place(point: tuple[float, float]) -> tuple[float, float]:
        share = [
            (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
            for value, (low, high) in zip(point, ends, strict=True)
        ]
        return 70 + (width - 100) * share[0], height - 50 - (height - 110) * share[1]

    parts = [_text(10, 18, title, size=14), *_legend(list(of), 10, 36)]
    for value in sorted({p[0] for p in points}):
        at = place((value, ends[1][0]))
        parts.append(_text(at[0], at[1] + 18, f"{value:g}", anchor="middle"))
    power = ends[1][0]
    while power <= ends[1][1] * 1.01:
        at = place((ends[0][0], power))
        parts.append(f'<line x1="70" x2="{width - 30}" y1="{at[1]:.1f}" y2="{at[1]:.1f}" stroke="#ddd"/>')
        parts.append(_text(64, at[1] + 4, f"{power:g}", anchor="end"))
        power *= 10
    for number, line in enumerate(of.values()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, line))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in map(place, line)]
    parts.append(_text(width / 2, height - 10, x_label, anchor="middle"))
    parts.append(_text(width - 30, 36, y_label, anchor="end"))
    return _page(width, height, title, parts)


def _legend(names: Sequence[str], x: float, y: float) -> list[str]:
    parts = []
    for number, name in enumerate(names):
        parts.append(f'<circle cx="{x + 5:.0f}" cy="{y - 4:.0f}" r="5" fill="{COLOURS[number % len(COLOURS)]}"/>')
        parts.append(_text(x + 14, y, name))
        x += 34 + 6.4 * len(name)
    return parts


def _text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    fill = "#222" if size > 12 else GREY
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{escape(words)}</text>'
    )


def _page(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" role="img" aria-label="{escape(title)}">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n{body}\n</svg>\n'
    )
