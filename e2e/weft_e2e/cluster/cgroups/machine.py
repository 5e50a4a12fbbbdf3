"""The control groups of this machine: which version it offers to a cluster, and the end of a cluster's own."""

import time
from typing import Protocol

from weft_e2e.cluster.cgroups import tree, v1, v2
from weft_e2e.cluster.errors import Refused
from weft_e2e.cluster.specs import CgroupWrites


class ControlGroups(Protocol):
    """What the two versions have in common."""

    def create(self, cluster: str, member: str) -> CgroupWrites:
        """Make the member's groups; return what its first process writes to enter them."""
        ...

    def mounts(self) -> list[list[str]]:
        """Return commands that mount the groups in a member's new /sys, its own group as their root."""
        ...


def detect() -> ControlGroups:
    """Return the control groups that a cluster can use here; raise Refused where containers would lack controllers.

    A machine may have both versions mounted (hybrid). A controller belongs to one of them at a time: the version that
    has those that containers need is the one to use.
    """
    mountinfo, own_groups = (tree.PROC / "mountinfo").read_text(), (tree.PROC / "cgroup").read_text()
    older = v1.CgroupV1(tuple(v1.parse_hierarchies(mountinfo, own_groups)))
    absent = older.missing()
    if not absent:
        return older
    unified = v2.parse_unified(mountinfo, own_groups)
    if unified is not None and (absent == v1.NEEDED or unified.controllers() & set(v2.NEEDED)):
        unified.place()  # raises Refused
        return unified
    if absent == v1.NEEDED:
        raise Refused(
            "the local cluster needs control groups, and none are mounted: mount version 2 by "
            "`mount -t cgroup2 cgroup2 /sys/fs/cgroup`"
        )
    raise Refused(
        f"the local cluster needs control groups, and version 1 on this machine lacks {', '.join(sorted(absent))}: "
        "mount these below /sys/fs/cgroup, or boot with version 2 alone (systemd.unified_cgroup_hierarchy=1)"
    )


def destroy(cluster: str, member: str = "", *, limit_s: float = 30.0) -> None:
    """Kill every process in the cluster's (or one member's) groups and remove the groups."""
    deadline = time.monotonic() + limit_s
    groups = tree.find(cluster, member)
    tree.kill(groups, deadline=deadline)
    for group in groups:
        tree.remove(group, deadline=deadline)
        v2.merge(group.parent)
