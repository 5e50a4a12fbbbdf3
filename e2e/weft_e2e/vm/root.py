"""The disk that a virtual machine boots from: Debian with its own kernel, made once and kept in the cache."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from weft_e2e.cluster.errors import SetupError
from weft_e2e.cluster.paths import cache_root
from weft_e2e.images.base import SUITE, make_root

# The kernel, what a local cluster runs on a machine, an init system, and a program for a test's pod.
PACKAGES = (
    "linux-image-cloud-amd64",
    "initramfs-tools",
    "systemd-sysv",
    "kmod",
    "procps",
    "python3",
    "containerd",
    "runc",
    "containernetworking-plugins",
    "iptables",
    "iproute2",
    "conntrack",
    "ethtool",
    "socat",
    "busybox-static",
)
PROGRAM = "/weft/run"
"""What the second disk holds for both kinds of start."""
PLAIN_INIT = f"""\
#!/bin/sh
# /proc, /sys, /dev and /run are the initial RAM disk's.
mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup
mkdir -p /dev/shm
for folder in /dev/shm /tmp; do mount -t tmpfs tmpfs "$folder"; done
mount /dev/vdb /weft
ip link set lo up
{PROGRAM}
echo o > /proc/sysrq-trigger
while :; do sleep 60; done
"""
SYSTEMD_UNIT = f"""\
[Unit]
Description=The program of the second disk
RequiresMountsFor=/weft
[Service]
Type=oneshot
ExecStart={PROGRAM}
ExecStopPost=/bin/sh -c 'echo o > /proc/sysrq-trigger'
"""
FILES = {
    "sbin/weft-init": (PLAIN_INIT, 0o755),
    "etc/systemd/system/weft.service": (SYSTEMD_UNIT, 0o644),
    "etc/fstab": ("/dev/vdb /weft ext4 defaults 0 0\n", 0o644),
    "etc/hostname": ("vm\n", 0o644),
}
WANTED_BY = "etc/systemd/system/multi-user.target.wants/weft.service"
SPARE_MIB = 256
MKE2FS_SECONDS = 300.0


@dataclass(frozen=True)
class BootFiles:
    """What QEMU starts a machine from."""

    disk: Path
    kernel: Path
    initrd: Path


def ensure_root(report: Callable[[str], None]) -> BootFiles:
    """Return the boot files, made where the cache does not have them."""
    recipe = json.dumps([SUITE, PACKAGES, FILES, WANTED_BY, SPARE_MIB])
    folder = cache_root() / "vm" / hashlib.sha256(recipe.encode()).hexdigest()[:12]
    files = BootFiles(folder / "root.img", folder / "vmlinuz", folder / "initrd.img")
    if folder.is_dir():
        return files
    report("making the virtual machine's disk from Debian packages")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="root-") as scratch:
        made, root = Path(scratch) / "made", Path(scratch) / "root"
        made.mkdir()
        make_root(root, PACKAGES, log=cache_root() / "vm/debootstrap.log")
        _add_files(root)
        for file, pattern in ((files.kernel, "vmlinuz-*"), (files.initrd, "initrd.img-*")):
            shutil.copyfile(next((root / "boot").glob(pattern)), made / file.name)
        make_disk(root, made / files.disk.name, spare_mib=SPARE_MIB)
        if not folder.is_dir():  # another run was faster
            made.rename(folder)
    return files


def make_disk(content: Path, disk: Path, *, spare_mib: int) -> None:
    """Write an ext4 disk with the content of a folder and some free space."""
    held = sum(file.lstat().st_blocks * 512 for file in content.rglob("*"))
    size_mib = int(held / 2**20 * 1.1) + spare_mib
    command = ["mke2fs", "-q", "-t", "ext4", "-d", str(content), str(disk), f"{size_mib}M"]
    environment = os.environ | {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=MKE2FS_SECONDS)
    except FileNotFoundError:
        raise SetupError("mke2fs is missing: apt-get install e2fsprogs") from None
    if done.returncode != 0:
        raise SetupError(f"`{' '.join(command)}` failed: {done.stderr.strip()[-1500:]}")


def _add_files(root: Path) -> None:
    (root / "weft").mkdir()
    for name, (text, mode) in FILES.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
    wanted = root / WANTED_BY
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.symlink_to("/etc/systemd/system/weft.service")
