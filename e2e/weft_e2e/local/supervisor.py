"""Start parts, wait until they answer, hear of the one that falls, and see to it that none stays behind."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from weft_e2e.local.fork_server import END_S, Part

NURSERY = "weft_e2e.local.fork_server"
START_S = 60.0
"""How long a part may take to answer on a machine that is busy with other things."""

LAST_LINES = 12
_POLL_S = 0.02
_OF_PODS = (
    *("WEFT_REDIS_URL", "WEFT_REDIS_URL_FILE", "WEFT_TOKEN_FILE", "WEFT_LIVE_FILE"),
    *("WEFT_POOL", "WEFT_REVISION", "POD_NAME", "POD_IP"),
)
"""What tells a router of a cluster where it is; nothing of it holds here."""


class Fell(RuntimeError):  # noqa: N818 - reads as what happened
    """Report a part that ended by itself, with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Fall:
    """A part that ended by itself."""

    name: str
    status: int
    log: Path


class ProcessSupervisor:
    """The processes of one service."""

    def __init__(self, folder: Path, *, engines: bool) -> None:
        """Begin to load what parts need; logs go into ``folder``."""
        self.folder = folder
        self._fall: Fall | None = None
        self._ending = False
        self.pids: dict[str, int] = {}
        life, self._hold = os.pipe()
        with (folder / "nursery.log").open("ab") as log:
            self._nursery = subprocess.Popen(
                [sys.executable, "-P", "-m", NURSERY, str(life), *(["engines"] if engines else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=(life,),
                env={name: value for name, value in os.environ.items() if name not in _OF_PODS},
                start_new_session=True,  # Ctrl-C reaches the one who gives the orders, and nobody else
            )
        os.close(life)
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def start(self, part: Part) -> None:
        """Start a part."""
        assert self._nursery.stdin is not None  # noqa: S101 - opened above
        with contextlib.suppress(BrokenPipeError):  # whoever reads no orders has fallen, which is heard of
            self._nursery.stdin.write(json.dumps(asdict(part)).encode() + b"\n")
            self._nursery.stdin.flush()

    def wait(self, what: str, answers: Callable[[], bool], *, timeout_s: float = START_S) -> None:
        """Wait until something answers.

        Raises:
            Fell: a part ended meanwhile, or there was no answer in time.
        """
        deadline = time.monotonic() + timeout_s
        while not answers():
            self.check()
            if time.monotonic() >= deadline:
                raise Fell(f"{what} did not answer within {timeout_s:g} s; the logs are in {self.folder}")
            time.sleep(_POLL_S)

    def check(self) -> None:
        """Raise Fell when a part has ended by itself."""
        fall = self._fall
        if fall is None:
            return
        how = f"with status {fall.status}" if fall.status >= 0 else f"by signal {signal_name(-fall.status)}"
        lines = tail(fall.log)
        words = f"; the last lines of {fall.log}:\n{lines}" if lines else f"; its log {fall.log} is empty"
        raise Fell(f"{fall.name} ended {how}{words}")

    def end(self) -> None:
        """End every part and wait until none is left; Ctrl-C does not cut this short."""
        self._ending = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        self._nursery.terminate()
        # Router and engines may take their time one after the other, and are killed then.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._nursery.wait(4 * END_S + 2.0)
        os.close(self._hold)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: no permission for what is gone
            os.killpg(self._nursery.pid, signal.SIGKILL)
        self._nursery.wait(10)
        self._hearing.join(5)
        for stream in (self._nursery.stdin, self._nursery.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _hear(self) -> None:
        assert self._nursery.stdout is not None  # noqa: S101 - opened with a pipe
        for line in self._nursery.stdout:
            report = json.loads(line)
            if report["event"] == "started":
                self.pids[report["name"]] = report["pid"]
            elif report["event"] == "ended":
                self._fallen(Fall(report["name"], report["status"], Path(report["log"])))
        self._fallen(Fall("the parent of all parts", self._nursery.wait(), self.folder / "nursery.log"))

    def _fallen(self, fall: Fall) -> None:
        if self._ending or self._fall is not None:
            return
        self._fall = fall
        os.kill(os.getpid(), signal.SIGTERM)  # wakes whatever the main thread waits for


def signal_name(number: int) -> str:
    """Return a signal's name, or its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def tail(log: Path, lines: int = LAST_LINES) -> str:
    """Return the last lines of a log, none where there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16384))
            found = file.read().decode(errors="replace").rstrip().splitlines()
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in found[-lines:])


def answers(url: str, path: str, *, timeout_s: float = 2.0) -> bool:
    """Return whether a GET is answered with 200."""
    return page(url, path, timeout_s=timeout_s) is not None


def page(url: str, path: str, *, timeout_s: float = 5.0) -> str | None:
    """Return the text of a page, None where it is not answered with 200."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        text = reply.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return text if reply.status == 200 else None
