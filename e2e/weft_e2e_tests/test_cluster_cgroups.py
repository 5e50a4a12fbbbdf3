"""Control groups of both versions: found where machines have them, made, killed and removed by the kernel's rules."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_e2e.cluster import cgroups
from weft_e2e.cluster.cgroups import tree
from weft_e2e.cluster.cgroups.v1 import CgroupV1, Hierarchy, parse_hierarchies
from weft_e2e.cluster.cgroups.v2 import LEAF, NEEDED, CgroupV2, parse_unified
from weft_e2e.cluster.errors import ClusterError, Refused
from weft_e2e.cluster.specs import CgroupWrites, sys_mounts
from weft_e2e_tests.fake_cgroup2 import CALLER, FakeCgroup2

ALL = "cpuset cpu io memory hugetlb pids rdma misc"
OTHER = CALLER + 1
SYSTEMD = "0::/user.slice/user-1000.slice/session-3.scope\n"
UNIFIED = "35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"

V1 = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/x,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V1_OWN = "9:name=systemd:/user\n4:memory:/docker/abc/deep\n1:cpu,cpuacct:/\n0::/\n"
V1_REST = "".join(
    f"{number} 31 0:{number} / /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}\n"
    for number, name in enumerate(("cpuset", "devices", "freezer", "pids"), 50)
)
V1_REST_OWN = "5:cpuset:/\n6:devices:/\n7:freezer:/\n8:pids:/\n"


def test_hierarchies_of_version_1_are_found_below_the_callers_own_groups() -> None:
    assert parse_hierarchies(V1, V1_OWN) == [
        Hierarchy(Path("/sys/fs/cgroup/cpu,cpuacct"), "cpu,cpuacct", Path("/sys/fs/cgroup/cpu,cpuacct")),
        Hierarchy(Path("/sys/fs/cgroup/memory"), "memory", Path("/sys/fs/cgroup/memory/deep")),
        Hierarchy(Path("/sys/fs/cgroup/systemd"), "name=systemd", Path("/sys/fs/cgroup/systemd/user")),
    ]


@given(st.text())
def test_any_line_of_own_groups_leaves_only_known_hierarchies(noise: str) -> None:
    lines = [f"5:{word}:/x" for word in noise.split() if ":" not in word and "\n" not in word]
    found = parse_hierarchies(V1, "\n".join([*lines, *V1_OWN.splitlines()]))
    assert {hierarchy.options for hierarchy in found} >= {"memory", "name=systemd"}


def test_control_groups_are_mounted_anew_with_their_own_options() -> None:
    older = CgroupV1(tuple(parse_hierarchies(V1, V1_OWN)))
    commands = [" ".join(command) for command in sys_mounts(older.mounts())]
    assert "mount -t cgroup -o cpu,cpuacct cgroup /sys/fs/cgroup/cpu,cpuacct" in commands
    assert commands[0] == "umount -R /sys"
    unified = CgroupV2(Path("/mnt/elsewhere"), Path("/mnt/elsewhere"))
    assert sys_mounts(unified.mounts())[2:] == [["mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup"]]


CONTAINER = "812 811 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"
BOUND = "812 811 0:30 /system.slice/docker-1f.scope /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw\n"
ABOVE = "812 811 0:30 /../.. /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw\n"


@pytest.mark.parametrize(
    ("mountinfo", "own_groups", "own"),
    [
        pytest.param(UNIFIED, "0::/\n", "", id="no systemd: all processes are at the root"),
        pytest.param(UNIFIED, SYSTEMD, "user.slice/user-1000.slice/session-3.scope", id="a session of systemd"),
        pytest.param(UNIFIED, "0::/system.slice/run-r7.scope\n", "system.slice/run-r7.scope", id="systemd-run --scope"),
        pytest.param(CONTAINER, "0::/\n", "", id="a container with a namespace of its own"),
        pytest.param(CONTAINER, "0::/weft-processes\n", "weft-processes", id="the same, emptied for a cluster"),
        pytest.param(BOUND, "0::/system.slice/docker-1f.scope/x\n", "x", id="a container in the machine's namespace"),
        pytest.param(BOUND, "0::/system.slice/docker-1f.scope\n", "", id="the same, at its top"),
        pytest.param(BOUND, "0::/system.slice/docker-1f.scope-2\n", "", id="a sibling whose name begins alike"),
        pytest.param(CONTAINER, "0::/../../user.slice\n", "", id="entered from outside, as by nsenter"),
        pytest.param(ABOVE, "0::/\n", "", id="mounted before the namespace was left"),
    ],
)
def test_the_callers_own_group_of_version_2(mountinfo: str, own_groups: str, own: str) -> None:
    top = Path("/sys/fs/cgroup")
    assert parse_unified("22 27 0:21 / /proc rw - proc proc rw\n" + mountinfo, own_groups) == CgroupV2(top / own, top)


def test_the_usual_place_is_taken_where_version_2_is_mounted_twice() -> None:
    other = UNIFIED.replace("/sys/fs/cgroup", "/var/lib/x/cgroup")
    found = parse_unified(other + UNIFIED, "0::/a\n")
    assert found is not None
    assert found.top == Path("/sys/fs/cgroup")
    assert parse_unified("22 27 0:21 / /proc rw - proc proc rw\n", "0::/\n") is None
    assert parse_unified(UNIFIED, V1_REST_OWN) is None, "a kernel that knows no version 2"


def machine(
    tmp_path: Path, patch: pytest.MonkeyPatch, *, controllers: str = ALL, own: str = "/", real_root: bool = True
) -> FakeCgroup2:
    """Return a machine with version 2 alone, on which the caller is in the group `own`."""
    fake = FakeCgroup2(tmp_path / "cgroup")
    fake.install(patch, controllers=controllers, real_root=real_root)
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "mountinfo").write_text(UNIFIED.replace("/sys/fs/cgroup", str(fake.root)))
    patch.setattr(tree, "PROC", proc)
    move_caller(fake, own)
    return fake


def move_caller(fake: FakeCgroup2, own: str) -> None:
    """Write down that the caller is in a group, as its kernel does when it moves."""
    (tree.PROC / "cgroup").write_text(f"0::{own}\n")


def enter(writes: CgroupWrites) -> None:
    """Do what a member's first process does: the kernel's rules refuse a wrong order."""
    for file, text in [*writes.join, *writes.split]:
        Path(file).write_text(text)


def start(fake: FakeCgroup2, member: str, pid: int, cluster: str = "weft-x") -> Path:
    """Start a member whose first process is `pid`; return its group."""
    writes = cgroups.detect().create(cluster, member)
    group = Path(writes.join[0][0]).parent
    starting = fake.group("starting", CALLER)
    enter(writes)
    leaf = group / LEAF
    assert fake.processes(leaf) == {CALLER}
    fake.group(str(leaf.relative_to(fake.root)), pid)
    starting.rmdir()
    return group


def test_a_member_gets_a_leaf_of_its_own_beside_its_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = machine(tmp_path, monkeypatch)
    fake.group("", OTHER)
    for number, member in enumerate(("control-plane", "node-1")):
        assert start(fake, member, 6_000_000 + number) == fake.root / "weft-x" / member
    assert fake.processes(fake.root) == {OTHER}, "the root of the hierarchy may hold processes: none is moved"
    # What a kubelet does: all that containers need is there.
    containers = fake.group("weft-x/node-1/kubepods", enabled=" ".join(NEEDED))
    fake.group("weft-x/node-1/kubepods/pod", 6_000_010)
    assert tree.processes(cgroups.find("weft-x", "node-1")) == {6_000_001, 6_000_010}

    cgroups.destroy("weft-x", "node-1")
    assert not containers.parent.exists()
    assert cgroups.find("weft-x") == [fake.root / "weft-x"]
    cgroups.destroy("weft-x")
    assert [entry.name for entry in fake.root.iterdir() if entry.is_dir()] == []
    assert fake.processes(fake.root) == {OTHER}


def test_below_systemd_the_group_hangs_beside_the_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = machine(tmp_path, monkeypatch, own="/user.slice/user-1000.slice/session-3.scope")
    fake.group("", enabled="cpu memory pids")
    fake.group("user.slice", enabled="memory pids")
    fake.group("user.slice/user-1000.slice", enabled="memory pids")
    session = fake.group("user.slice/user-1000.slice/session-3.scope", OTHER)
    assert start(fake, "node-1", 6_000_000) == fake.root / "weft-x/node-1", "only the root has cpuset and io"
    fake.group("", enabled=ALL)
    assert start(fake, "node-1", 6_000_000, "weft-y") == fake.root / "user.slice/weft-y/node-1"
    assert fake.processes(session) == {OTHER}


def test_a_node_that_is_switched_on_from_another_session_joins_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = machine(tmp_path, monkeypatch, own="/jobs/one")
    fake.group("", enabled=ALL)
    fake.group("jobs/one", OTHER)
    start(fake, "node-1", 6_000_000)
    cgroups.destroy("weft-x", "node-1")
    move_caller(fake, "/")
    assert start(fake, "node-1", 6_000_000) == fake.root / "jobs/weft-x/node-1"


@pytest.mark.parametrize("kind", ["systemd's scope", "container"])
def test_a_delegated_subtree_is_emptied_and_filled_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = kind == "container"
    own = "/" if container else "/system.slice/run-r7.scope"
    fake = machine(tmp_path, monkeypatch, own=own, real_root=not container)
    if not container:
        fake.group("", enabled=ALL)
        fake.group("system.slice", enabled=ALL)
    scope = fake.group(own[1:], OTHER, CALLER + 2, delegated=not container)

    assert start(fake, "node-1", 6_000_000) == scope / "weft-x/node-1"
    assert fake.processes(scope) == set()
    assert fake.processes(scope / LEAF) == {OTHER, CALLER + 2}
    move_caller(fake, f"{own.rstrip('/')}/{LEAF}")
    assert start(fake, "node-1", 6_000_001, "weft-y") == scope / "weft-y/node-1"
    cgroups.destroy("weft-x")
    assert fake.processes(scope / LEAF) == {OTHER, CALLER + 2}, "another cluster still needs an empty group"
    cgroups.destroy("weft-y")
    assert fake.processes(scope) == {OTHER, CALLER + 2}
    assert [entry.name for entry in scope.iterdir() if entry.is_dir()] == []


def test_a_group_that_never_gets_empty_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = machine(tmp_path, monkeypatch, real_root=False)
    fake.group("", OTHER)
    monkeypatch.setattr(tree, "processes_of", lambda _group: {OTHER})
    with pytest.raises(ClusterError, match=f"keeps getting new processes: .{OTHER}"):
        cgroups.detect().create("weft-x", "node-1")


@pytest.mark.parametrize("can_kill", [True, False])
def test_a_group_is_killed_at_once_or_one_by_one(
    can_kill: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeCgroup2(tmp_path / "cgroup", can_kill)
    fake.install(monkeypatch, controllers=ALL)
    fake.group("weft-x/node-1/pod", 6_000_000, 6_000_001)
    killed: list[int] = []

    def kill(pid: int, _signal: int) -> None:
        killed.append(pid)
        fake.end(pid)

    monkeypatch.setattr(os, "kill", kill)
    tree.kill([fake.root / "weft-x"], deadline=time.monotonic() + 5)
    assert tree.processes([fake.root]) == set()
    assert sorted(killed) == ([] if can_kill else [6_000_000, 6_000_001])


def test_a_process_that_does_not_die_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCgroup2(tmp_path / "cgroup", can_kill=False)
    fake.install(monkeypatch, controllers=ALL)
    group = fake.group("weft-x", 6_000_000)
    monkeypatch.setattr(os, "kill", lambda _pid, _signal: None)
    with pytest.raises(ClusterError, match="6000000"):
        tree.kill([group], deadline=time.monotonic() + 0.1)
    with pytest.raises(ClusterError, match="weft-x cannot be removed"):
        tree.remove(group, deadline=time.monotonic() + 0.1)


def test_a_machine_without_all_controllers_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path, monkeypatch, controllers="cpu pids hugetlb")
    with pytest.raises(Refused, match=r"lacks cpuset, io, memory: .*cgroup_disable="):
        cgroups.detect()


def test_a_subtree_without_all_controllers_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = machine(tmp_path, monkeypatch, own="/user.slice/app.scope")
    fake.group("", enabled=ALL)
    fake.group("user.slice", enabled="memory pids")
    fake.group("user.slice/app.scope", OTHER, delegated=True)
    with pytest.raises(Refused, match=r"app\.scope lacks cpu, cpuset, io, .*Delegate=yes"):
        cgroups.detect()


def test_a_container_that_may_not_write_its_groups_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch, real_root=False)
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    with pytest.raises(Refused, match=r"read-only.*--privileged"):
        cgroups.detect()


def proc_files(tmp_path: Path, patch: pytest.MonkeyPatch, mountinfo: str, own_groups: str) -> None:
    patch.setattr(tree, "PROC", tmp_path)
    (tmp_path / "mountinfo").write_text(mountinfo)
    (tmp_path / "cgroup").write_text(own_groups)


def test_a_hybrid_machine_uses_the_version_that_has_the_controllers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unified = V1.splitlines()[-1].replace("/sys/fs/cgroup/unified", str(tmp_path / "unified"))
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified/cgroup.controllers").write_text("hugetlb\n")
    own = V1_OWN + V1_REST_OWN
    proc_files(tmp_path, monkeypatch, V1.replace(V1.splitlines()[-1], unified) + V1_REST, own)
    found = cgroups.detect()
    assert isinstance(found, CgroupV1)
    assert len(found.hierarchies) == 7
    # Version 1 only for systemd's own bookkeeping, as systemd's hybrid mode has it, and all controllers in version 2.
    named = next(line for line in V1.splitlines() if "name=systemd" in line)
    (tmp_path / "unified/cgroup.controllers").write_text(ALL)
    proc_files(tmp_path, monkeypatch, f"{named}\n{unified}\n", "1:name=systemd:/\n0::/\n")
    assert cgroups.detect() == CgroupV2(tmp_path / "unified", tmp_path / "unified")


def test_control_groups_that_are_not_mounted_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc_files(tmp_path, monkeypatch, "22 27 0:21 / /proc rw - proc proc rw\n", "0::/\n")
    with pytest.raises(Refused, match="mount -t cgroup2 cgroup2 /sys/fs/cgroup"):
        cgroups.detect()
    proc_files(tmp_path, monkeypatch, V1, V1_OWN)
    with pytest.raises(Refused, match="version 1 on this machine lacks cpuset, devices, freezer, pids"):
        cgroups.detect()


def test_a_process_that_cannot_be_seen_from_here_is_never_taken_for_oneself(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("0\n0\n6000000\n")
    assert tree.processes_of(tmp_path) == {6_000_000}, 'the kernel writes "0" for each of them'
