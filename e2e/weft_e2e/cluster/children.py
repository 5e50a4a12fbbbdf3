"""Runs the programs that build something, so that none goes on or begins once the build is interrupted.

Builds run in threads, and an interrupt reaches the main thread alone, which then waits for the others. So it ends their
programs itself: each has a process group of its own, with what it starts.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

from weft_e2e.cluster.errors import SetupError

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""They end a build as Ctrl-C does."""
END_SECONDS = 5.0

_running: set["subprocess.Popen[str]"] = set()
_lock = threading.Lock()
_interrupted = threading.Event()


def check() -> None:
    """Raise SetupError once the build is interrupted."""
    if _interrupted.is_set():
        raise SetupError("interrupted")


@contextmanager
def started(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdout: int | IO[Any] = subprocess.DEVNULL,
    stderr: int | IO[Any] = subprocess.PIPE,
) -> Iterator["subprocess.Popen[str]"]:
    """Run a program while the block runs, and wait for its end; it is killed where the block fails."""
    with _lock:
        check()
        process = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True, process_group=0
        )
        _running.add(process)
    try:
        with process:
            try:
                yield process
            except BaseException:
                _signal(process, signal.SIGKILL)
                raise
    finally:
        with _lock:
            _running.discard(process)


@contextmanager
def ended_when_interrupted() -> Iterator[None]:
    """End all programs where the block is interrupted, before it is left.

    The threads that wait for them then end, too: enter it after the pool of these, at the latest. It may be nested.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _interrupted.clear()
    before = {number: signal.signal(number, _interrupt) for number in SIGNALS}
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        _end_all()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end_all() -> None:
    with _lock:
        _interrupted.set()
        left = list(_running)
    for process in left:
        _signal(process, signal.SIGTERM)
    for process in left:
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        _signal(process, signal.SIGKILL)


def _signal(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
