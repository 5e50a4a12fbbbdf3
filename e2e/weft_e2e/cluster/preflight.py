"""Looks at the machine before anything is started, and says everything that is in the way at once."""

import os
import shutil
import socket
import sys
from pathlib import Path

from weft_e2e.cluster import cgroups, golang, packages, toolchain
from weft_e2e.cluster.addresses import IpFamily
from weft_e2e.cluster.config import DEFAULT_HOST_PORT
from weft_e2e.cluster.errors import ClusterError, Refused
from weft_e2e.cluster.node import CNI_FOLDERS, FIXED_FOLDERS
from weft_e2e.cluster.paths import cache_root

GIB = 1024**3
UP_GIB = 4.0  # Weft's images on two nodes, etcd and logs take 2.5 GB
SETUP_GIB = 6.0  # cold: Go's module cache takes 2 GB, its build cache 0.9 GB, programs and base image 0.6 GB
HIDDEN = ("/run", "/proc", "/sys", "/dev", *FIXED_FOLDERS)  # each node mounts its own there
PROGRAMS = ("kubernetes", "coredns", *toolchain.NATIVE)
"""The built programs that every cluster runs."""


LOCALLY = (
    "KUBE_CONTEXT names a cluster of your own. Without any, `make demo` and `weft local --replay claude_code` run the "
    "same plan, router and mock engines as processes of this machine"
)
"""What to do on a machine that no cluster can run on."""

CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_NET_ADMIN": 12}
"""What a cluster's mounts and networks need, by number: root has them, except in most containers."""


def check_rights() -> None:
    """Raise Refused unless this is Linux and we are its root, not that of a container without the rights to be one."""
    if sys.platform != "linux":
        raise Refused(f"the local cluster needs Linux (this is {sys.platform})")
    if os.geteuid() != 0:
        raise Refused("the local cluster needs root (namespaces, mounts, control groups)")
    if lacking := missing_capabilities(Path("/proc/self/status").read_text()):
        raise Refused(f"the local cluster needs {' and '.join(lacking)}, which root lacks here, as in most containers")
    if not is_whole_user_space(Path("/proc/self/uid_map").read_text()):
        raise Refused("the local cluster needs the machine's root, and this is the root of a user namespace only")


def missing_capabilities(status: str) -> list[str]:
    """Return the capabilities that a cluster needs and that /proc/self/status does not list as effective."""
    words = next((line.split() for line in status.splitlines() if line.startswith("CapEff:")), ["", "0"])
    effective = int(words[1], 16)
    return [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]


def is_whole_user_space(uid_map: str) -> bool:
    """Return whether /proc/self/uid_map maps every user to itself, as outside any user namespace."""
    return [int(word) for word in uid_map.split()] == [0, 0, 2**32 - 1]


def check_machine(*, needed_gib: float) -> None:
    """Raise Refused unless we have the rights to run a cluster, and the cache's disk has `needed_gib` free."""
    check_rights()
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


def obstacle() -> str | None:
    """Return why no cluster can run here, not even after `weft cluster setup`; None where one can."""
    try:
        check_rights()  # first: who is not root may not be able to look into the cache
        missing = toolchain.missing()
        check_machine(needed_gib=SETUP_GIB if missing else 0)
        cgroups.detect()
        packages.check_installable()
        if any(name in toolchain.TOOLS for name in missing):
            golang.check_go()
    except ClusterError as error:
        return str(error)
    return None


def check_setup() -> None:
    """Raise Refused unless a cluster could run here once everything is built, and the disk carries the builds."""
    if reason := obstacle():
        raise Refused(f"{reason}. {LOCALLY}")


def check_start() -> None:
    """Raise Refused unless a cluster can be started here now."""
    check_machine(needed_gib=UP_GIB)
    cgroups.detect()
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
