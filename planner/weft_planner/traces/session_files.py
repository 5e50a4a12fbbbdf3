"""Session files: one session a line, ``{"session", "arrival_s", "turns": [{"incr_prefill", "decode", "gap_s"}]}``."""

from weft_planner.traces.fields import LineError, Row, labels, objects, seconds, text, tokens
from weft_planner.traces.records import Round, Session


def session_of(row: Row) -> Session:
    """Return the session of one line.

    Raises:
        LineError: a field is missing or wrong; turns are counted from 0.
    """
    turns = objects(row, "turns")
    rounds = tuple(_round(turn, k) for k, turn in enumerate(turns))
    return Session(name=text(row, "session"), rounds=rounds, arrival_s=seconds(row, "arrival_s"), labels=labels(row))


def _round(turn: Row, k: int) -> Round:
    where = f"turns[{k}]."
    gap = seconds(turn, "gap_s", where=where)
    if k == 0 and gap:
        raise LineError(f"{where}gap_s", f"nothing comes before the first turn; it must be null or 0, not {gap:g}")
    return Round(
        added_tokens=tokens(turn, "incr_prefill", where=where),
        decode_tokens=tokens(turn, "decode", where=where),
        gap_s=gap,
        interval_s=seconds(turn, "interval_s", where=where),
    )


def accumulated(sessions: list[tuple[Row, Session]]) -> float:
    """Return how many times as long contexts are when all of the history is kept as the clients really sent.

    1 where the source does not tell (``input`` of a turn), or where clients kept everything.
    """
    kept = sent = 0
    for row, session in sessions:
        context = 0
        for turn, entry in zip(objects(row, "turns"), session.rounds, strict=True):
            context += entry.added_tokens
            if isinstance(recorded := turn.get("input"), int):
                kept += context
                sent += recorded
            context += entry.decode_tokens
    return kept / sent if sent else 1.0
