"""Control groups version 2: one group in the unified hierarchy.

A group whose children have controllers may hold no process itself (the kernel's "no internal processes" rule). So the
cluster's group hangs below a group that holds none, and the first process of a node moves into a leaf beside the groups
that its kubelet makes.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from weft_e2e.cluster.cgroups import tree
from weft_e2e.cluster.errors import ClusterError, Refused
from weft_e2e.cluster.specs import CgroupWrites

NEEDED = ("cpu", "cpuset", "io", "memory", "pids")
ENABLE = " ".join(f"+{name}" for name in NEEDED)
DISABLE = " ".join(f"-{name}" for name in NEEDED)
LEAF = "weft-processes"
"""Holds the processes of a group that had to be emptied for a cluster, and of a member beside its containers."""
ROUNDS = 100  # of moving processes that may start others meanwhile


@dataclass(frozen=True)
class CgroupV2:
    """The unified hierarchy as this process sees it: its own group, and the uppermost one that is mounted."""

    own: Path
    top: Path

    def controllers(self) -> set[str]:
        """Return the controllers of the uppermost group; none where version 1 holds them."""
        return _controllers(self.top)

    def place(self) -> Path:
        """Return the group that a cluster's group may be made in; raise Refused where there is none.

        It is the nearest one from the own group upwards that has the controllers and holds no process, or is the root
        of the hierarchy, which may hold some. A delegated subtree is never left: where no group in it will do, it is
        the subtree's own, which `create` empties.
        """
        line = self._own_and_above()
        fit = [group for group in line if not _missing(group)]
        free = [group for group in fit if _is_root(group) or not tree.processes_of(group)]
        if found := [*free, *fit[-1:]]:
            if not os.access(found[0], os.W_OK):
                raise Refused(
                    f"the control groups at {found[0]} are read-only, and the local cluster needs groups of its own: "
                    "start a container with `--privileged --cgroupns=private`"
                )
            return found[0]
        raise Refused(_advice(line[-1]))

    def create(self, cluster: str, member: str) -> CgroupWrites:
        """Make the member's group with a leaf for its own processes."""
        there = tree.find(cluster)
        parent = there[0].parent if there else self.place()
        with _locked(parent):
            if not _is_root(parent):
                _move_processes(parent, parent / LEAF)
            _enable(parent)
            group = parent / cluster
            group.mkdir(exist_ok=True)
            _enable(group)
            leaf = group / member / LEAF
            leaf.mkdir(parents=True, exist_ok=True)
        # It enters the member's group first, so that this one becomes the root of its control-group namespace.
        return CgroupWrites(
            join=[(str(leaf.parent / "cgroup.procs"), "0")],
            split=[(str(leaf / "cgroup.procs"), "0"), (str(leaf.parent / "cgroup.subtree_control"), ENABLE)],
        )

    def mounts(self) -> list[list[str]]:
        """Return the command that mounts the hierarchy where programs look for it."""
        return [["mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup"]]

    def _own_and_above(self) -> list[Path]:
        line = []
        for group in (self.own, *self.own.parents):
            line.append(group)
            if group == self.top or _is_delegated(group):
                break
        return line


def parse_unified(mountinfo: str, own_groups: str) -> CgroupV2 | None:
    """Return the unified hierarchy in /proc/self/mountinfo, with the place that /proc/self/cgroup names."""
    mounted = [line.partition(" - ")[0].split()[3:5] for line in mountinfo.splitlines() if " - cgroup2 " in line]
    own = next((line.removeprefix("0::") for line in own_groups.splitlines() if line.startswith("0::")), None)
    if not mounted or own is None:
        return None
    # It may be mounted more than once; programs look for it at the usual place.
    root, point = next((found for found in mounted if found[1] == "/sys/fs/cgroup"), mounted[0])
    top = Path(point)
    prefix = root.rstrip("/")
    if ".." in Path(own).parts or ".." in Path(root).parts or not f"{own}/".startswith(f"{prefix}/"):
        return CgroupV2(top, top)  # the own group lies outside of what is mounted, or cannot be named from here
    return CgroupV2(top / own.removeprefix(prefix).lstrip("/"), top)


def merge(parent: Path) -> None:
    """Undo what `create` did to a group that it emptied, once no cluster and no other group needs that any more."""
    leaf = parent / LEAF
    if not leaf.is_dir():
        return
    with _locked(parent):
        if [entry.name for entry in parent.iterdir() if entry.is_dir()] != [LEAF]:
            return
        (parent / "cgroup.subtree_control").write_text(DISABLE)
        _move_processes(leaf, parent)
        leaf.rmdir()


def _controllers(group: Path) -> set[str]:
    try:
        return set((group / "cgroup.controllers").read_text().split())
    except OSError:
        return set()


def _missing(group: Path) -> list[str]:
    return sorted(set(NEEDED) - _controllers(group))


def _is_root(group: Path) -> bool:
    """Return whether the group is the root of the whole hierarchy, not only of a namespace."""
    return not (group / "cgroup.type").exists()


def _is_delegated(group: Path) -> bool:
    """Return whether systemd has marked the group as somebody's own subtree (Delegate=yes)."""
    for name in ("trusted.delegate", "user.delegate"):
        with suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def _enable(group: Path) -> None:
    try:
        (group / "cgroup.subtree_control").write_text(ENABLE)
    except OSError as error:
        raise ClusterError(f"controllers cannot be enabled in the control group {group}: {error}") from error


def _move_processes(source: Path, target: Path) -> None:
    """Move the processes of one group into another, which is made where it is missing."""
    for _ in range(ROUNDS):
        pids = tree.processes_of(source)
        if not pids:
            return
        target.mkdir(exist_ok=True)
        for pid in pids:
            try:
                (target / "cgroup.procs").write_text(str(pid))
            except ProcessLookupError:
                continue
    raise ClusterError(f"the control group {source} keeps getting new processes: {sorted(pids)[:10]}")


@contextmanager
def _locked(group: Path) -> Iterator[None]:
    """Hold a group against other clusters that begin or end in it; they do so within milliseconds."""
    descriptor = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _advice(group: Path) -> str:
    lacking = (
        f"the local cluster needs the controllers {', '.join(NEEDED)} of control groups version 2, and {group} lacks "
        f"{', '.join(_missing(group))}"
    )
    if _is_root(group):
        return (
            f"{lacking}: remove cgroup_disable= and cgroup_no_v1= from the kernel's command line (a Raspberry Pi needs "
            "cgroup_enable=memory there), and unmount the version 1 hierarchies that hold them"
        )
    return (
        f"{lacking}, for it is only a part of the hierarchy: have them delegated to it (systemd: Delegate=yes for the "
        "unit, or run the command outside of it; a container: --privileged --cgroupns=private)"
    )
