"""CPU time as a multiple of what known work takes on the same machine: machines differ, and so do their busy hours."""

from collections.abc import Callable
from time import process_time


def least_seconds(work: Callable[[], object], *, times: int = 5) -> float:
    """Return the CPU time of the fastest of several calls; seconds."""
    found = []
    for _ in range(times):
        start = process_time()
        work()
        found.append(process_time() - start)
    return min(found)


def reference_seconds() -> float:
    """Return the CPU time of work that computes and allocates as parsing does: about 30 ms on a core of 2024."""
    return least_seconds(_reference)


def _reference() -> None:
    sum(range(1_000_000))
    {n: [n] for n in range(100_000)}
