"""What a cluster occupies on the machine, so that a test can show that all of it is gone.

Others use the machine meanwhile, so the comparison is by identity: of the cluster's own processes, namespaces
and control groups nothing may be left, and the machine's own mounts, links, routes, packet filters and kernel
settings are as before.
"""

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from weft_e2e.cluster import cgroups
from weft_e2e.cluster.paths import ClusterPaths

KINDS = ("cgroup", "ipc", "mnt", "net", "pid", "uts")
BUILDS = ("/var/lib/containers/", "/var/tmp/")  # where image builds, which may run meanwhile, mount their layers
SETTINGS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")


@dataclass(frozen=True)
class Occupied:
    """A cluster's processes (number, start time) and the namespaces that only they are in.

    The kernel gives a namespace's number to the next one once it is gone: it counts only for processes that
    started up to `taken` (in ticks since the machine's start, as in /proc/PID/stat). Later ones of the cluster
    are found by its control groups.
    """

    processes: frozenset[tuple[int, str]]
    namespaces: frozenset[str]
    taken: int


@dataclass(frozen=True)
class Machine:
    """What belongs to the machine and must be the same before and after."""

    mounts: tuple[str, ...]
    links: str
    routes: str
    filters: str
    settings: tuple[str, ...]


def occupied(name: str) -> Occupied:
    """Return what the cluster occupies now."""
    pids = cgroups.processes(cgroups.find(ClusterPaths.of(name).cgroup))
    own = frozenset(link for kind in KINDS if (link := _namespace("self", kind)))
    namespaces = frozenset(link for pid in pids for kind in KINDS if (link := _namespace(pid, kind)))
    processes = frozenset((pid, start) for pid in pids if (start := _start_time(pid)))
    taken = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    return Occupied(processes, namespaces - own, taken)


def machine() -> Machine:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return Machine(
        mounts=tuple(line for line in mounts if not line.split()[4].startswith(BUILDS)),
        links=_output("ip", "-brief", "link"),
        routes=_output("ip", "route"),
        filters="".join(line for line in _output("iptables-save").splitlines(keepends=True) if line[0] not in "#:"),
        settings=tuple(Path("/proc/sys", name).read_text() for name in SETTINGS),
    )


def survivors(before: Occupied) -> list[str]:
    """Return the processes of `before` that are still alive."""
    return [f"process {pid}: {_command(pid)}" for pid, start in before.processes if _start_time(pid) == start]


def leftovers(name: str, before: Occupied) -> list[str]:
    """Return everything of a cluster that is still there, in words; `before` was taken while it ran."""
    paths = ClusterPaths.of(name)
    found = survivors(before)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        held = {_namespace(entry.name, kind) for kind in KINDS} & before.namespaces
        if held and int(_start_time(entry.name) or before.taken + 1) <= before.taken:
            found.append(f"process {entry.name} ({_command(entry.name)}) in {sorted(held)}")
        if str(paths.root) in _command(entry.name):
            found.append(f"process {entry.name} with the cluster's files: {_command(entry.name)}")
        if f"/{paths.cgroup}/" in _read(entry / "cgroup"):
            found.append(f"process {entry.name} in the cluster's control groups")
    found += [f"control group {group}" for group in cgroups.find(paths.cgroup)]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line}" for line in mounts if str(paths.root) in line or " - nsfs " in line]
    if paths.root.exists():
        found.append(f"files in {paths.root}")
    return found


def _namespace(pid: int | str, kind: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    except OSError:
        return ""


def _start_time(pid: int | str) -> str:
    """Return the start time of a process that is alive, else ""."""
    words = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return words[19] if words and words[0] not in "ZX" else ""


def _command(pid: int | str) -> str:
    return _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ").strip()


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _output(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=20).stdout
