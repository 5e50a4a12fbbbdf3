"""The words in which a member's first process is told what to do: see init.py. Pure."""

from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class MemberService:
    """A program to keep running; `gate` is a command that must succeed before its first start."""

    name: str
    argv: list[str]
    gate: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CgroupWrites:
    """What a member's first process writes to control-group files, as (file, text), to enter its groups."""

    join: list[tuple[str, str]]
    """Before it leaves the machine's namespaces: the groups it is in then are the roots of what it sees later."""
    split: list[tuple[str, str]] = field(default_factory=list)
    """Right afterwards."""


@dataclass(frozen=True)
class MemberSpec:
    """All that init.py is told about one member."""

    hostname: str
    record: str
    log_dir: str
    cgroup_writes: CgroupWrites
    setup: list[list[str]]
    services: list[MemberService]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def private_mounts() -> list[list[str]]:
    """Commands that give a member its own /proc, /run and read-only kernel settings.

    A kubelet sets vm.overcommit_memory, kernel.panic and others, which belong to the whole machine; only
    the settings below net/ belong to the network namespace and stay writable.
    """
    return [
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "proc", "proc", "/proc"],
        ["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"],
        ["mkdir", "-p", "/run/lock", "/run/proc"],
        ["mount", "-t", "proc", "proc", "/run/proc"],
        ["mount", "--bind", "/proc/sys", "/proc/sys"],
        ["mount", "-o", "remount,bind,ro", "/proc/sys"],
        ["mount", "--bind", "/run/proc/sys/net", "/proc/sys/net"],
        ["umount", "/run/proc"],
        ["rmdir", "/run/proc"],
        ["ip", "link", "set", "lo", "up"],
    ]


def sys_mounts(cgroup_mounts: list[list[str]]) -> list[list[str]]:
    """Commands that mount /sys and the control groups anew.

    Fresh mounts, made inside the new control-group namespace, have the member's own group as their root.
    """
    return [["umount", "-R", "/sys"], ["mount", "-t", "sysfs", "sysfs", "/sys"], *cgroup_mounts]


def bind(source: Path, target: str) -> list[str]:
    return ["mount", "--bind", str(source), target]
