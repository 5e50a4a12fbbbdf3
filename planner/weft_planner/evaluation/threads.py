"""Share simulations among threads: the event loop holds no lock of Python's, and order and results stay the same."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

THREADS = min(8, os.cpu_count() or 1)
CORES: Final = threading.BoundedSemaphore(THREADS)
"""Held by a simulation while it runs, where tasks share their own work in turn: more at a time only take memory."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield the result for each item, in their order; a task may share its own work, too."""
    if len(items) < 2 or THREADS == 1:
        yield from map(task, items)
        return
    pool = ThreadPoolExecutor(THREADS)
    try:
        yield from pool.map(task, items)
    finally:
        pool.shutdown(cancel_futures=True)
