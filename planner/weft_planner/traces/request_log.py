"""Weft's own request log: one finished round a line (docs/reference/request-log.md), gathered into sessions."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime

from weft_planner.traces.fields import LineError, Row, required_seconds, text, tokens
from weft_planner.traces.lines import LineReader
from weft_planner.traces.records import Round, Session

CLOCK_SKEW_S = 1.0
"""A round may seem to begin this long before the one before it ended: workers' clocks differ."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of the log and its number."""

    line: int
    session: str
    index: int
    at: float
    seconds: float
    prompt: int
    history: int
    decode: int
    kind: str
    worker: str


def is_round(row: Row) -> bool:
    """Return whether a line is a round of the request log."""
    return row.get("event") == "round"


class LogRows:
    """Gathers the rounds of a request log; other events of the same stream are passed over."""

    def __init__(self) -> None:
        self._entries: list[LogEntry] = []
        self.failed = 0
        self.again = 0
        self.others = 0

    def add(self, line: int, row: Row) -> None:
        """Take one line; rounds that failed are counted and left out.

        Raises:
            LineError: a field is missing or wrong.
        """
        if not is_round(row):
            self.others += 1
            return
        if row.get("outcome", "ok") != "ok":
            self.failed += 1
            return
        index = tokens(row, "round", least=0)
        history = tokens(row, "history_tokens", least=0)
        prompt = tokens(row, "prompt_tokens")
        if history >= prompt:
            raise LineError("history_tokens", f"must be fewer than prompt_tokens ({prompt}), not {history}")
        self._entries.append(
            LogEntry(
                line=line,
                session=text(row, "session"),
                index=index,
                at=_time(row),
                seconds=required_seconds(row, "seconds"),
                prompt=prompt,
                history=history,
                decode=tokens(row, "decode_tokens"),
                kind=text(row, "class") if row.get("class") else "",
                worker=text(row, "worker") if row.get("worker") else "",
            )
        )

    def sessions(self, reader: LineReader) -> tuple[Session, ...]:
        """Return the sessions in order of arrival; one with a hole is a fault of its first line after the hole.

        A session that moved to another worker, or came back after it was forgotten, begins again there with a first
        prompt that holds all of its history: it is read as another session.

        Raises:
            TraceError: a session has a hole and bad lines are not to be skipped.
        """
        gathered: dict[tuple[str, str], list[list[LogEntry]]] = defaultdict(list)
        for entry in sorted(self._entries, key=lambda entry: (entry.at, entry.line)):
            stays = gathered[entry.session, entry.worker]
            if entry.index == 0 or not stays:
                stays.append([])
            stays[-1].append(entry)
        begun = Counter(name for (name, _), stays in gathered.items() for _ in stays)
        self.again = sum(count - 1 for count in begun.values())
        zero = min((entry.at for entry in self._entries), default=0.0)
        found, used = [], Counter[str]()
        for (name, _), stays in gathered.items():
            for entries in stays:
                used[name] += 1
                try:
                    found.append(_session(name if used[name] == 1 else f"{name}#{used[name]}", entries, zero))
                except _HoleError as hole:
                    reader.fault(hole.line, hole)
        return tuple(sorted(found, key=lambda session: (session.arrival_s or 0.0, session.name)))


class _HoleError(LineError):
    def __init__(self, line: int, field: str, message: str) -> None:
        super().__init__(field, message)
        self.line = line


def _session(name: str, entries: list[LogEntry], zero: float) -> Session:
    rounds: list[Round] = []
    before: LogEntry | None = None
    for k, entry in enumerate(entries):
        if entry.index != k:
            what = "appears twice" if entry.index < k else f"round {k} is missing before it"
            raise _HoleError(entry.line, "round", f"session {name}: round {entry.index}: {what}")
        gap = 0.0
        if before is not None:
            gap = entry.at - before.at - before.seconds
            if gap < -CLOCK_SKEW_S:
                raise _HoleError(
                    entry.line, "time", f"session {name}: begins {-gap:.1f} s before round {k - 1} has ended"
                )
        added = max(1, entry.prompt - entry.history)
        rounds.append(Round(added, entry.decode, gap_s=max(0.0, gap)))
        before = entry
    first = entries[0]
    return Session(
        name=name, rounds=tuple(rounds), arrival_s=first.at - zero, labels={"class": first.kind} if first.kind else {}
    )


def _time(row: Row) -> float:
    value = row.get("time")
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except (ValueError, OverflowError) as error:
        raise LineError(
            "time", f"must be a date and time such as 2026-02-03T04:05:06.789+00:00, not {value!r}"
        ) from error
