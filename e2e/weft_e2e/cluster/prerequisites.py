"""Puts what the local cluster needs onto this machine: Debian packages, and programs built from source."""

from weft_e2e.cluster import packages, preflight, toolchain
from weft_e2e.cluster.progress import Progress


def install(progress: Progress) -> None:
    """Install and build what is missing; raise Refused where no cluster could run here anyway."""
    preflight.check_setup()
    packages.install(progress)
    toolchain.build_all(progress)
    progress("everything the local cluster needs is here")
