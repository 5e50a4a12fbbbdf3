"""Where the local cluster keeps its files: one cache folder, never the repository."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from weft_e2e.cluster.config import check_name


def cache_root() -> Path:
    """Return the cache folder: $WEFT_CACHE, else $XDG_CACHE_HOME/weft, else ~/.cache/weft."""
    if explicit := os.environ.get("WEFT_CACHE"):
        return Path(explicit).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().absolute() / "weft"
    return Path.home() / ".cache" / "weft"


def bin_dir() -> Path:
    """Return the folder of built programs, each named <name>-<version>."""
    return cache_root() / "bin"


def clusters_dir() -> Path:
    """Return the folder that holds one folder per cluster."""
    return cache_root() / "clusters"


@dataclass(frozen=True)
class ClusterPaths:
    """Every file of one cluster."""

    name: str
    root: Path

    @classmethod
    def of(cls, name: str) -> "ClusterPaths":
        """Return the paths of the cluster `name`; raise Refused for a name that could lead out of clusters_dir()."""
        check_name(name)
        return cls(name=name, root=clusters_dir() / name)

    @property
    def lock(self) -> Path:
        # Beside the state, not in it: `down` removes the state while it holds the lock.
        return self.root.parent / f".{self.name}.lock"

    @property
    def state(self) -> Path:
        return self.root / "cluster.json"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def cgroup(self) -> str:
        """Name of the cluster's control group; the suffix keeps two caches with one cluster name apart."""
        digest = hashlib.sha256(str(self.root).encode()).hexdigest()[:6]
        return f"weft-{self.name}-{digest}"

    def member(self, member: str) -> Path:
        """Return the "disk" of a member (a node or the control plane)."""
        return self.root / member

    def record(self, member: str) -> Path:
        """Return the file in which a member's first process writes its identity."""
        return self.member(member) / "init.json"

    def log(self, member: str, service: str) -> Path:
        return self.member(member) / "logs" / f"{service}.log"
