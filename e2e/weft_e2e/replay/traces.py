"""Load the recorded sessions that come with the package (sources and licences: ``weft_e2e/data/README.md``)."""

from importlib import resources

from weft_e2e.replay.sessions import RecordedRound, RecordedSession, Trace
from weft_planner.traces.reading import parse_trace
from weft_planner.traces.records import TraceError

__all__ = ["SOURCES", "TraceError", "load"]

SOURCES = {
    "gaia_whowhen": ("ag2ai/Agents_Failure_Attribution (Who&When), magentic-one on GAIA tasks", "MIT"),
    "claude_code": ("callanjfox/kv-cache-tester, recorded Claude Code use", "Apache-2.0"),
}


def load(name: str) -> Trace:
    """Return one of the packaged traces by name.

    Raises:
        TraceError: there is none of this name, or a line of it cannot be read.
    """
    if name not in SOURCES:
        raise TraceError(f"trace: no trace is called {name!r}; choose one of {', '.join(sorted(SOURCES))}")
    origin, licence = SOURCES[name]
    packed = resources.files("weft_e2e").joinpath("data", f"{name}.jsonl.gz").read_bytes()
    sessions = tuple(
        RecordedSession(
            name=session.name,
            rounds=tuple(RecordedRound(r.added_tokens, r.decode_tokens, r.gap_s) for r in session.rounds),
        )
        for session in parse_trace(packed, name=name).sessions
    )
    return Trace(name=name, origin=origin, licence=licence, sessions=sessions)
