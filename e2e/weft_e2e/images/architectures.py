"""The architectures that images are built for, and what a machine needs to build for another than its own."""

import platform
from pathlib import Path

from weft_e2e.images.errors import CannotBuildError

ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Name in an image (and in Debian): name that the kernel and QEMU use."""
BINFMT = Path("/proc/sys/fs/binfmt_misc")


def native() -> str:
    """Return this machine's architecture."""
    for name, machine in ARCHITECTURES.items():
        if platform.machine() == machine:
            return name
    raise CannotBuildError(f"images are built for {', '.join(ARCHITECTURES)}, and this machine is {platform.machine()}")


def check_buildable(arch: str) -> None:
    """Raise CannotBuildError unless this machine can run programs of ``arch``, by itself or by emulation.

    The emulator has to be registered with the flag F (``fix binary``): the root folder of a build holds no emulator.
    """
    if arch not in ARCHITECTURES:
        raise CannotBuildError(f"there is no architecture {arch!r}; choose from {', '.join(ARCHITECTURES)}")
    if arch == native():
        return
    try:
        registered = (BINFMT / f"qemu-{ARCHITECTURES[arch]}").read_text()
    except OSError:
        registered = ""
    flags = next((line.partition(":")[2] for line in registered.splitlines() if line.startswith("flags")), "")
    if not registered.startswith("enabled") or "F" not in flags:
        raise CannotBuildError(
            f"this machine cannot run {arch} programs: install QEMU's user emulation "
            "(apt-get install qemu-user-static binfmt-support), or build on a machine of that architecture"
        )
