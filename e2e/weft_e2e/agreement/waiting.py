"""Tell how long processes were ready to run and got no core: what a busy machine adds to everything measured on it."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def core_wait_s(pids: Iterable[int]) -> float | None:
    """Return the seconds that all threads of some processes have waited for a core; None where Linux does not count."""
    total, found = 0, False
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError, IndexError, ValueError):  # a thread may end at any time
                total += int(task.read_text().split()[1])
                found = True
    return total / 1e9 if found else None
