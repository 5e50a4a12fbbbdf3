"""Processes of a stack, forked from one parent that has imported engine and router: a start costs milliseconds."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from weft_e2e.local.fork_server import END_S, Part

NURSERY = "weft_e2e.local.fork_server"
FORK_S = 60.0
"""How long the parent may take to import everything on a busy machine."""


class Forked:
    """One process: what tests do to a ``Popen``, for a process that is another one's child."""

    def __init__(self) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self._started = threading.Event()
        self._ended = threading.Event()

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs."""
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Return the exit status once the process has ended; raise ``subprocess.TimeoutExpired`` as a Popen does."""
        if not self._ended.wait(timeout) or self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal; one that has ended hears nothing."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)


class ProcessGroup:
    """The parent of all processes of one stack; nobody outlives it."""

    def __init__(self, folder: Path) -> None:
        """Begin to import what engines and routers need; the processes run in ``folder``."""
        self._parts: dict[str, Forked] = {}
        life, self._hold = os.pipe()
        with (folder / "nursery.log").open("ab") as log:
            self._parent = subprocess.Popen(
                [sys.executable, "-P", "-m", NURSERY, str(life), "engines"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, pass_fds=(life,), cwd=folder,
                start_new_session=True,
            )  # fmt: skip
        os.close(life)
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def start(self, part: Part) -> Forked:
        """Start a process and return it once it has begun.

        Raises:
            TimeoutError: the parent did not start it.
        """
        assert self._parent.stdin is not None  # noqa: S101 - opened above
        begun = self._parts[part.name] = Forked()
        self._parent.stdin.write(json.dumps(asdict(part)).encode() + b"\n")
        self._parent.stdin.flush()
        if not begun._started.wait(FORK_S):
            raise TimeoutError(f"{part.name} was not started within {FORK_S:g} s")
        return begun

    def end(self) -> None:
        """End every process: routers before engines, and by force what takes too long."""
        self._parent.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._parent.wait(4 * END_S + 2.0)
        os.close(self._hold)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._parent.pid, signal.SIGKILL)
        self._parent.wait(10)
        self._hearing.join(5)
        for stream in (self._parent.stdin, self._parent.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _hear(self) -> None:
        assert self._parent.stdout is not None  # noqa: S101 - opened with a pipe
        for line in self._parent.stdout:
            report = json.loads(line)
            part = self._parts.get(report.get("name", ""))
            if part is None:
                continue
            if report["event"] == "started":
                part.pid = report["pid"]
                part._started.set()
            elif report["event"] == "ended":
                part.returncode = report["status"]
                part._ended.set()
