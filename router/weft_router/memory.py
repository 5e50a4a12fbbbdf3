"""Tell how much memory this process may take: its control group's limit, its own, else the machine's."""

import os
import resource
from pathlib import Path
from typing import Final

SHARE: Final = 4
"""Clients may make a process hold one part of so many: beside what is counted for a body there are the copies of the
step that it is in, what the collector has not come to yet, and the process itself (70 to 100 MB)."""
_NO_LIMIT: Final = 1 << 60
"""What control groups of the first version say where there is none is about this."""


def bytes_in_flight(given: int | None, *, processes: int, limit: int) -> int:
    """Return how many bytes the clients of one process may make it hold, of those that share a limit on memory."""
    return given if given is not None else max(1, limit // SHARE // processes)


def memory_limit(root: Path = Path("/")) -> int:
    """Return the smallest of the limits that hold for this process; bytes."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_control_groups(root)]
    for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS):
        soft = resource.getrlimit(kind)[0]
        if soft != resource.RLIM_INFINITY:
            limits.append(soft)
    return min(limits)


def _control_groups(root: Path) -> list[int]:
    """Return the limits of this process's control group and of those above it, of either version."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = Path(path.lstrip("/"))
        # In a container its own group is often mounted at the top, whatever its path is outside.
        found += [_limit(top / each / name) for each in (group, *group.parents) if ".." not in each.parts]
    return [limit for limit in found if limit is not None]


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and 0 < int(text) < _NO_LIMIT else None
