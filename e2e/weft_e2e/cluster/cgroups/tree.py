"""Groups as directories, in whatever hierarchy and version they are."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from weft_e2e.cluster.errors import ClusterError

PROC = Path("/proc/self")
COLLECT_SECONDS = 2.0


def find(cluster: str, member: str = "") -> list[Path]:
    """Return the cluster's (or one member's) groups wherever they hang in any hierarchy."""
    found = []
    for mount_point in _mount_points():
        for folder, names, _ in os.walk(mount_point):
            if cluster in names:
                group = Path(folder) / cluster / member
                if group.is_dir():
                    found.append(group)
                names.clear()
    return found


def _mount_points() -> list[Path]:
    lines = (PROC / "mountinfo").read_text().splitlines()
    return [Path(line.split()[4]) for line in lines if line.partition(" - ")[2].startswith("cgroup")]


def processes(groups: list[Path]) -> set[int]:
    """Return every process in the groups and below them."""
    return {pid for top in groups for folder, _, _ in os.walk(top) for pid in processes_of(Path(folder))}


def processes_of(group: Path) -> set[int]:
    """Return the processes in one group, without those below it; none where it went away meanwhile."""
    try:
        pids = {int(word) for word in (group / "cgroup.procs").read_text().split()}
    except OSError:
        return set()
    return pids - {0}  # stands for those that cannot be seen from here; to write or kill it would mean oneself


def kill(groups: list[Path], *, deadline: float) -> None:
    """Kill every process in the groups and wait until all of them are gone."""
    ended: set[int] = set()
    while remaining := processes(groups):
        ended |= remaining
        for group in groups:
            _kill_once(group)
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {sorted(remaining)[:10]} in {groups[0]} did not end in time")
        time.sleep(0.02)
    # They have left their groups; the machine's first process collects them in a moment, if it collects any.
    collected = time.monotonic() + COLLECT_SECONDS
    while any(Path(f"/proc/{pid}").exists() for pid in ended) and time.monotonic() < collected:
        time.sleep(0.01)


def _kill_once(group: Path) -> None:
    """Kill the processes that are in the group now: at once where the kernel (5.14, version 2) does it by itself."""
    switch = group / "cgroup.kill"
    if switch.exists():
        with suppress(OSError):  # the group went away meanwhile
            switch.write_text("1")
        return
    for pid in processes([group]):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def remove(top: Path, *, deadline: float) -> None:
    """Remove a group and all groups below it, deepest first."""
    for folder, _, _ in os.walk(top, topdown=False):
        while True:
            try:
                Path(folder).rmdir()
            except FileNotFoundError:
                break
            except OSError as error:  # busy for a moment after its last process has ended
                if time.monotonic() > deadline:
                    raise ClusterError(f"control group {folder} cannot be removed: {error}") from error
                time.sleep(0.02)
            else:
                break
