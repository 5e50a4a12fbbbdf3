"""Run a real engine as a process of this machine: started, waited for, asked for its counters, and surely ended."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from weft_e2e.engines.command import Command
from weft_e2e.metrics import Page, parse
from weft_e2e.waiting import until

START_S = 420.0
"""Three processes import torch and vLLM one after the other: 40 s of one core, on a machine that may be busy."""
END_S = 20.0
LAST_BYTES = 4000


class EngineProcess:
    """One engine; its other processes live in a process namespace that ends with it, where root may make one."""

    def __init__(self, name: str, url: str, command: Command, log: Path) -> None:
        """Start it; what it says goes into ``log``."""
        self.name = name
        self.url = url
        self.log = log
        self._command = command
        self._core = command.env.get("VLLM_CPU_OMP_THREADS_BIND", "").partition("|")[0]  # that of all ranks
        self._alone = os.geteuid() == 0 and shutil.which("unshare") is not None
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        inside = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"] if self._alone else []
        with self.log.open("ab") as out:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *inside, *self._command.argv],
                env=self._command.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def start_again(self) -> None:
        """Start it anew where it was, as a supervisor does; ``wait`` waits until it serves."""
        self.kill()
        self._process = self._start()

    @property
    def alive(self) -> bool:
        """Return whether its process runs."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait until it serves.

        Raises:
            WaitedTooLong: it does not in time.
            RuntimeError: it ended; the message has the end of its log.
        """
        until(self._serves, what=f"engine {self.name}", timeout_s=START_S, every_s=0.5, last=self.last_words)
        if self._core:
            keep_on_core([self._process.pid], int(self._core))

    def _serves(self) -> bool:
        if not self.alive:
            raise RuntimeError(f"engine {self.name} ended with {self._process.returncode}:\n{self.last_words()}")
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/health", timeout=5.0).status_code == 200
        return False

    def counters(self) -> str:
        """Return its metrics page."""
        return httpx.get(f"{self.url}/metrics", timeout=20.0).raise_for_status().text

    def page(self) -> Page:
        """Return its metrics, read."""
        return parse(self.counters())

    def kv_usage(self) -> float:
        """Return the share of its KV cache that is taken, pinned blocks included."""
        return sum(value for (name, _), value in self.page().samples.items() if name == "vllm:kv_cache_usage_perc")

    def finished(self) -> float:
        """Return how many requests it has answered in full since its start."""
        return sum(v for (name, _), v in self.page().samples.items() if name == "vllm:request_success_total")

    def last_words(self) -> str:
        """Return the end of its log."""
        return self.log.read_bytes()[-LAST_BYTES:].decode(errors="replace")

    def kill(self) -> None:
        """End it at once, as a machine's fault would: no process of it gets to do anything more."""
        if self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(END_S)

    def end(self) -> None:
        """Ask it to end, and kill what takes too long."""
        if not self.alive:
            return
        for pid in self._children() or [self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self.kill()

    def _children(self) -> list[int]:
        """Return the engine's own process, where another one guards it."""
        if not self._alone:
            return []
        pid = self._process.pid
        with contextlib.suppress(OSError):
            return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return []


def keep_on_core(pids: Sequence[int], core: int) -> None:
    """Put all threads of processes and their children on a core.

    vLLM's NIXL connector moves the computing thread of every engine to the machine's last core.
    """
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {core})
                waiting += [int(word) for word in (task / "children").read_text().split()]


@contextmanager
def running(*engines: EngineProcess) -> Iterator[None]:
    """Wait until all serve, and end all of them whatever happens."""
    try:
        for engine in engines:
            engine.wait()
        yield
    finally:
        for engine in engines:
            engine.end()
