"""Run processes on chosen cores and read what they use: processor seconds with all children, memory by process."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.router.compiled import BenchError

HOST = "127.0.0.1"
TICKS = os.sysconf("SC_CLK_TCK")
STARTED = 19
"""Place of a process's start time behind its name in /proc/PID/stat: with the PID it names one process for good."""
LAUNCH = """
import ctypes, os, resource, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""A process chooses its threads by the cores it may use, so these are set before it begins; it ends with its parent."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Which cores the router has, and which the load."""

    router: tuple[int, ...]
    load: tuple[int, ...]


def cores() -> Cores:
    """Give the router a core and the load another one; on one core they share it."""
    known = sorted(os.sched_getaffinity(0))
    return Cores((known[0],), (known[1 % len(known)],))


def pairs() -> tuple[Cores, Cores, bool]:
    """Return the cores for one router process and for two, each with its own, and whether the load has two others.

    Where there are less than four the load runs on the two cores in both cases; on one all share it.
    """
    known = sorted(os.sched_getaffinity(0))
    apart = len(known) >= 4
    load = tuple(known[2:4] if apart else known[:2])
    return Cores(tuple(known[:1]), load), Cores(tuple(known[:2]), load), apart


@dataclass
class Process:
    """One running process and the file of what it says."""

    name: str
    popen: "subprocess.Popen[bytes]"
    log: Path

    def alive(self) -> None:
        """Check that it still runs.

        Raises:
            BenchError: it ended; the message holds its last words.
        """
        if self.popen.poll() is not None:
            raise BenchError(f"{self.name} ended with status {self.popen.returncode}: {self.last_words()}")

    def last_words(self) -> str:
        """Return the end of what it wrote."""
        return self.log.read_text(errors="replace")[-800:].strip()

    def stop(self) -> None:
        """End it and its children within a few seconds."""
        below = [(pid, _stat(pid)) for pid in tree(self.popen.pid)[1:]]
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            try:
                self.popen.wait(3)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait(10)
        for pid, fields in below:
            if fields and _stat(pid)[STARTED : STARTED + 1] == fields[STARTED : STARTED + 1]:
                os.kill(pid, signal.SIGKILL)


def start(
    name: str, command: Sequence[str], *, on: Sequence[int], log: Path, env: Mapping[str, str] | None = None
) -> Process:
    """Start a process on the given cores."""
    argv = [sys.executable, "-c", LAUNCH, ",".join(map(str, on)), *command]
    with log.open("wb") as out:
        popen = subprocess.Popen(argv, stdout=out, stderr=out, cwd=log.parent, env={**os.environ, **(env or {})})
    return Process(name, popen, log)


def tree(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (above := parent(int(entry.name))) is not None:
            children.setdefault(above, []).append(int(entry.name))
    found = [pid]
    for known in found:
        found += children.get(known, [])
    return found


def parent(pid: int) -> int | None:
    """Return a process's parent, None when it is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the processor time of these processes, their descendants and those of them that ended, in seconds."""
    everyone = {one for pid in pids for one in tree(pid)}
    return sum(sum(map(int, fields[11:15])) for pid in everyone if (fields := _stat(pid))) / TICKS


def rss_mb(pids: Sequence[int]) -> list[float]:
    """Return the resident memory of each process and descendant, in MB (10^6 bytes)."""
    found = []
    for pid in {one for known in pids for one in tree(known)}:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        found += [int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmRSS:")]
    return sorted(found, reverse=True)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; the name before it may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def get(port: int, path: str) -> str | None:
    """Return a page of a process on loopback, None when it does not give it."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=5) as reply:
            text: str = reply.read().decode()
            return text
    except (urllib.error.URLError, OSError):
        return None


def wait_for(process: Process, path: str, port: int, *, seconds: float = 60.0) -> None:
    """Wait until a process gives a page.

    Raises:
        BenchError: it ended, or did not within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while get(port, path) is None:
        process.alive()
        if time.monotonic() > deadline:
            raise BenchError(f"{process.name} did not answer {path} within {seconds:g} s: {process.last_words()}")
        time.sleep(0.05)
