"""Keep the latencies of each session, on which the effect of one more stall on its ITL depends."""

from collections import OrderedDict
from dataclasses import dataclass

from weft_router.mypyc_compat import mypyc_attr

MAX_SESSIONS = 50_000


@mypyc_attr(acyclic=True)
@dataclass(slots=True)
class SessionLatency:
    """Gaps between a session's tokens so far: their seconds, their number, and how many were over the ITL SLO.

    ``answers`` are its rounds with a first token, ``late`` those whose first token came after the TTFT SLO.
    """

    seconds: float = 0.0
    gaps: int = 0
    over: int = 0
    answers: int = 0
    late: int = 0

    def add(self, seconds: float, tokens: int, *, itl_slo: float) -> None:
        """Count ``tokens`` tokens that came together, ``seconds`` after the one before."""
        self.seconds += seconds
        self.gaps += tokens
        self.over += seconds > itl_slo


class SessionLatencies:
    """The latencies of a worker's sessions; those unused for longest are forgotten first."""

    def __init__(self, limit: int = MAX_SESSIONS) -> None:
        self._limit = limit
        self._of: OrderedDict[str, SessionLatency] = OrderedDict()

    def of(self, session: str) -> SessionLatency:
        """Return the latencies of a session, new ones for a new session."""
        latency = self._of.get(session)
        if latency is None:
            latency = self._of[session] = SessionLatency()
            if len(self._of) > self._limit:
                self._of.popitem(last=False)
        else:
            self._of.move_to_end(session)
        return latency

    def end(self, session: str) -> SessionLatency | None:
        """Forget a session that ended, and return its latencies if it had any."""
        return self._of.pop(session, None)
