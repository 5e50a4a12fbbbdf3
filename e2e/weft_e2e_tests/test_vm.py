"""Virtual machines: QEMU's arguments, the machine's reports, and the end of one that hangs."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from weft_e2e.cluster.deadlines import VARIABLE, scaled
from weft_e2e.cluster.errors import CommandError, Refused, SetupError
from weft_e2e.images.catalogue import repository_root
from weft_e2e.vm import boot, machine
from weft_e2e.vm.content import DISTRIBUTIONS, pinned
from weft_e2e.vm.machine import command, parse
from weft_e2e.vm.root import BootFiles, make_disk

FILES = BootFiles(Path("/d/root.img"), Path("/d/vmlinuz"), Path("/d/initrd.img"))
STAND_IN = """\
#!/bin/sh
for word; do
  case "$word" in file:*console*) console="${word#file:}";; file:*reports*) reports="${word#file:}";; esac
done
echo 'Kernel panic' > "$console"
"""


@pytest.fixture
def qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a stand-in for QEMU; a test appends what its machine does."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache/vm").mkdir(parents=True)
    monkeypatch.setattr(machine, "ensure_root", lambda _report: FILES)
    monkeypatch.setattr(machine, "make_content_disk", lambda disk, _module: disk.touch())
    program = tmp_path / "bin" / machine.QEMU
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(machine, "POLL_SECONDS", 0.01)
    return program


def does(program: Path, script: str) -> None:
    program.write_text(STAND_IN + script)


def remains() -> list[str]:
    return [entry.name for entry in (Path(os.environ["WEFT_CACHE"]) / "vm").iterdir()]


@pytest.mark.component
def test_what_a_machine_reports_is_read_and_its_disks_are_removed(qemu: Path) -> None:
    does(qemu, """printf 'noise\\r\\n{"step": "a"}\\r\\n' >> "$reports"; echo '{"step": "done"}' >> "$reports"\n""")
    shown: list[str] = []
    assert boot("x", init="/i", limit_s=10, report=shown.append) == [{"step": "a"}, {"step": "done"}]
    assert '{"step": "a"}' in shown
    assert remains() == []


@pytest.mark.component
def test_a_machine_that_does_not_end_is_ended(qemu: Path) -> None:
    does(qemu, 'echo $$ > "${reports%/*}/../../pid"; exec sleep 60\n')
    with pytest.raises(CommandError, match=r"no end within 1 s(?s:.*)Kernel panic"):
        boot("x", init="/i", limit_s=1, report=lambda _line: None)
    pid = int((Path(os.environ["WEFT_CACHE"]) / "pid").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert remains() == []


@pytest.mark.component
def test_a_machine_that_reports_nothing_is_a_failure_with_its_console(qemu: Path) -> None:
    does(qemu, "echo 'could not open disk'\n")
    with pytest.raises(CommandError, match=r"could not open disk(?s:.*)Kernel panic"):
        boot("x", init="/i", limit_s=10, report=lambda _line: None)


def test_another_processor_is_refused_by_name(qemu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "n", "6", "v", "aarch64")))
    with pytest.raises(SetupError, match="aarch64"):
        boot("x", init="/i", limit_s=10, report=lambda _line: None)


def test_a_half_line_is_not_read() -> None:
    assert parse('{"step": "a"}\r\nnoise\n{"step": "b"') == [{"step": "a"}]


def test_a_machine_has_no_network_and_changes_no_disk() -> None:
    words = command(FILES, Path("/run"), "/sbin/weft-init")
    assert words[words.index("-nic") + 1] == "none"
    drives = [words[number + 1] for number, word in enumerate(words) if word == "-drive"]
    assert len(drives) == 2
    assert all(drive.endswith("snapshot=on") for drive in drives)
    assert "init=/sbin/weft-init" in words[words.index("-append") + 1].split()


def test_the_packages_of_a_machine_are_pinned_with_their_hashes() -> None:
    lines = pinned((repository_root() / "requirements/e2e.txt").read_text(), DISTRIBUTIONS).splitlines()
    assert [line.partition("==")[0] for line in lines] == list(DISTRIBUTIONS)
    assert all("--hash=sha256:" in line and ";" not in line for line in lines)
    with pytest.raises(SetupError, match="pins no nothing"):
        pinned("click==8 --hash=sha256:0\n", ["click", "nothing"])


@pytest.mark.component
def test_a_disk_holds_a_folder(tmp_path: Path) -> None:
    (tmp_path / "content/sub").mkdir(parents=True)
    (tmp_path / "content/sub/file").write_bytes(b"x" * 3_000_000)
    disk = tmp_path / "disk.img"
    make_disk(tmp_path / "content", disk, spare_mib=8)
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    shown = subprocess.run(
        ["debugfs", "-R", "stat /sub/file", str(disk)], env={"PATH": path}, capture_output=True, text=True, timeout=30
    ).stdout
    assert "Size: 3000000" in shown


@pytest.mark.parametrize("text", ["", "fast", "0", "0.5", "-3", "101", "nan"])
def test_a_slow_machine_is_waited_for_as_long_as_it_says(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert scaled(30.0) == 30.0
    monkeypatch.setenv(VARIABLE, "2.5")
    assert scaled(30.0) == 75.0
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(Refused, match=rf"{VARIABLE} '{text}': choose a number from 1 to 100"):
        scaled(30.0)
