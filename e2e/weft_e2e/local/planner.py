"""Ask the planner for a plan as the operator does: a process of its own, whose answer is read the same way."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from weft_e2e.local import kept

if TYPE_CHECKING:  # what reads manifests takes a while to load: the planner loads itself beside it
    from weft_operator.planning.planner_process import Planned

PLANNER = (sys.executable, "-P", "-m", "weft_planner", "solve")

PATIENCE_S = 8.0
"""After this long, say what takes so long."""
DEADLINE_S = 180.0


class NoPlan(RuntimeError):  # noqa: N818 - reads as what happened
    """Report why there is no plan."""


class Planner:
    """A planner that loads itself from the start, and is asked once."""

    def __init__(self) -> None:
        """Start it."""
        self._name = ""
        self._known: bytes | None = None
        self._process = subprocess.Popen(
            PLANNER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )

    def ask(self, request: Mapping[str, object]) -> None:
        """Ask for the plan of a request; nobody plans what was planned before."""
        self._name = kept.name_of(request)
        self._known = kept.find(self._name)
        if self._known is not None:
            self._process.kill()  # what it would still load costs the others time
            return
        stdin, self._process.stdin = self._process.stdin, None
        assert stdin is not None, "a planner is asked once"  # noqa: S101 - no other use of it is meant
        with contextlib.suppress(BrokenPipeError), stdin:  # one that has ended says why in its answer
            stdin.write(json.dumps(request).encode())

    def answer(self, say: Callable[[str], None]) -> "Planned":
        """Wait for the plan that was asked for.

        Raises:
            NoPlan: no layout is possible, or the planner failed; the message says why and what to change.
        """
        from weft_operator.planning.planner_process import Refused, read_answer

        if self._known is not None:
            say("planned before: the same service, the same planner")
            status, out, err = 0, self._known, b""
        else:
            out, err = self._wait(say)
            status = self._process.returncode
        answer = read_answer(status, out, err.decode(errors="replace").strip())
        if isinstance(answer, Refused):
            kept.forget(self._name)
            raise NoPlan(f"there is no plan for this service: {answer.reason}: {answer.message}")
        if self._known is None:
            kept.keep(self._name, out)
        return answer

    def _wait(self, say: Callable[[str], None]) -> tuple[bytes, bytes]:
        try:
            return self._process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            say("still planning (many GPUs take longer; the first plan of a new version compiles its simulator)")
        try:
            return self._process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise NoPlan(f"the planner gave no answer within {DEADLINE_S + PATIENCE_S:g} s") from None

    def end(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
