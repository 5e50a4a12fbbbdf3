"""Load the recorded sessions that come with the package (sources and licences: ``weft_e2e/data/README.md``)."""

import gzip
import json
from collections.abc import Iterable
from importlib import resources

from weft_e2e.replay.sessions import RecordedRound, RecordedSession, Trace

SOURCES = {
    "gaia_whowhen": ("ag2ai/Agents_Failure_Attribution (Who&When), magentic-one on GAIA tasks", "MIT"),
    "claude_code": ("callanjfox/kv-cache-tester, recorded Claude Code use", "Apache-2.0"),
}


class TraceError(ValueError):
    """Report a trace that is not known or a line of one that cannot be read."""


def load(name: str) -> Trace:
    """Return one of the packaged traces by name."""
    if name not in SOURCES:
        raise TraceError(f"trace: no trace is called {name!r}; choose one of {', '.join(sorted(SOURCES))}")
    origin, licence = SOURCES[name]
    packed = resources.files("weft_e2e").joinpath("data", f"{name}.jsonl.gz").read_bytes()
    lines = gzip.decompress(packed).decode().splitlines()
    return Trace(name=name, origin=origin, licence=licence, sessions=parse(lines, file=name))


def parse(lines: Iterable[str], *, file: str) -> tuple[RecordedSession, ...]:
    """Read session lines (one JSON object each); a wrong line is refused with its number and field."""
    sessions = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{file} line {number}"
        try:
            row = json.loads(line)
            rounds = tuple(_round(turn, where=f"{where} turn {k}") for k, turn in enumerate(row["turns"]))
            name = str(row["session"])
        except json.JSONDecodeError as error:
            raise TraceError(f"{where}: not JSON: {error}") from None
        except KeyError as error:
            raise TraceError(f"{where}: field {error} is missing") from None
        except TypeError:
            raise TraceError(f"{where}: not an object with a list of turns") from None
        if not rounds:
            raise TraceError(f"{where}: turns is empty")
        sessions.append(RecordedSession(name=name, rounds=rounds))
    return tuple(sessions)


def _round(turn: dict[str, object], *, where: str) -> RecordedRound:
    added, decode, gap = turn["incr_prefill"], turn["decode"], turn.get("gap_s")
    for field, value in (("incr_prefill", added), ("decode", decode)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise TraceError(f"{where}: {field} must be a whole number of tokens of at least 1, not {value!r}")
    if gap is not None and (not isinstance(gap, int | float) or gap < 0):
        raise TraceError(f"{where}: gap_s must be null or seconds of at least 0, not {gap!r}")
    assert isinstance(added, int) and isinstance(decode, int)  # noqa: S101, PT018 - checked above, told to mypy here
    return RecordedRound(added_tokens=added, decode_tokens=decode, gap_s=None if gap is None else float(gap))
