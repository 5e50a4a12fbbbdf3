"""The values of a replay: recorded sessions, the sessions chosen from them, and what each round will send."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordedRound:
    """One model call as the source recorded it; ``gap_s`` is None where the source has no timing."""

    added_tokens: int
    decode_tokens: int
    gap_s: float | None


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """One recorded conversation or agent run."""

    name: str
    rounds: tuple[RecordedRound, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """A file of recorded sessions with the words that say where it is from."""

    name: str
    origin: str
    licence: str
    sessions: tuple[RecordedSession, ...]


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """One model call to be made: tokens added to the conversation, tokens asked for, pause before it in seconds."""

    added_tokens: int
    decode_tokens: int
    gap_s: float


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """One session to be replayed; ``arrival_s`` counts from the start of the replay."""

    name: str
    arrival_s: float
    rounds: tuple[PlannedRound, ...]
