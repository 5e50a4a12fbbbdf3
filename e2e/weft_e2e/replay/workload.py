"""Fit the workload that a plan is made for to the very sessions that will be replayed."""

from collections.abc import Sequence

from weft_e2e.replay.sessions import PlannedSession
from weft_planner.traces.records import Round, Session, Trace
from weft_planner.workload.trace_fit import FitOptions, TraceFit, fit_trace


def fit_workload(sessions: Sequence[PlannedSession], *, name: str, within_s: float) -> TraceFit:
    """Fit distributions to sessions that arrive at random within ``within_s`` seconds, at once when that is 0."""
    recorded = tuple(
        Session(
            name=session.name,
            rounds=tuple(Round(r.added_tokens, r.decode_tokens, gap_s=r.gap_s) for r in session.rounds),
        )
        for session in sessions
    )
    rate = len(sessions) / within_s if within_s > 0 else float(len(sessions))
    return fit_trace(Trace(name, "sessions", recorded), FitOptions(arrivals=rate))
