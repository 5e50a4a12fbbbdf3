"""Have programs solved in a process of its own: a solver that crashes, hangs or is missing costs one plain error."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from weft_planner.programs.program import Program, Solution, program_to_json
from weft_planner.programs.scip import SolverError

COMMAND = (sys.executable, "-m", "weft_planner.programs.scip")
GRACE_S = 3.0
"""Beyond its time limit a solver gets this long to write down what it has, and for its first answer to load SCIP."""
BUSY = 2.0
"""A solver's limit is of processor time, which a busy machine gives it half of, mostly."""
LARGEST_ANSWER = 16 * 2**20
_TAIL = 300


class Solver:
    """A solver process; it loads while the caller does other work, and ends with the ``with`` block."""

    def __init__(self, command: Sequence[str] | None = None, *, grace_s: float | None = None) -> None:
        """Start the process; without a command it is this interpreter with SCIP."""
        self._grace_s = GRACE_S if grace_s is None else grace_s
        self._failure: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                list(command or COMMAND), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            self._failure = f"the solver cannot be started: {error.strerror}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def solve(self, program: Program, *, time_limit_s: float) -> Solution | None:
        """Return an optimal or, at a limit, the best known solution; None when the program is infeasible.

        Raises:
            SolverError: there is no answer; after a crash or a hang every later call says so at once.
        """
        if self._process is None:
            raise SolverError(self._failure or "the solver has ended")
        asked = json.dumps({"program": program_to_json(program), "timeLimit": time_limit_s})
        try:
            answer = self._exchange(self._process, asked.encode() + b"\n", BUSY * time_limit_s + self._grace_s)
        except SolverError as error:
            self._failure = str(error)
            self._end()
            raise
        if "error" in answer:
            raise SolverError(str(answer["error"]))
        solved = answer["solved"]
        if not isinstance(solved, dict):
            return None
        return Solution(**{**solved, "values": tuple(solved["values"])})

    def _exchange(self, process: "subprocess.Popen[bytes]", question: bytes, within_s: float) -> dict[str, object]:
        assert process.stdin is not None  # noqa: S101 - opened as a pipe
        try:
            process.stdin.write(question)
            process.stdin.flush()
        except OSError as error:
            raise SolverError(self._exit_report(process)) from error
        line = _read_line(process, time.monotonic() + within_s)
        if line is None:
            raise SolverError(f"the solver gave no answer within {within_s:g} s and was ended")
        try:
            body = json.loads(line)
            return {"error": body["error"]} if "error" in body else {"solved": body["solved"]}
        except (ValueError, KeyError, TypeError) as error:
            raise SolverError(self._exit_report(process)) from error

    def _exit_report(self, process: "subprocess.Popen[bytes]") -> str:
        """Say how a solver ended that should not have: the last line that it wrote to stderr, or its status."""
        process.kill()
        _, err = process.communicate()
        words = err.decode(errors="replace").strip().splitlines()
        return f"the solver ended with status {process.returncode}" + (f": {words[-1][-_TAIL:]}" if words else "")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with contextlib.suppress(OSError, ValueError):
            process.communicate()


def _read_line(process: "subprocess.Popen[bytes]", deadline: float) -> bytes | None:
    """Return the next line of a process's output, empty when it ended, None at the deadline."""
    assert process.stdout is not None  # noqa: S101 - opened as a pipe
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or len(line) > LARGEST_ANSWER or not selector.select(left):
                return None
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                return b""
            line += part
    return line
