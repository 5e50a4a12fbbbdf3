"""What the local cluster needs is made side by side, once, and told as it goes."""

import threading
from pathlib import Path

import pytest

from weft_e2e.cluster import packages, preflight, prerequisites, toolchain
from weft_e2e.cluster.errors import SetupError
from weft_e2e.cluster.prerequisites import Task
from weft_e2e.cluster.progress import Work


class Machine:
    """Remembers what is installed and built on it."""

    def __init__(self) -> None:
        self.lacks = ["buildah"]
        self.made: list[str] = []

    def install(self, _progress: object) -> None:
        self.made += self.lacks
        self.lacks = []

    def build(self, _work: Work, only: frozenset[str]) -> None:
        for name in toolchain.missing(only):
            self.made.append(name)
            path = toolchain.native_path(name) if name in toolchain.NATIVE else toolchain.TOOLS[name].path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("program")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.setattr(preflight, "check_setup", lambda: None)
    monkeypatch.setattr(packages, "missing_packages", lambda: found.lacks)
    monkeypatch.setattr(packages, "can_install", lambda: True)
    monkeypatch.setattr(packages, "install", found.install)
    monkeypatch.setattr(toolchain, "build", found.build)
    return found


def test_all_is_made_once_and_announced_with_its_time(machine: Machine) -> None:
    lines: list[str] = []
    prerequisites.install(lines.append, beside=[Task({"an image": 60.0}, lambda _work: machine.made.append("image"))])
    assert sorted(machine.made) == sorted([*toolchain.missing(), *machine.made])
    assert machine.made.index("buildah") < machine.made.index("image"), "images are built by what is installed"
    assert {"kubernetes", "coredns", "helm", "prometheus", "pause", "forward"} <= set(machine.made)
    assert "kwok" not in machine.made
    assert lines[0].startswith("to make: ")
    assert all(name in lines[0] for name in ("kubernetes", "Debian packages", "an image", "minutes"))

    machine.made.clear()
    lines.clear()
    prerequisites.install(lines.append)
    assert machine.made == []
    assert lines == ["everything the local cluster needs is here"]


def test_what_tests_need_is_built_along_when_it_is_asked_for(machine: Machine) -> None:
    prerequisites.install(lambda _line: None, also=["kwok"])
    assert {"kwok", "kubernetes"} <= set(machine.made)


def test_programs_and_what_is_beside_them_are_made_at_the_same_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = threading.Barrier(2, timeout=20)
    build = machine.build

    def built(work: Work, only: frozenset[str]) -> None:
        if "kubernetes" in only:
            met.wait()
        build(work, only)

    monkeypatch.setattr(toolchain, "build", built)
    prerequisites.install(lambda _line: None, beside=[Task({}, lambda _work: met.wait())])
    assert toolchain.missing() == []


def test_a_failure_is_said_at_once_and_what_was_begun_is_kept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()
    build = machine.build

    def built(work: Work, only: frozenset[str]) -> None:
        if "kubernetes" in only:
            assert told.wait(20)
        build(work, only)

    def broken(_work: Work) -> None:
        raise SetupError("no space left on the disk")

    monkeypatch.setattr(toolchain, "build", built)

    def progress(line: str) -> None:
        if "no space left" in line:
            told.set()

    with pytest.raises(SetupError, match="no space left on the disk"):
        prerequisites.install(progress, beside=[Task({}, broken)])
    assert toolchain.missing() == []


def test_nothing_is_begun_where_packages_cannot_be_installed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "can_install", lambda: False)
    with pytest.raises(SetupError, match="missing: buildah"):
        prerequisites.install(lambda _line: None)
    assert machine.made == []
