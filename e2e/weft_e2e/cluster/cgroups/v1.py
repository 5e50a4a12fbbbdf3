"""Control groups version 1: one directory per hierarchy, below the caller's own group."""

from dataclasses import dataclass
from pathlib import Path

from weft_e2e.cluster.specs import CgroupWrites

NEEDED = frozenset({"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids"})


@dataclass(frozen=True)
class Hierarchy:
    """One mounted version 1 hierarchy and the caller's own group in it."""

    mount_point: Path
    options: str  # the controllers, as `mount -t cgroup -o` wants them
    own: Path


@dataclass(frozen=True)
class CgroupV1:
    """The version 1 hierarchies of a machine."""

    hierarchies: tuple[Hierarchy, ...]

    def missing(self) -> set[str]:
        """Return the controllers that containers need and no hierarchy has."""
        return set(NEEDED) - {controller for found in self.hierarchies for controller in found.options.split(",")}

    def create(self, cluster: str, member: str) -> CgroupWrites:
        """Make the member's group in every hierarchy."""
        groups = []
        for hierarchy in self.hierarchies:
            group = hierarchy.own
            for name in (cluster, member):
                parent, group = group, group / name
                group.mkdir(exist_ok=True)
                if "cpuset" in hierarchy.options.split(","):
                    # A new cpuset is empty, and no process may join it before it is filled.
                    for file in ("cpuset.cpus", "cpuset.mems"):
                        (group / file).write_text((parent / file).read_text())
            groups.append(group)
        return CgroupWrites(join=[(str(group / "cgroup.procs"), "0") for group in groups])

    def mounts(self) -> list[list[str]]:
        """Return commands that mount the hierarchies in a new /sys/fs/cgroup.

        A bind mount of the old ones would keep the machine's root, and runc then looks for groups that are not there.
        """
        commands = [["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/sys/fs/cgroup"]]
        for hierarchy in self.hierarchies:
            commands += [
                ["mkdir", "-p", str(hierarchy.mount_point)],
                ["mount", "-t", "cgroup", "-o", hierarchy.options, "cgroup", str(hierarchy.mount_point)],
            ]
        return commands


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
