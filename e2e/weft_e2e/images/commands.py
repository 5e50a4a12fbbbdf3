"""Runs a program that builds or ships images, with what it says in a log file."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from weft_e2e.cluster.children import started
from weft_e2e.images.errors import BuildFailedError

LOG_TAIL_LINES = 25
LIMIT_SECONDS = 1800


def run_logged(argv: Sequence[str], *, log: Path, what: str, env: Mapping[str, str] | None = None) -> None:
    """Run a program with its output in a file; raise with the end of it on failure."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output, started(argv, stdout=output, stderr=subprocess.STDOUT, env=env) as done:
        try:
            done.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired as late:
            raise BuildFailedError(f"{what} took longer than {LIMIT_SECONDS} s; its log: {log}") from late
    if done.returncode != 0:
        raise BuildFailedError(f"{what} failed (exit status {done.returncode}); the end of {log}:\n{tail(log)}")


def tail(log: Path) -> str:
    """Return the last lines of a log file."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
