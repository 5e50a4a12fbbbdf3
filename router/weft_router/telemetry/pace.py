"""Remember how fast each session's tokens came: what one more stall would do to its ITL depends on it."""

from collections import OrderedDict
from dataclasses import dataclass

from weft_router.compiling import mypyc_attr

MAX_SESSIONS = 50_000


@mypyc_attr(acyclic=True)
@dataclass(slots=True)
class Pace:
    """Gaps between a session's tokens so far: their seconds, their number, and how many were over the ITL SLO.

    ``streams`` are its streamed rounds, ``late`` those whose first token came after the TTFT SLO.
    """

    seconds: float = 0.0
    gaps: int = 0
    over: int = 0
    streams: int = 0
    late: int = 0

    def add(self, seconds: float, tokens: int, *, itl_slo: float) -> None:
        """Count ``tokens`` tokens that came together, ``seconds`` after the one before."""
        self.seconds += seconds
        self.gaps += tokens
        self.over += seconds > itl_slo


class Paces:
    """The paces of a worker's sessions; those unused for longest are forgotten first."""

    def __init__(self, limit: int = MAX_SESSIONS) -> None:
        self._limit = limit
        self._of: OrderedDict[str, Pace] = OrderedDict()

    def of(self, session: str) -> Pace:
        """Return a session's pace, a new one for a new session."""
        pace = self._of.get(session)
        if pace is None:
            pace = self._of[session] = Pace()
            if len(self._of) > self._limit:
                self._of.popitem(last=False)
        else:
            self._of.move_to_end(session)
        return pace

    def end(self, session: str) -> Pace | None:
        """Forget a session that ended, and return its pace if it had one."""
        return self._of.pop(session, None)
