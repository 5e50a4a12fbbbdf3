"""Boots a virtual machine in QEMU and reads what its program reports."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft_e2e.cluster import packages
from weft_e2e.cluster.errors import CommandError, SetupError
from weft_e2e.cluster.paths import cache_root
from weft_e2e.vm.content import make_content_disk
from weft_e2e.vm.root import BootFiles, ensure_root

Report = dict[str, Any]
"""One line that the program printed: a JSON object of the program's own."""
QEMU = "qemu-system-x86_64"
CORES = 2
MEMORY_MIB = 4096
POLL_SECONDS = 0.5


def boot(module: str, *, init: str, limit_s: float, report: Callable[[str], None]) -> list[Report]:
    """Run a module of the checkout in a machine that starts `init`; return what it printed once the machine is off.

    Raises:
        SetupError: this machine cannot run QEMU, or a disk could not be made.
        CommandError: the machine was still running after the limit, and was ended.
    """
    _check_qemu()
    files = ensure_root(report)
    with tempfile.TemporaryDirectory(dir=cache_root() / "vm", prefix="run-") as scratch:
        folder = Path(scratch)
        report("writing the disk with the cluster's programs")
        make_content_disk(folder / "content.img", module)
        console, reports = folder / "console.log", folder / "reports.log"
        reports.touch()
        report(f"booting with init={init}")
        process = subprocess.Popen(
            # It ends with this process, whatever ends that.
            ["setpriv", "--pdeathsig", "KILL", "--", *command(files, folder, init)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": scratch},  # what the machine writes to its disks
            text=True,
        )
        try:
            _follow(process, reports, time.monotonic() + limit_s, report)
        except TimeoutError:
            raise CommandError(f"no end within {limit_s:.0f} s; the console:\n{_tail(console)}") from None
        finally:
            process.kill()
            said, _ = process.communicate(timeout=30)
        found = parse(reports.read_text(errors="replace"))
        if not found:
            raise CommandError(f"the machine ended without a report: {said.strip()}\n{_tail(console)}")
        return found


def command(files: BootFiles, folder: Path, init: str) -> list[str]:
    """Return QEMU's command: no network, no display, and disks whose changes are thrown away."""
    # edd: the firmware's answer takes a second per disk. mitigations: they cost much here, and protect nobody.
    kernel = f"console=ttyS0 root=/dev/vda rw init={init} panic=-1 quiet edd=off mitigations=off tsc=reliable"
    return [
        *[QEMU, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none", "-nic", "none"],
        *["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(CORES), "-m", str(MEMORY_MIB)],
        *["-kernel", str(files.kernel), "-initrd", str(files.initrd), "-append", kernel],
        *["-drive", f"file={files.disk},format=raw,if=virtio,snapshot=on"],
        *["-drive", f"file={folder / 'content.img'},format=raw,if=virtio,snapshot=on"],
        *["-serial", f"file:{folder / 'console.log'}", "-serial", f"file:{folder / 'reports.log'}"],
    ]


def parse(text: str) -> list[Report]:
    """Return the complete lines of JSON on the serial port, in their order."""
    lines = text.replace("\r", "").split("\n")[:-1]
    return [json.loads(line) for line in lines if line.startswith("{")]


def _follow(process: "subprocess.Popen[str]", reports: Path, deadline: float, report: Callable[[str], None]) -> None:
    """Pass reports on while they come; return when the machine is off, raise TimeoutError at the deadline."""
    shown = 0
    while True:
        ended = process.poll() is not None
        lines = reports.read_text(errors="replace").splitlines()
        for line in lines[shown:]:
            report(line)
        shown = len(lines)
        if ended:
            return
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(POLL_SECONDS)


def _check_qemu() -> None:
    if os.uname().machine != "x86_64":
        raise SetupError(f"the virtual machine is an x86_64 one, and this machine is {os.uname().machine}")
    if shutil.which(QEMU) is None:
        if not packages.can_install():
            raise SetupError(f"{QEMU} is missing: apt-get install qemu-system-x86 seabios ipxe-qemu")
        packages.apt_install(["qemu-system-x86", "seabios"])


def _tail(console: Path, lines: int = 40) -> str:
    try:
        return "\n".join(console.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(nothing)"
