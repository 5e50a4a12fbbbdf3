"""Show how far long work is, and how long it will take, on stderr of a terminal; elsewhere only what takes long."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click

from weft_planner.stages import COMPILING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


class ProgressReporter(Protocol):
    """Shows how far a command is."""

    def __call__(self, what: str, done: int, total: int, /) -> None:
        """Show that so many of the steps of something are through."""
        ...

    def say(self, text: str) -> None:
        """Write a text that stays, above what moves."""
        ...


class _Lines:
    """Writes to a file or a pipe: one line where somebody would wonder why nothing happens."""

    def __call__(self, what: str, done: int, total: int, /) -> None:
        if what == COMPILING and done < total:
            click.echo(f"weft: {what}", err=True)

    def say(self, text: str) -> None:
        click.echo(text, err=True)


class _Moving:
    """Moves a bar for each thing that is done."""

    def __init__(self, bars: "Bars") -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int, /) -> None:
        if what not in self._tasks:
            for earlier in self._bars.tasks:  # one thing is done after the other
                self._bars.update(earlier.id, completed=earlier.total)
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done, total=total)

    def say(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def show_progress() -> Iterator[ProgressReporter]:
    """Yield a reporter; its bars are removed from the terminal afterwards."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _Moving(bars)
