"""Control groups of a cluster: they hold all its processes, and so they are how it is found and ended.

The members' groups are children of one group whose name belongs to the cluster alone; whoever has lost every other
record still finds the processes there. Both versions are served: one group in each hierarchy of version 1 (`v1`), or
one in the unified hierarchy of version 2 (`v2`).
"""

from weft_e2e.cluster.cgroups.machine import ControlGroups, destroy, detect
from weft_e2e.cluster.cgroups.tree import find, processes

__all__ = ["ControlGroups", "destroy", "detect", "find", "processes"]
