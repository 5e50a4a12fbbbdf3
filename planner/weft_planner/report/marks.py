"""Write the elements of an SVG picture; colours come from the style sheet by class, so that it suits any theme."""

from collections.abc import Iterable, Sequence
from html import escape

HALF, WIDE = 520.0, 1060.0
"""Units across of pictures in half a column and in a whole one: about the pixels they get, so that letters fit."""
LETTER = 6.7
"""Mean width of a letter at the size of labels: SVG cannot measure text, and legends must not overlap."""


def picture(parts: Iterable[str], *, name: str, title: str, description: str, width: float, height: float) -> str:
    """Return a whole picture with a title and a description for people who do not see it."""
    head = (
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{name}-t {name}-d" '
        f'xmlns="http://www.w3.org/2000/svg"><title id="{name}-t">{escape(title)}</title>'
        f'<desc id="{name}-d">{escape(description)}</desc>'
    )
    return head + "".join(parts) + "</svg>"


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a straight line of a class."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def path(points: Sequence[tuple[float, float]], kind: str) -> str:
    """Return a line through points."""
    return f'<path class="{kind}" d="M{_through(points)}"/>'


def area(points: Sequence[tuple[float, float]], kind: str) -> str:
    """Return a filled shape."""
    return f'<path class="{kind}" d="M{_through(points)}Z"/>'


def rectangle(x: float, y: float, width: float, height: float, kind: str) -> str:
    """Return a filled rectangle."""
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}"/>'


def dot(x: float, y: float, kind: str, *, radius: float = 3.5, hint: str = "") -> str:
    """Return a dot; ``hint`` shows on hover."""
    inner = f"<title>{escape(hint)}</title>" if hint else ""
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}">{inner}</circle>'


def text(x: float, y: float, words: str, kind: str = "label", *, anchor: str = "start", turned: bool = False) -> str:
    """Return a text; ``turned`` reads upwards."""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(words)}</text>'


def width_of(words: str) -> float:
    """Return about how wide a label is."""
    return LETTER * len(words)


def _through(points: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
