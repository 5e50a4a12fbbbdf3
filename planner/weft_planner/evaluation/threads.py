"""Share simulations among threads: the event loop holds no lock of Python's, and order and results stay the same."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREADS = min(8, os.cpu_count() or 1)

Item = TypeVar("Item")
Result = TypeVar("Result")

_thread = threading.local()


def in_threads(task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield the result for each item, in their order; a task that shares its own work does so within its thread."""
    if len(items) < 2 or THREADS == 1 or getattr(_thread, "shared", False):
        yield from map(task, items)
        return
    pool = ThreadPoolExecutor(THREADS, initializer=_mark_thread)
    try:
        yield from pool.map(task, items)
    finally:
        pool.shutdown(cancel_futures=True)


def _mark_thread() -> None:
    _thread.shared = True
