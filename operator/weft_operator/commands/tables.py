"""Tables and text of terminal pages: as wide as the terminal, plain where there is none."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

PLAIN_COLUMNS = 160
"""Width where the output is not a terminal: long lines are folded there, too."""


def table(titles: Sequence[str], rows: Sequence[Sequence[str | Text]], *, right: Sequence[str] = ()) -> Table:
    """Return a table without a frame; columns named in ``right`` are right-aligned."""
    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in titles:
        result.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for row in rows:
        result.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))  # brackets are no markup
    return result


def lines(*texts: str) -> RenderableType:
    """Return lines of text, without empty ones."""
    return Group(*(Text(text) for text in texts if text))


def text_of(*parts: RenderableType) -> str:
    """Return the parts, separated by empty lines, in the width and colours of the terminal."""
    console = Console()
    if not console.is_terminal:
        return plain_text(*parts)
    with console.capture() as captured:
        _print(console, parts)
    return _stripped(captured.get())


def plain_text(*parts: RenderableType) -> str:
    """Return the parts without colours, for files."""
    out = io.StringIO()
    _print(Console(file=out, width=PLAIN_COLUMNS, color_system=None), parts)
    return _stripped(out.getvalue())


def _print(console: Console, parts: Sequence[RenderableType]) -> None:
    for number, part in enumerate(parts):
        if number:
            console.print()
        console.print(part)


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines())


def seconds(value: float) -> str:
    """Return a time in seconds as short text: 12 ms, 1.5 s."""
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def figures(predicted: Mapping[str, Any]) -> str:
    """Return a plan's predicted figures as one clause."""
    words = []
    for key, title in (("ttftP95", "TTFT"), ("itlP95", "ITL")):
        if predicted.get(key) is not None:
            words.append(f"{title} {seconds(predicted[key])}")
    if (predicted.get("attainment") or {}).get("value") is not None:
        words.append(f"SLO met by {predicted['attainment']['value']:.1%}")
    if (predicted.get("goodput") or {}).get("value") is not None:
        words.append(f"up to {predicted['goodput']['value']:.3g} sessions/s")
    return ", ".join(words) or "the load exceeds the capacity"
