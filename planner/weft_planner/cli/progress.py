"""Show how far long work is, and how long it will take, on stderr of a terminal; write nothing elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Told what is being done, and how many of how many steps are through."""


@contextmanager
def shown() -> Iterator[Progress]:
    """Give a function to tell progress to; its lines are gone from the terminal afterwards."""
    if not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
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
        tasks: dict[str, int] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = int(bars.add_task(what, total=total))
            bars.update(bars.task_ids[list(tasks).index(what)], completed=done, total=total)

        yield tell
