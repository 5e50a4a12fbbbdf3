"""The memory that a process may take: what its control group says, of either version, else what the machine has."""

import os
import resource
from pathlib import Path

import pytest

from weft_router.memory import bytes_in_flight, memory_limit

MIB = 2**20
MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def grouped(root: Path, cgroup: str, limits: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": cgroup, **limits}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "limits", "found"),
    [
        ("0::/\n", {"sys/fs/cgroup/memory.max": "536870912\n"}, 512 * MIB),
        ("0::/kubepods/pod1/c1\n", {"sys/fs/cgroup/memory.max": "536870912\n"}, 512 * MIB),
        (
            "0::/kubepods/pod1/c1\n",
            {
                "sys/fs/cgroup/kubepods/pod1/c1/memory.max": "max\n",
                "sys/fs/cgroup/kubepods/pod1/memory.max": "268435456\n",
                "sys/fs/cgroup/kubepods/memory.max": "1073741824\n",
            },
            256 * MIB,
        ),
        (
            "5:cpu,cpuacct:/a\n9:memory:/kubepods/c1\n",
            {"sys/fs/cgroup/memory/memory.limit_in_bytes": "134217728\n"},
            128 * MIB,
        ),
        ("9:memory:/\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "max\n"}, MACHINE),
        ("0::/../../x\n", {"sys/fs/cgroup/memory.max": "junk\n"}, MACHINE),
        ("junk\n:::\n", {}, MACHINE),
    ],
)
def test_the_smallest_limit_of_its_groups_holds(
    tmp_path: Path, cgroup: str, limits: dict[str, str], found: int
) -> None:
    assert memory_limit(grouped(tmp_path, cgroup, limits)) == min(found, memory_limit(tmp_path / "none"))


def test_without_groups_the_machine_is_the_limit_or_what_the_process_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert memory_limit(tmp_path) == MACHINE
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64 * MIB, resource.RLIM_INFINITY))
    assert memory_limit(tmp_path) == 64 * MIB


def test_clients_may_fill_a_quarter_that_the_processes_share_or_what_is_said() -> None:
    assert bytes_in_flight(None, processes=1, limit=512 * MIB) == 128 * MIB
    assert bytes_in_flight(None, processes=4, limit=512 * MIB) == 32 * MIB
    assert bytes_in_flight(1000, processes=4, limit=512 * MIB) == 1000
