"""Turn titles, tables and paragraphs into text: with colours on a terminal, plain and wide enough elsewhere."""

import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

WIDTH = 100
"""Paragraphs are no wider: longer lines are hard to read."""
WIDEST = 240
"""Columns of anything that is written to a file."""
RIGHT, SENTENCES = ">", "~"
"""How names of columns end that are set to the right, and that hold sentences, which are folded."""
GOOD, BAD, NOTICE, QUIET, STRONG = "green", "red", "yellow", "dim", "bold"


@dataclass(frozen=True, slots=True)
class TableCell:
    """A text with a style of its own; ``short`` stands for it where a terminal is narrow."""

    text: str
    style: str = ""
    short: str = ""


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table; ``marked`` rows stand out, names of columns may end in RIGHT or SENTENCES."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | TableCell]]
    title: str = ""
    marked: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ColumnFit:
    """How a table is set: blanks between columns, and short cells."""

    blanks: int = 3
    short: bool = False


FITS = (ColumnFit(), ColumnFit(2), ColumnFit(1), ColumnFit(1, short=True))
"""Ways to set a table, from the roomiest to the narrowest."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph; ``lead`` opens it in bold."""

    text: str
    lead: str = ""
    style: str = ""


Part = TextTable | Paragraph


def text_of(parts: Iterable[Part]) -> str:
    """Return the parts as text, an empty line between them."""
    tty = sys.stdout.isatty()
    room = Console().width if tty else WIDEST
    console = Console(file=io.StringIO(), force_terminal=tty, width=WIDEST, highlight=False, legacy_windows=False)
    blocks = []
    for part in parts:
        with console.capture() as captured:
            if isinstance(part, TextTable):
                if part.title:
                    console.print(Text(part.title, style=STRONG))
                console.print(_table(part, room))
            else:
                console.print(_paragraph(part, min(WIDTH, room)))
        blocks.append("\n".join(line.rstrip() for line in captured.get().rstrip().splitlines()))
    return "\n\n".join(blocks)


def held(yes: bool) -> TableCell:
    """Return yes or no in its colour."""
    return TableCell("yes", GOOD) if yes else TableCell("no", BAD)


def _table(part: TextTable, room: int) -> RenderableType:
    has_sentences = any(name.endswith(SENTENCES) for name in part.header)
    room = min(WIDTH, room) if has_sentences else room
    fit = next(
        (fit for fit in FITS if has_sentences or sum(_natural(part, fit)) <= room - _between(part, fit)), FITS[-1]
    )
    table = Table(box=None, pad_edge=False, padding=(0, fit.blanks, 0, 0), header_style=STRONG)
    for name, width in zip(part.header, _widths(part, fit, room), strict=True):
        justify: JustifyMethod = "right" if name.endswith(RIGHT) else "left"
        table.add_column(_name(name), justify=justify, width=width, overflow="fold")
    for i, row in enumerate(part.rows):
        texts = [Text(_shown(cell, fit), style=cell.style if isinstance(cell, TableCell) else "") for cell in row]
        table.add_row(*texts, style=STRONG if i in part.marked else None)
    return table


def _widths(part: TextTable, fit: ColumnFit, room: int) -> list[int]:
    """Return the columns' widths: folded where nothing else fits, headers first, for cut off, figures would be lost."""
    widths = _natural(part, fit)
    least = [
        max(_longest_word(_name(name)), *(map(len if name.endswith(RIGHT) else _longest_word, cells)))
        for name, cells in zip(part.header, _columns(part, fit), strict=True)
    ]
    excess = sum(widths) + _between(part, fit) - room
    for right in (True, False):
        columns = [k for k, name in enumerate(part.header) if name.endswith(RIGHT) == right]
        while excess > 0 and (wide := [k for k in columns if widths[k] > least[k]]):
            widths[max(wide, key=lambda k: widths[k])] -= 1
            excess -= 1
    return widths


def _natural(part: TextTable, fit: ColumnFit) -> list[int]:
    """Return the widths of columns of which nothing is folded."""
    columns = zip(part.header, _columns(part, fit), strict=True)
    return [max(len(text) for text in (_name(name), *cells)) for name, cells in columns]


def _columns(part: TextTable, fit: ColumnFit) -> list[list[str]]:
    return [[_shown(row[place], fit) for row in part.rows] or [""] for place in range(len(part.header))]


def _between(part: TextTable, fit: ColumnFit) -> int:
    return fit.blanks * (len(part.header) - 1)


def _longest_word(text: str) -> int:
    return max((len(word) for word in text.split()), default=0)


def _name(header: str) -> str:
    return header.removesuffix(RIGHT).removesuffix(SENTENCES)


def _shown(cell: str | TableCell, fit: ColumnFit) -> str:
    if isinstance(cell, str):
        return cell
    return cell.short if fit.short and cell.short else cell.text


def _paragraph(part: Paragraph, width: int) -> RenderableType:
    text = Text(overflow="fold")
    if part.lead:
        text.append(f"{part.lead} ", style=STRONG)
    text.append(part.text, style=part.style)
    return Text("\n").join(text.wrap(Console(width=width, file=io.StringIO()), width))
