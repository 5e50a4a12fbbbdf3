"""Control groups of a cluster: they hold all its processes, and so they are how it is found and ended.

Version 1 only: one directory per hierarchy below the caller's own group. The members' groups are children of
one group whose name belongs to the cluster alone; whoever has lost every other record still finds
the processes there.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from weft_e2e.cluster.errors import ClusterError, Refused

COLLECT_SECONDS = 2.0


@dataclass(frozen=True)
class Hierarchy:
    """One mounted version 1 hierarchy and the caller's own group in it."""

    mount_point: Path
    options: str  # the controllers, as `mount -t cgroup -o` wants them
    own: Path


def parse_hierarchies(mountinfo: str, own_groups: str) -> list[Hierarchy]:
    """Return the version 1 hierarchies in /proc/self/mountinfo, with the places that /proc/self/cgroup names."""
    own: dict[frozenset[str], str] = {}
    for line in own_groups.splitlines():
        _, names, place = line.split(":", 2)
        if names:
            own[frozenset(names.split(","))] = place
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        words = frozenset(options.split(","))
        # The options name the controllers among others (rw, xattr, release_agent=…); /proc/self/cgroup has them alone.
        controllers = next((known for known in own if known <= words), None)
        if kind != "cgroup" or controllers is None:
            continue
        root, mount_point = before.split()[3:5]
        prefix, group = root.rstrip("/"), own[controllers]
        inside = group.removeprefix(prefix) if group.startswith(prefix) else ""
        found.append(
            Hierarchy(Path(mount_point), ",".join(sorted(controllers)), Path(mount_point) / inside.lstrip("/"))
        )
    return found


def hierarchies() -> list[Hierarchy]:
    """Return this machine's hierarchies, or raise Refused where the ones that containers need are not there."""
    found = parse_hierarchies(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
    present = {controller for hierarchy in found for controller in hierarchy.options.split(",")}
    absent = {"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids"} - present
    if absent:
        raise Refused(
            "the local cluster needs control groups version 1 with "
            f"{', '.join(sorted(absent))} mounted below /sys/fs/cgroup (a machine that has only version 2 can use "
            "KUBE_CONTEXT with a cluster of its own instead)"
        )
    return found


def create(cluster: str, member: str, found: list[Hierarchy]) -> list[Path]:
    """Make the member's group in every hierarchy; return the groups."""
    groups = []
    for hierarchy in found:
        group = hierarchy.own
        for name in (cluster, member):
            parent, group = group, group / name
            group.mkdir(exist_ok=True)
            if "cpuset" in hierarchy.options.split(","):
                # A new cpuset is empty, and no process may join it before it is filled.
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (group / file).write_text((parent / file).read_text())
        groups.append(group)
    return groups


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
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [Path(line.split()[4]) for line in lines if line.partition(" - ")[2].startswith("cgroup")]


def processes(groups: list[Path]) -> set[int]:
    """Return every process in the groups and below them."""
    pids: set[int] = set()
    for top in groups:
        for folder, _, _ in os.walk(top):
            try:
                pids.update(int(word) for word in Path(folder, "cgroup.procs").read_text().split())
            except OSError:
                continue  # the group went away meanwhile
    return pids


def destroy(cluster: str, member: str = "", *, limit_s: float = 30.0) -> None:
    """Kill every process in the groups, wait until they are gone, and remove the groups."""
    deadline = time.monotonic() + limit_s
    groups = find(cluster, member)
    ended: set[int] = set()
    while remaining := processes(groups):
        ended |= remaining
        for pid in remaining:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {sorted(remaining)[:10]} of {cluster} did not end within {limit_s:.0f} s")
        time.sleep(0.02)
    for top in groups:
        _remove(top, deadline)
    # They have left their groups; the machine's first process collects them in a moment, if it collects any.
    collected = time.monotonic() + COLLECT_SECONDS
    while any(Path(f"/proc/{pid}").exists() for pid in ended) and time.monotonic() < collected:
        time.sleep(0.01)


def _remove(top: Path, deadline: float) -> None:
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
