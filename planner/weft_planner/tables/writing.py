"""Turn titles, tables and paragraphs into text: with colours on a terminal, plain and wide enough elsewhere."""

import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

WIDTH = 100
"""Paragraphs are no wider: longer lines are hard to read."""
WIDEST = 240
"""Columns that a table may take."""
GOOD, BAD, NOTICE, QUIET, STRONG = "green", "red", "yellow", "dim", "bold"


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with a style of its own."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: columns whose name ends in ``>`` are set to the right; ``marked`` rows stand out."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    title: str = ""
    marked: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Words:
    """A paragraph; ``lead`` opens it in bold."""

    text: str
    lead: str = ""
    style: str = ""


Part = Rows | Words


def text_of(parts: Iterable[Part]) -> str:
    """Return the parts as text, an empty line between them."""
    tty = sys.stdout.isatty()
    # A table wider than the terminal is folded by it; cut off, figures would be lost.
    console = Console(file=io.StringIO(), force_terminal=tty, width=WIDEST, highlight=False, legacy_windows=False)
    narrow = min(WIDTH, Console().width) if tty else WIDTH
    blocks = []
    for part in parts:
        with console.capture() as captured:
            if isinstance(part, Rows) and part.title:
                console.print(Text(part.title, style=STRONG))
            console.print(_table(part) if isinstance(part, Rows) else _paragraph(part, narrow))
        blocks.append("\n".join(line.rstrip() for line in captured.get().rstrip().splitlines()))
    return "\n\n".join(blocks)


def held(yes: bool) -> Cell:
    """Return yes or no in its colour."""
    return Cell("yes", GOOD) if yes else Cell("no", BAD)


def _table(part: Rows) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style=STRONG)
    for name in part.header:
        right = name.endswith(">")
        table.add_column(name.removesuffix(">"), justify="right" if right else "left", no_wrap=True)
    for i, row in enumerate(part.rows):
        cells = [_text(cell) for cell in row]
        table.add_row(*cells, style=STRONG if i in part.marked else None)
    return table


def _text(cell: str | Cell) -> Text:
    return Text(cell) if isinstance(cell, str) else Text(cell.text, style=cell.style)


def _paragraph(part: Words, width: int) -> RenderableType:
    text = Text(overflow="fold")
    if part.lead:
        text.append(f"{part.lead} ", style=STRONG)
    text.append(part.text, style=part.style)
    return Text("\n").join(text.wrap(Console(width=width, file=io.StringIO()), width))
