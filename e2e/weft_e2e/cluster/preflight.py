"""Looks at the machine before anything is started, and says everything that is in the way at once."""

import os
import shutil
import socket
import sys
from pathlib import Path

from weft_e2e.cluster import cgroups, packages, toolchain
from weft_e2e.cluster.addresses import IpFamily
from weft_e2e.cluster.config import DEFAULT_HOST_PORT
from weft_e2e.cluster.errors import Refused
from weft_e2e.cluster.node import CNI_FOLDERS, FIXED_FOLDERS
from weft_e2e.cluster.paths import cache_root

GIB = 1024**3
UP_GIB = 4.0  # Weft's images on two nodes, etcd and logs take 2.5 GB
SETUP_GIB = 12.0  # cold: Go's module cache takes 3.8 GB, its build cache 6.4 GB, the programs 0.4 GB
HIDDEN = ("/run", "/proc", "/sys", "/dev", *FIXED_FOLDERS)  # each node mounts its own there
PROGRAMS = ("kubernetes", "coredns", *toolchain.NATIVE)
"""The built programs that every cluster runs."""


LOCALLY = (
    "Without a cluster, `.venv/bin/weft local -f docs/examples/llama-3.1-70b.yaml --replay gaia_whowhen` runs the "
    "demo's plan, router and mock engines as processes of this machine"
)
"""What to do on a machine that no cluster can run on."""


def check_machine(*, needed_gib: float) -> None:
    """Raise Refused unless this is Linux, we are root, and the cache's disk has `needed_gib` free."""
    if sys.platform != "linux":
        raise Refused(
            f"the local cluster needs Linux (this is {sys.platform}); use KUBE_CONTEXT with your own cluster. {LOCALLY}"
        )
    if os.geteuid() != 0:
        raise Refused(f"the local cluster needs root (namespaces, mounts, control groups): run it with sudo. {LOCALLY}")
    root = cache_root()
    if any(root == Path(folder) or Path(folder) in root.parents for folder in HIDDEN):
        raise Refused(f"the cache folder {root} would be hidden inside the nodes: set WEFT_CACHE to another place")
    check_disk(needed_gib)


def check_disk(needed_gib: float) -> None:
    """Raise Refused unless the cache's disk has `needed_gib` free."""
    root = cache_root()
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / GIB
    if free < needed_gib:
        raise Refused(
            f"{needed_gib:.0f} GiB of free disk are needed at {existing}, {free:.1f} GiB are there: "
            "free some, or set WEFT_CACHE to a folder on another disk"
        )


def _check_control_groups() -> None:
    try:
        cgroups.detect()
    except Refused as error:
        raise Refused(f"{error}. {LOCALLY}") from error


def check_setup() -> None:
    """Raise Refused unless a cluster could run here once everything is built, and the disk carries the builds."""
    check_machine(needed_gib=SETUP_GIB if toolchain.missing() else 0)
    _check_control_groups()


def check_start() -> None:
    """Raise Refused unless a cluster can be started here now."""
    check_machine(needed_gib=UP_GIB)
    _check_control_groups()
    if absent := packages.missing_commands():
        raise Refused(f"missing on PATH: {', '.join(absent)}. {packages.advice()}")
    if not any(shutil.which("ptp", path=folder) for folder in CNI_FOLDERS):
        raise Refused(f"missing: the CNI plugins in {' or '.join(CNI_FOLDERS)}. {packages.advice()}")
    if absent := [name for name in toolchain.missing() if name in PROGRAMS]:
        raise Refused(f"not built yet: {', '.join(absent)}: run `weft cluster setup`")
    for folder in FIXED_FOLDERS:
        Path(folder).mkdir(parents=True, exist_ok=True)


def check_family(ip_family: IpFamily) -> None:
    """Raise Refused where this kernel has none of the addresses that the cluster is to have."""
    if ip_family != "ipv4" and not Path("/proc/sys/net/ipv6").exists():
        raise Refused(f"ip-family {ip_family}: the kernel of this machine has no IPv6; choose --ip-family ipv4")


def listen(port: int | None) -> socket.socket:
    """Return a listening socket on the machine's loopback; raise Refused where `port` is taken.

    Without a port it is DEFAULT_HOST_PORT, or any free one where that is taken.
    """
    candidates = (DEFAULT_HOST_PORT, 0) if port is None else (port,)
    for candidate in candidates:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", candidate))
        except OSError:
            listener.close()
            continue
        listener.listen(512)
        return listener
    raise Refused(f"port {port} on 127.0.0.1 is taken: end what listens there, or choose another with --api-port")
