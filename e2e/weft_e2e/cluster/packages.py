"""The programs that come from the distribution: found by name, installed by apt where that is possible."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from weft_e2e.cluster.errors import SetupError
from weft_e2e.cluster.node import CNI_FOLDERS
from weft_e2e.cluster.progress import Progress

APT_SECONDS = 900.0

# Debian package -> the commands that Weft's local cluster, images and tests run from it.
DEBIAN: dict[str, tuple[str, ...]] = {
    "containerd": ("containerd", "ctr"),
    "runc": ("runc",),
    "containernetworking-plugins": (),  # not on PATH: see missing_packages
    "iptables": ("iptables",),
    "iproute2": ("ip",),
    "conntrack": ("conntrack",),
    "ethtool": ("ethtool",),
    "socat": ("socat",),
    "buildah": ("buildah",),
    "debootstrap": ("debootstrap",),
    "redis-server": ("redis-server",),
    "docker-registry": ("docker-registry",),
    "ipset": ("ipset",),
    "gcc": ("gcc",),
    "util-linux": ("nsenter", "mount"),
}
CLUSTER_ONLY = frozenset({"containerd", "runc", "iptables", "iproute2", "conntrack", "ethtool", "socat", "util-linux"})
# libc6-dev: gcc alone comes without the static C library.
ALONGSIDE = {"gcc": ("libc6-dev",)}
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing_commands() -> list[str]:
    """Return the commands a running cluster needs that are not on PATH."""
    return [command for name in sorted(CLUSTER_ONLY) for command in DEBIAN[name] if shutil.which(command) is None]


def missing_packages() -> list[str]:
    """Return the Debian packages whose commands (or plugins) are not here."""
    absent = [
        name
        for name, commands in DEBIAN.items()
        if any(
            shutil.which(command) is None and shutil.which(command, path=SYSTEM_PATH) is None for command in commands
        )
    ]
    if not any(Path(folder, "ptp").exists() for folder in CNI_FOLDERS):
        absent.append("containernetworking-plugins")
    return absent


def advice() -> str:
    wanted = " ".join(packages_of(missing_packages()))
    return f"On Debian: apt-get install {wanted}; elsewhere the packages with these programs"


def packages_of(names: list[str]) -> list[str]:
    return [package for name in names for package in (name, *ALONGSIDE.get(name, ()))]


def check_clients() -> None:
    """Raise SetupError unless the clients of a cluster of the user's own are on PATH."""
    if absent := [client for client in ("kubectl", "helm") if shutil.which(client) is None]:
        words = "install what is missing to reach the cluster that KUBE_CONTEXT names"
        raise SetupError(f"missing on PATH: {' and '.join(absent)}; {words}")


def install(progress: Progress) -> None:
    """Install what is missing by apt-get when root on Debian; else raise SetupError that names it."""
    check_installable()
    absent = missing_packages()
    if not absent:
        return
    wanted = packages_of(absent)
    progress(f"installing {' '.join(wanted)} …")
    apt_install(wanted)
    if absent := missing_packages():
        raise SetupError(f"still missing after the installation: {', '.join(absent)}")


def check_installable() -> None:
    """Raise SetupError that names what is missing where apt-get cannot install it."""
    if not can_install() and (absent := missing_packages()):
        raise SetupError(f"missing: {', '.join(absent)}. {advice()}")


def can_install() -> bool:
    """Return whether this is root on a machine with apt-get."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def apt_install(wanted: Sequence[str]) -> None:
    """Install Debian packages; raise SetupError with apt-get's own words where it fails."""
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *wanted]
    if _apt(command).returncode != 0:  # often only because the package lists are missing or old
        _apt(["apt-get", "update", "-q"])
        done = _apt(command)
        if done.returncode != 0:
            raise SetupError(f"`{' '.join(command)}` failed:\n{(done.stderr or done.stdout).strip()[-2000:]}")


def _apt(command: list[str]) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=APT_SECONDS)
    except subprocess.TimeoutExpired:
        raise SetupError(f"`{' '.join(command)}` did not end within {APT_SECONDS:.0f} s") from None
