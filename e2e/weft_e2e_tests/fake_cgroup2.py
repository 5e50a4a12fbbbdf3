"""A version 2 hierarchy in a folder, with the kernel's rules: what is created in a group, and what it refuses."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

CALLER = 5_000_000
"""The number of the process that writes "0"; like all numbers here above what a kernel gives."""


@dataclass
class FakeCgroup2:
    """Groups are folders below `root`; every change goes through the file functions of this process."""

    root: Path
    can_kill: bool = True
    """Whether groups have cgroup.kill, as since Linux 5.14."""

    def group(self, path: str, *pids: int, enabled: str = "", delegated: bool = False) -> Path:
        """Make a group with processes, or with controllers enabled for its children."""
        group = self.root / path
        group.mkdir(parents=True, exist_ok=True)
        if enabled:
            (group / "cgroup.subtree_control").write_text(" ".join(f"+{word}" for word in enabled.split()))
        self._set(group / "cgroup.procs", {str(pid) for pid in pids})
        if delegated:
            os.setxattr(group, "user.delegate", b"1")
        return group

    def processes(self, group: Path) -> set[int]:
        """Return the processes in one group."""
        return {int(word) for word in self._get(group / "cgroup.procs")}

    def end(self, pid: int) -> None:
        """Take a process out of the group it is in."""
        found = [file for file in self.root.rglob("cgroup.procs") if str(pid) in self._get(file)]
        if not found:
            raise ProcessLookupError(errno.ESRCH, "no such process")
        self._set(found[0], self._get(found[0]) - {str(pid)})

    def install(self, patch: pytest.MonkeyPatch, *, controllers: str, real_root: bool = True) -> None:
        """Let the file functions of this process obey the rules below `root`."""
        mkdir, rmdir, write_text = os.mkdir, os.rmdir, Path.write_text

        def make(path: str, mode: int = 0o777) -> None:
            mkdir(path, mode)
            if Path(path).is_relative_to(self.root):
                self._fill(Path(path), self._get(Path(path).parent / "cgroup.subtree_control"))

        def take(path: str) -> None:
            if Path(path).is_relative_to(self.root):
                self._empty(Path(path))
            rmdir(path)

        def write(path: Path, text: str, *args: object, **options: object) -> int:
            if path.is_relative_to(self.root):
                self._written(path, text)
                return len(text)
            return write_text(path, text, *args, **options)  # type: ignore[arg-type]  # passed on as it came

        self.root.mkdir()
        self._fill(self.root, set(controllers.split()))
        if real_root:
            (self.root / "cgroup.type").unlink()
        patch.setattr(os, "mkdir", make)
        patch.setattr(os, "rmdir", take)
        patch.setattr(Path, "write_text", write)

    def _fill(self, group: Path, controllers: set[str]) -> None:
        names = ["cgroup.procs", "cgroup.subtree_control", "cgroup.type", *(["cgroup.kill"] if self.can_kill else [])]
        for name in names:
            self._set(group / name, set())
        self._set(group / "cgroup.controllers", controllers)

    def _empty(self, group: Path) -> None:
        if self.processes(group) or any(entry.is_dir() for entry in group.iterdir()):
            raise OSError(errno.EBUSY, "group is busy", str(group))
        for file in group.iterdir():
            file.unlink()

    def _written(self, file: Path, text: str) -> None:
        if not file.exists():
            raise PermissionError(errno.EACCES, "no file can be made in a group", str(file))
        if file.name == "cgroup.procs":
            self._enter(file.parent, CALLER if text == "0" else int(text))
        elif file.name == "cgroup.subtree_control":
            for word in text.split():
                self._switch(file.parent, word[1:], on=word[0] == "+")
        elif file.name == "cgroup.kill":
            assert text == "1"
            for below in file.parent.rglob("cgroup.procs"):
                self._set(below, set())
        else:
            raise AssertionError(f"nobody writes {file}")

    def _enter(self, group: Path, pid: int) -> None:
        if self._is_inner(group):
            raise OSError(errno.EBUSY, "its children have controllers", str(group))
        self.end(pid)
        self._set(group / "cgroup.procs", self._get(group / "cgroup.procs") | {str(pid)})

    def _switch(self, group: Path, controller: str, *, on: bool) -> None:
        enabled = self._get(group / "cgroup.subtree_control")
        children = [entry for entry in group.iterdir() if entry.is_dir()]
        if on and controller not in self._get(group / "cgroup.controllers"):
            raise FileNotFoundError(errno.ENOENT, "no such controller", controller)
        if on and self.processes(group) and (group / "cgroup.type").exists():
            raise OSError(errno.EBUSY, "it holds processes", str(group))
        if not on and any(controller in self._get(child / "cgroup.subtree_control") for child in children):
            raise OSError(errno.EBUSY, "a child uses it", str(group))
        enabled = enabled | {controller} if on else enabled - {controller}
        self._set(group / "cgroup.subtree_control", enabled)
        for child in children:
            self._set(child / "cgroup.controllers", enabled)

    def _is_inner(self, group: Path) -> bool:
        return bool(self._get(group / "cgroup.subtree_control")) and (group / "cgroup.type").exists()

    def _get(self, file: Path) -> set[str]:
        return set(file.read_text().split())

    def _set(self, file: Path, words: set[str]) -> None:
        file.write_bytes(" ".join(sorted(words)).encode())
