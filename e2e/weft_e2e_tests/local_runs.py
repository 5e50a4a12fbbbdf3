"""Run ``weft local`` as a user does, read what it says, and find out which of its processes are left."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from weft_e2e.waiting import until

EXAMPLE = Path(__file__).resolve().parents[2] / "docs/examples/llama-3.1-8b.yaml"
SERVES = "Ctrl-C ends it."
START_S = 100.0


@dataclass(slots=True)
class LocalRun:
    """One run: its process and every line it has said."""

    process: subprocess.Popen[str]
    logs: Path
    lines: list[str] = field(default_factory=list)

    @property
    def said(self) -> str:
        """Return all that was said so far."""
        return "\n".join(self.lines)

    @property
    def url(self) -> str:
        """Return the address of the router."""
        return self._word(r"^URL +(http://\S+)/v1$")

    @property
    def ready_s(self) -> float:
        """Return the seconds it says it took."""
        return float(self._word(r"^Ready +in ([0-9.]+) s"))

    def pids(self) -> list[int]:
        """Return the processes that it has started and that still run: the parent of all parts, and the parts."""
        listed = processes()
        parents = [pid for pid, parent, words in listed if parent == self.process.pid and NURSERY in words]
        return parents + [pid for pid, parent, _ in listed if parent in parents]

    @property
    def token(self) -> str:
        """Return the token that internal pages ask for."""
        return (self.logs / "token").read_text()

    def wait_for(self, words: str, timeout_s: float = START_S) -> None:
        """Wait until something is said."""
        until(
            lambda: words in self.said or self._require_running(),
            what=repr(words),
            timeout_s=timeout_s,
            every_s=0.05,
            last=lambda: self.said,
        )

    def end(self, number: int = signal.SIGINT, timeout_s: float = 20.0) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def _word(self, pattern: str) -> str:
        found = re.search(pattern, self.said, re.MULTILINE)
        assert found is not None, self.said
        return found.group(1)

    def _require_running(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"it ended with {self.process.returncode}: {self.said}")
        return False


NURSERY = "weft_e2e.local.fork_server"


def processes() -> list[tuple[int, int, str]]:
    """Return pid, parent's pid and command line of every process of this machine that is no zombie."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 3) for line in listed.stdout.splitlines())
    return [(int(row[0]), int(row[1]), row[3]) for row in rows if len(row) == 4 and not row[2].startswith("Z")]


def alive(pids: Sequence[int]) -> list[int]:
    """Return those of some processes that still run."""
    there = {pid for pid, _, _ in processes()}
    return [pid for pid in pids if pid in there]


@contextmanager
def local_run(
    logs: Path, *args: str, file: Path = EXAMPLE, env: Mapping[str, str] = MappingProxyType({})
) -> Iterator[LocalRun]:
    """Start ``weft local`` on an example, and see that nothing of it is left behind."""
    argv = [sys.executable, "-m", "weft_e2e.local", "-f", str(file), "--logs", str(logs), *args]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
    )
    run = LocalRun(process, logs)
    reader = threading.Thread(target=_read, args=(run,), daemon=True)
    reader.start()
    try:
        yield run
    finally:
        parts = run.pids()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        reader.join(5)
        assert process.stdout is not None
        process.stdout.close()
        until(lambda: not alive(parts), what="the end of every part", timeout_s=10, every_s=0.1)


def _read(run: LocalRun) -> None:
    assert run.process.stdout is not None
    for line in run.process.stdout:
        run.lines.append(line.rstrip("\n"))
