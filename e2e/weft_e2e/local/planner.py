"""Ask the planner for a plan as the operator does: a process of its own, whose answer is read the same way."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what reads manifests takes a while to load: the planner loads itself beside it
    from weft_operator.planning.child import Planned

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
        self._process = subprocess.Popen(
            PLANNER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )

    def ask(self, request: Mapping[str, object]) -> "Planned | None":
        """Ask for the plan of a request; return it at once where it was asked for before."""
        from weft_e2e.local import kept
        from weft_operator.planning.child import Planned, read_answer

        self._name = kept.name_of(request)
        before = kept.find(self._name)
        if before is not None and isinstance(known := read_answer(0, before, ""), Planned):
            return known
        stdin, self._process.stdin = self._process.stdin, None
        assert stdin is not None, "a planner is asked once"  # noqa: S101 - no other use of it is meant
        with contextlib.suppress(BrokenPipeError), stdin:  # one that has ended says why in its answer
            stdin.write(json.dumps(request).encode())
        return None

    def answer(self, say: Callable[[str], None]) -> "Planned":
        """Wait for the plan that was asked for.

        Raises:
            NoPlan: no layout is possible, or the planner failed; the message says why and what to change.
        """
        try:
            out, err = self._process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            say("still planning (many GPUs take longer; the first plan of a new version compiles its simulator)")
            try:
                out, err = self._process.communicate(timeout=DEADLINE_S)
            except subprocess.TimeoutExpired:
                raise NoPlan(f"the planner gave no answer within {DEADLINE_S + PATIENCE_S:g} s") from None
        from weft_e2e.local import kept
        from weft_operator.planning.child import Refused, read_answer

        answer = read_answer(self._process.returncode, out, err.decode(errors="replace").strip())
        if isinstance(answer, Refused):
            raise NoPlan(f"there is no plan for this service: {answer.reason}: {answer.message}")
        kept.keep(self._name, out)
        return answer

    def end(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
