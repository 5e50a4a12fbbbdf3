"""Choose sessions from a trace so that they fit a model and a time budget, and say every cap and fill.

The choice is pure: the same trace, limits and seed give the same sessions, arrivals and gaps.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from weft_e2e.replay.sessions import PlannedRound, PlannedSession, RecordedSession, Trace

# Every message costs some tokens of chat template (role marks); kept free below the model's limit.
FRAMING_TOKENS_PER_MESSAGE = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """What a replay may last and hold: sessions, rounds, tokens; times in seconds."""

    sessions: int = 32
    min_rounds: int = 3
    max_rounds: int = 6
    max_added_tokens: int = 4096
    max_decode_tokens: int = 384
    max_context_tokens: int = 32768
    arrivals_within_s: float = 50.0
    gap_scale: float = 0.2
    max_gap_s: float = 3.0
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse limits that no replay can keep."""
        for field in (
            "sessions",
            "min_rounds",
            "max_rounds",
            "max_added_tokens",
            "max_decode_tokens",
            "max_context_tokens",
        ):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1")
        if self.max_rounds < self.min_rounds:
            raise ValueError(f"max_rounds {self.max_rounds} is below min_rounds {self.min_rounds}")
        for field in ("arrivals_within_s", "gap_scale", "max_gap_s"):
            if not math.isfinite(getattr(self, field)) or getattr(self, field) < 0:
                raise ValueError(f"{field} must be a finite number of at least 0")


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen sessions in order of arrival, and ``notes``: one sentence for each cap, fill and scale applied."""

    trace: str
    sessions: tuple[PlannedSession, ...]
    notes: tuple[str, ...]

    @property
    def rounds(self) -> int:
        """Return how many model calls the replay will make."""
        return sum(len(s.rounds) for s in self.sessions)


@dataclass(slots=True)
class _Tally:
    cut_sessions: int = 0
    cut_added: int = 0
    cut_decodes: int = 0
    filled_gaps: int = 0
    cut_gaps: int = 0


def recorded_gaps(sessions: Sequence[RecordedSession]) -> tuple[float, ...]:
    """Return every recorded pause before a later round, in seconds, in file order."""
    return tuple(r.gap_s for s in sessions for r in s.rounds[1:] if r.gap_s is not None)


def select(trace: Trace, limits: Limits, *, gap_pool: Sequence[float] = (), gap_pool_name: str = "") -> Selection:
    """Choose, cap and time the sessions to replay; ``gap_pool`` (seconds) fills pauses the trace does not record."""
    rng = random.Random(limits.seed)  # noqa: S311 - a reproducible choice, not a secret
    tally = _Tally()
    cut: list[tuple[str, tuple[PlannedRound, ...]]] = []
    too_short = 0
    for session in trace.sessions:
        rounds = _fit(session, limits)
        if len(rounds) < limits.min_rounds:
            too_short += 1
            continue
        cut.append((session.name, rounds))
    taken = rng.sample(cut, min(limits.sessions, len(cut)))
    if not taken:
        raise ValueError(f"no session of {trace.name} fits the limits: lower min_rounds or raise max_context_tokens")
    recorded = {s.name: s for s in trace.sessions}
    arrivals = sorted(rng.uniform(0.0, limits.arrivals_within_s) for _ in taken)
    first = arrivals[0]
    sessions = []
    for arrival, (name, rounds) in zip(arrivals, taken, strict=True):
        timed = _time(rounds, recorded[name], limits=limits, pool=gap_pool, rng=rng, tally=tally)
        sessions.append(PlannedSession(name=name, arrival_s=arrival - first, rounds=timed))
    notes = _notes(
        trace, limits, taken=len(taken), eligible=len(cut), too_short=too_short, tally=tally, pool_name=gap_pool_name
    )
    return Selection(trace=trace.name, sessions=tuple(sessions), notes=notes)


def _fit(session: RecordedSession, limits: Limits) -> tuple[PlannedRound, ...]:
    """Return the leading rounds that keep within the context and round limits, answers not yet cut or timed."""
    kept: list[PlannedRound] = []
    context = 0
    for recorded in session.rounds[: limits.max_rounds]:
        added = min(recorded.added_tokens, limits.max_added_tokens)
        decode = min(recorded.decode_tokens, limits.max_decode_tokens)
        context += added + decode + 2 * FRAMING_TOKENS_PER_MESSAGE
        if context > limits.max_context_tokens:
            break
        kept.append(PlannedRound(added_tokens=added, decode_tokens=decode, gap_s=0.0))
    return tuple(kept)


def _time(
    rounds: tuple[PlannedRound, ...],
    recorded: RecordedSession,
    *,
    limits: Limits,
    pool: Sequence[float],
    rng: random.Random,
    tally: _Tally,
) -> tuple[PlannedRound, ...]:
    if len(rounds) < len(recorded.rounds):
        tally.cut_sessions += 1
    timed = []
    for k, (planned, source) in enumerate(zip(rounds, recorded.rounds, strict=False)):
        if planned.added_tokens < source.added_tokens:
            tally.cut_added += 1
        if planned.decode_tokens < source.decode_tokens:
            tally.cut_decodes += 1
        gap = 0.0
        if k > 0:
            raw = source.gap_s
            if raw is None:
                tally.filled_gaps += 1
                raw = rng.choice(pool) if pool else 0.0
            gap = raw * limits.gap_scale
            if gap > limits.max_gap_s:
                tally.cut_gaps += 1
                gap = limits.max_gap_s
        timed.append(PlannedRound(added_tokens=planned.added_tokens, decode_tokens=planned.decode_tokens, gap_s=gap))
    return tuple(timed)


def _notes(
    trace: Trace, limits: Limits, *, taken: int, eligible: int, too_short: int, tally: _Tally, pool_name: str
) -> tuple[str, ...]:
    if limits.arrivals_within_s > 0:
        rate = f"{taken / limits.arrivals_within_s:.2f} sessions/s"
        arrivals = f"arrivals are not recorded: random within {limits.arrivals_within_s:g} s ({rate})"
    else:
        arrivals = "arrivals are not recorded: all sessions start at once"
    notes = [
        f"{taken} of {len(trace.sessions)} sessions of {trace.name} ({trace.origin}; {trace.licence})",
        f"chosen, timed and filled with seed {limits.seed}",
        "texts are made up to the recorded token counts: the trace holds lengths only",
        arrivals,
    ]
    if too_short:
        notes.append(
            f"{too_short} sessions have fewer than {limits.min_rounds} rounds within the limits and were left out"
        )
    if eligible > taken:
        notes.append(f"{taken} of the {eligible} sessions that fit were drawn at random")
    if tally.cut_sessions:
        notes.append(
            f"{tally.cut_sessions} sessions were cut to their first rounds "
            f"(at most {limits.max_rounds} rounds and {limits.max_context_tokens:,} tokens of context)"
        )
    if tally.cut_added:
        notes.append(f"{tally.cut_added} prompts or tool results were cut to {limits.max_added_tokens:,} tokens")
    if tally.cut_decodes:
        notes.append(f"{tally.cut_decodes} answers were cut to {limits.max_decode_tokens} tokens")
    if tally.filled_gaps:
        source = f"drawn from the recorded pauses of {pool_name}" if pool_name else "set to 0"
        notes.append(f"{tally.filled_gaps} pauses between rounds are not recorded: {source}")
    if limits.gap_scale != 1:
        notes.append(f"pauses between rounds were scaled by {limits.gap_scale:g}")
    if tally.cut_gaps:
        notes.append(f"{tally.cut_gaps} pauses were cut to {limits.max_gap_s:g} s")
    return tuple(notes)
