"""Read a trace of any known form; the form is recognised by the first readable line."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from weft_planner.traces.fields import LineError, Row
from weft_planner.traces.length_files import LengthRows, is_length
from weft_planner.traces.lines import Line, LineReader, csv_rows, json_row, numbered, read_bytes, unpacked
from weft_planner.traces.records import Session, Trace, TraceError
from weft_planner.traces.request_files import (
    KEYS,
    ModelCall,
    call_of,
    is_request,
    linked,
    shared_prefix,
    single_rounds,
)
from weft_planner.traces.request_log import LogRows
from weft_planner.traces.session_files import accumulated, session_of

FORMS = (
    "sessions ({session, arrival_s, turns}), requests ({arrival_s, input, decode}; Mooncake's {timestamp, "
    "input_length, output_length}; Azure's CSV), lengths ({doc_tokens} or {rounds, query_and_tools_tokens}), or Weft's "
    "request log"
)
NOTABLE_GROWTH = 1.02
"""Contexts may come out this much longer than recorded before the trace says so."""


def read_trace(path: Path, *, skip_bad: bool = False, link: bool = False) -> Trace:
    """Return a trace file's sessions or lengths.

    Raises:
        TraceError: it cannot be read, its form is unknown, or a line is bad (unless ``skip_bad``).
    """
    return parse_trace(read_bytes(path), name=path.name, skip_bad=skip_bad, link=link)


def parse_trace(data: bytes, *, name: str, skip_bad: bool = False, link: bool = False) -> Trace:
    """Return the trace that bytes hold, plain or gzip; see ``read_trace``.

    Raises:
        TraceError: as ``read_trace``.
    """
    lines = numbered(unpacked(data, file=name), file=name)
    reader = LineReader(name, skip_bad=skip_bad)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{name}: is empty; give a file with one JSON object a line")
    header = [cell.strip() for cell in first[1].split(",")]
    if all(key in header for key in KEYS[2]):
        return _requests(name, reader, csv_rows(lines, header=header), link=link)
    rows = _json_rows(chain([first], lines), reader)
    probe = next(rows, None)
    if probe is None:
        raise TraceError(f"{name}: no line is a JSON object")
    again = chain([probe], rows)
    row = probe[1]
    if "turns" in row:
        trace = _sessions(name, reader, again)
    elif is_request(row):
        trace = _requests(name, reader, again, link=link)
    elif is_length(row):
        trace = _lengths(name, reader, again)
    elif "event" in row:
        trace = _log(name, reader, again)
    else:
        raise TraceError(f"{name} line {probe[0]}: is of no known form; known are {FORMS}")
    if link and trace.form != "requests":
        raise TraceError(f"{name}: only requests can be linked into sessions; leave --link out")
    return trace


def _json_rows(lines: Iterator[Line], reader: LineReader) -> Iterator[tuple[int, Row]]:
    for number, text in lines:
        try:
            yield number, json_row(text)
        except LineError as error:
            reader.fault(number, error)


def _sessions(name: str, reader: LineReader, rows: Iterator[tuple[int, Row]]) -> Trace:
    found: list[tuple[Row, Session]] = []
    seen: set[str] = set()

    def read(row: Row) -> None:
        session = session_of(row)
        if session.name in seen:
            raise LineError("session", f"{session.name!r} appears twice")
        seen.add(session.name)
        found.append((row, session))

    reader.each(rows, read)
    notes = []
    longer = accumulated(found)
    if longer > NOTABLE_GROWTH:
        notes.append(
            "clients dropped parts of the history, which a workload's sessions keep: contexts come out "
            f"{longer:.2f} times as long as recorded"
        )
    return _some(Trace(name, "sessions", tuple(s for _, s in found), notes=tuple(notes), skipped=reader.skipped))


def _requests(name: str, reader: LineReader, rows: Iterator[tuple[int, Row]], *, link: bool) -> Trace:
    calls: list[ModelCall] = []
    reader.each(rows, lambda row: calls.append(call_of(row)))
    prefix = shared_prefix(calls)
    hashed = any(call.blocks for call in calls)
    if link and not hashed:
        raise TraceError(f"{name}: has no hash_ids to link requests by; leave --link out")
    sessions = linked(calls) if link else single_rounds(calls)
    if link:
        note = (
            f"{len(calls)} requests were linked into {len(sessions)} conversations by their prefix-block hashes: an "
            "inference, the source has no sessions"
        )
    else:
        note = "the source has no sessions: every request is a session of one round"
    notes = [note]
    if prefix:
        notes.append(f"at least half of the requests share their first {prefix} tokens, by their prefix-block hashes")
    return _some(Trace(name, "requests", sessions, notes=tuple(notes), skipped=reader.skipped, prefix_tokens=prefix))


def _lengths(name: str, reader: LineReader, rows: Iterator[tuple[int, Row]]) -> Trace:
    gathered = LengthRows()
    reader.each(rows, gathered.add)
    trace = Trace(name, "lengths", lengths=gathered.lengths, notes=gathered.notes, skipped=reader.skipped)
    if not trace.lengths:
        raise TraceError(f"{name}: no line could be used")
    return trace


def _log(name: str, reader: LineReader, rows: Iterator[tuple[int, Row]]) -> Trace:
    gathered = LogRows()
    reader.each(((number, (number, row)) for number, row in rows), lambda item: gathered.add(*item))
    sessions = gathered.sessions(reader)
    notes = [f"{gathered.failed} rounds that failed were left out"] if gathered.failed else []
    if gathered.again:
        notes.append(
            f"{gathered.again} sessions that moved or came back late are read as new ones with long first prompts"
        )
    if not sessions and not gathered.failed and gathered.others:
        raise TraceError(f'{name}: is a log without rounds; turn on the request log ({{"event": "round"}} lines)')
    return _some(Trace(name, "request-log", sessions, notes=tuple(notes), skipped=reader.skipped))


def _some(trace: Trace) -> Trace:
    if not trace.sessions:
        raise TraceError(f"{trace.name}: no line could be used" + "".join(f"; {what}" for what in trace.skipped))
    return trace
