"""What is known about a cluster between two commands: its request, its port, who its first processes are."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from weft_e2e.cluster.config import ClusterConfig
from weft_e2e.cluster.errors import ClusterError, NotRunning, Refused
from weft_e2e.cluster.paths import ClusterPaths, clusters_dir

LOCK_SECONDS = 180.0  # longer than the slowest `up`


@dataclass(frozen=True)
class ClusterState:
    """The content of cluster.json."""

    config: ClusterConfig
    api_port: int
    created: float  # seconds since the epoch
    powered_off: tuple[str, ...] = ()
    fake_nodes: int = 0

    def to_json(self) -> str:
        values = {
            "config": self.config.to_dict(),
            "api_port": self.api_port,
            "created": self.created,
            "powered_off": list(self.powered_off),
            "fake_nodes": self.fake_nodes,
        }
        return json.dumps(values, indent=2)

    @classmethod
    def from_json(cls, text: str) -> "ClusterState":
        """Parse cluster.json; raise ValueError where another version wrote something else."""
        try:
            values = json.loads(text)
            return cls(
                config=ClusterConfig.from_dict(values["config"]),
                api_port=int(values["api_port"]),
                created=float(values["created"]),
                powered_off=tuple(str(node) for node in values["powered_off"]),
                fake_nodes=int(values["fake_nodes"]),
            )
        except (KeyError, TypeError, Refused) as error:
            raise ValueError(f"not a cluster's state: {error!r}") from error

    def with_power(self, node: str, *, on: bool) -> "ClusterState":
        others = tuple(name for name in self.powered_off if name != node)
        return replace(self, powered_off=others if on else (*others, node))


def read(paths: ClusterPaths) -> ClusterState | None:
    """Return the cluster's state, or None when there is none that can be used."""
    try:
        return ClusterState.from_json(paths.state.read_text())
    except (FileNotFoundError, ValueError):
        return None


def require(paths: ClusterPaths) -> ClusterState:
    """Return the state of a cluster that is there, or raise NotRunning with the command that starts it."""
    state = read(paths)
    if state is None:
        there = ", ".join(names()) or "none"
        raise NotRunning(
            f"no cluster {paths.name!r} (there is: {there}); start it with `weft cluster up --name {paths.name}`"
        )
    return state


def write(paths: ClusterPaths, state: ClusterState) -> None:
    temporary = paths.state.with_suffix(".new")
    temporary.write_text(state.to_json())
    temporary.rename(paths.state)


def names() -> list[str]:
    """Return the names of all clusters that have state."""
    folder = clusters_dir()
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def member_pid(paths: ClusterPaths, member: str) -> int | None:
    """Return the process id of a member's first process, or None when it is not alive."""
    try:
        record = json.loads(paths.record(member).read_text())
        stat = Path(f"/proc/{int(record['pid'])}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError, ValueError, KeyError):
        return None
    words = stat.rpartition(")")[2].split()
    same = record.get("boot") == boot_id() and record.get("start") == int(words[19])
    return int(record["pid"]) if same and words[0] not in ("Z", "X") else None


def require_member_pid(paths: ClusterPaths, member: str) -> int:
    pid = member_pid(paths, member)
    if pid is None:
        raise NotRunning(f"{member} of cluster {paths.name!r} is off; see `weft cluster status --name {paths.name}`")
    return pid


@contextmanager
def locked(paths: ClusterPaths) -> Iterator[None]:
    """Hold the cluster's lock, so that two commands never change one cluster at once.

    The lock's file goes with the cluster: who leaves no cluster behind removes it.
    """
    paths.lock.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_SECONDS
    while (descriptor := _try_lock(paths.lock)) is None:
        if time.monotonic() > deadline:
            raise ClusterError(f"another command has held cluster {paths.name!r} for {LOCK_SECONDS:.0f} s")
        time.sleep(0.1)
    try:
        yield
    finally:
        if not paths.root.exists():
            paths.lock.unlink(missing_ok=True)
        os.close(descriptor)


def _try_lock(file: Path) -> int | None:
    """Return a descriptor that holds the lock, or None when another process does."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it may have removed the file meanwhile: a lock on a file without a name locks nobody out.
        if os.fstat(descriptor).st_ino == file.stat().st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None
