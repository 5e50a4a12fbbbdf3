"""Traces of every form are read; what is wrong with one is named by file, line and field, or skipped and counted."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_planner.traces.reading import parse_trace, read_trace
from weft_planner.traces.records import Trace, TraceError

Json = dict[str, Any]

TURNS = [{"incr_prefill": 100, "decode": 20, "gap_s": 0.0}, {"incr_prefill": 30, "decode": 10, "gap_s": 2.5}]


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def session(name: str = "a", turns: object = None, **more: object) -> Json:
    return {"session": name, "arrival_s": 1.5, "turns": TURNS if turns is None else turns, **more}


def parse(data: bytes, **options: bool) -> Trace:
    return parse_trace(data, name="t.jsonl", **options)


def test_sessions_are_read_plain_and_packed() -> None:
    data = lines(session("a", kind="main"), session("b"))
    for packed in (data, gzip.compress(data), gzip.compress(data[:10]) + gzip.compress(data[10:])):
        trace = parse(packed)
        assert trace.form == "sessions"
        assert [s.name for s in trace.sessions] == ["a", "b"]
        assert trace.rounds == 4
        first = trace.sessions[0]
        assert (first.arrival_s, first.labels["kind"]) == (1.5, "main")
        assert [(r.added_tokens, r.decode_tokens, r.gap_s) for r in first.rounds] == [(100, 20, 0.0), (30, 10, 2.5)]


def turn(**fields: object) -> list[Json]:
    return [{"incr_prefill": 5, "decode": 5, "gap_s": None, **fields}]


BAD: list[tuple[bytes, str]] = [
    (b"{", "line 1: is not JSON"),
    (b"[1]\n", "line 1: must be a JSON object"),
    (b'{"session": "a", "turns": NaN}\n', "line 1: NaN is no number"),
    (lines(session()) + b"\xff\n", "line 2: is not UTF-8"),
    (lines(session("a"), session("b", turns=[])), "line 2: turns: must be a list of at least one object"),
    (lines(session("a"), session("b", turns=[7])), r"line 2: turns\[0\]: must be an object"),
    (lines(session("a"), session("a")), "line 2: session: 'a' appears twice"),
    (lines(session("")), "line 1: session: must be text"),
    (lines(session(turns=turn(incr_prefill=0))), r"turns\[0\].incr_prefill: must be a whole number of tokens from 1"),
    (lines(session(turns=turn(decode=-3))), r"turns\[0\].decode: must be a whole number of tokens"),
    (lines(session(turns=turn(decode=2.5))), r"turns\[0\].decode: must be a whole number of tokens .* not 2.5"),
    (lines(session(turns=turn(decode=True))), r"turns\[0\].decode"),
    (lines(session(turns=turn(decode="7"))), r"turns\[0\].decode"),
    (lines(session(turns=[{"decode": 1}])), r"turns\[0\].incr_prefill: is missing"),
    (lines(session(turns=[*TURNS, *turn(gap_s=-1)])), r"turns\[2\].gap_s: must be null or seconds from 0"),
    (lines(session(turns=turn(gap_s=3))), r"turns\[0\].gap_s: nothing comes before the first turn"),
    (lines(session(turns=[*TURNS, *turn(gap_s=1e12)])), "ten years"),
    (lines(session(arrival_s=-4)), "arrival_s: must be null or seconds"),
    (lines({"arrival_s": 0, "input": 0, "decode": 5}), "input: must be a whole number of tokens from 1"),
    (lines({"arrival_s": None, "input": 5, "decode": 5}), "arrival_s: is missing"),
    (lines({"arrival_s": 0, "input": 5, "decode": 5, "hash_ids": ["x"]}), "hash_ids: must be a list of whole numbers"),
    (lines({"timestamp": "soon", "input_length": 5, "output_length": 5}), "timestamp: must be null or milliseconds"),
    (lines({"doc_tokens": []}), "doc_tokens: must be a list of at least one number"),
    (lines({"doc_tokens": [5, 0]}), r"doc_tokens\[1\]: must be a whole number"),
    (lines({"rounds": 0, "query_and_tools_tokens": 5, "final_answer_tokens": 5}), "rounds: must be a whole number"),
]


@pytest.mark.parametrize(("data", "named"), BAD, ids=[named[:40] for _, named in BAD])
def test_a_bad_line_is_refused_by_number_and_field(data: bytes, named: str) -> None:
    with pytest.raises(TraceError, match=named) as fault:
        parse(data)
    assert str(fault.value).startswith("t.jsonl ")
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b'{"a": 1}\n', "is of no known form"),
        (lines({"event": "started"}), "is a log without rounds"),
        (b"\x1f\x8b\x08nonsense", "gzip data are damaged"),
        (gzip.compress(lines(session()))[:-12], "gzip data end too soon"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(data: bytes, named: str) -> None:
    with pytest.raises(TraceError, match=named):
        parse(data)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none.jsonl: cannot be read"):
        read_trace(tmp_path / "none.jsonl")


def test_bad_lines_are_skipped_and_counted_when_asked() -> None:
    data = lines(session("a")) + b"{\n" + lines(session("b", turns=turn(decode=0)), session("c"), session("c"))
    trace = parse(data, skip_bad=True)
    assert [s.name for s in trace.sessions] == ["a", "c"]
    assert len(trace.skipped) == 3
    assert any(what.startswith("1 line skipped, first line 3: turns[0].decode") for what in trace.skipped)
    with pytest.raises(TraceError, match="no line could be used; 1 line skipped, first line 1"):
        parse(lines(session(turns=[])), skip_bad=True)


def attempt(data: bytes, *, skip_bad: bool) -> Trace | str:
    """Return the trace, or the words of the refusal."""
    try:
        return parse(data, skip_bad=skip_bad)
    except TraceError as error:
        return str(error)


@given(st.binary(max_size=400), st.booleans())
@settings(max_examples=150)
def test_any_bytes_are_a_trace_or_a_trace_error(data: bytes, skip_bad: bool) -> None:
    found = attempt(data, skip_bad=skip_bad)
    assert found.startswith("t.jsonl") if isinstance(found, str) else found.sessions


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
ROWS: list[Json] = [
    session(),
    {"arrival_s": 0.0, "input": 9, "decode": 5, "hash_ids": [1]},
    {"rounds": 3, "query_and_tools_tokens": 5, "final_answer_tokens": 5},
    {"question_tokens": 3, "doc_tokens": [3], "answer_tokens": [4]},
]


@given(st.sampled_from(ROWS), st.data(), st.booleans())
@settings(max_examples=150)
def test_any_wrong_value_is_a_trace_error(row: Json, data: st.DataObject, skip_bad: bool) -> None:
    field = data.draw(st.sampled_from(sorted(row)))
    broken = {**row, field: data.draw(values)}
    text = json.dumps(row) + "\n" + json.dumps(broken) + "\n"
    found = attempt(text.encode(), skip_bad=skip_bad)
    assert "line 2" in found if isinstance(found, str) else found.sessions or found.lengths


def test_requests_of_all_sources_are_sessions_of_one_round() -> None:
    ours = lines({"arrival_s": 2.0, "input": 90, "decode": 7}, {"arrival_s": 1.0, "input": 50, "decode": 3})
    mooncake = lines(
        {"timestamp": 2000, "input_length": 90, "output_length": 7, "hash_ids": [1]},
        {"timestamp": 1000, "input_length": 50, "output_length": 3, "hash_ids": [2]},
    )
    azure = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:47.0,90,7\n2023-11-16 18:15:46.0000000,50,3\n"
    for data in (ours, mooncake, azure):
        trace = parse(data)
        assert trace.form == "requests"
        assert [(s.arrival_s, s.rounds[0].added_tokens, s.rounds[0].decode_tokens) for s in trace.sessions] == [
            (0.0, 50, 3),
            (1.0, 90, 7),
        ]
        assert "every request is a session of one round" in trace.notes[0]
    with pytest.raises(TraceError, match="no hash_ids to link"):
        parse(ours, link=True)
    with pytest.raises(TraceError, match="line 3: ContextTokens"):
        parse(azure.replace(b"50,3", b"0,3"))


def call(at: float, tokens: int, blocks: list[int], decode: int = 10) -> Json:
    return {"arrival_s": at, "input": tokens, "decode": decode, "hash_ids": blocks}


def test_requests_are_linked_where_blocks_continue_an_earlier_prompt() -> None:
    trace = parse(
        lines(
            call(0, 1100, [0, 1, 2]),  # 2 full blocks, the first is everybody's
            call(5, 1700, [0, 1, 3, 4]),  # continues it
            call(6, 1650, [0, 1, 3, 5]),  # shorter than that prompt and its answer: one of its own
            call(7, 600, [0, 6]),  # nothing but the shared prefix
            call(9, 2100, [0, 1, 3, 5, 7]),  # continues the latest one, as far as full blocks tell
            call(10, 700, [0, 9]),
            *(call(20 + k, 600, [0, 10 + k]) for k in range(6)),
        ),
        link=True,
    )
    assert trace.prefix_tokens == 512
    assert sorted((len(s.rounds), s.rounds[0].added_tokens) for s in trace.sessions) == [
        *[(1, 600)] * 7,
        (1, 700),
        (2, 1100),
        (2, 1650),
    ]
    second = next(s for s in trace.sessions if s.rounds[0].added_tokens == 1650)
    assert [r.added_tokens for r in second.rounds] == [1650, 2100 - 1660]
    assert (second.rounds[1].interval_s, second.rounds[1].gap_s) == (3, None)
    assert "an inference" in trace.notes[0]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3000), st.lists(st.integers(0, 5), max_size=6)), min_size=1)
)
@settings(max_examples=80)
def test_linking_keeps_every_request_once(calls: list[tuple[int, int, list[int]]]) -> None:
    rows = [call(float(at), tokens, blocks) for at, tokens, blocks in calls]
    rows[0]["hash_ids"] = rows[0]["hash_ids"] or [1]
    trace = parse(lines(*rows), link=True)
    assert trace.rounds == len(rows)
    assert all(r.added_tokens > 0 for s in trace.sessions for r in s.rounds)
    assert min(s.arrival_s or 0.0 for s in trace.sessions) == 0


def test_lengths_of_documents_and_rounds_are_figures_without_sessions() -> None:
    trace = parse(lines({"question_tokens": 5, "doc_tokens": [10, 20, 30], "answer_tokens": [7, 8]}))
    assert trace.form == "lengths"
    assert trace.lengths == {"first_prompt": (15,), "increment": (20, 30), "decode": (7, 8)}
    trace = parse(lines({"rounds": 4, "query_and_tools_tokens": 900, "final_answer_tokens": 0}))
    assert trace.lengths == {"rounds": (4,), "first_prompt": (900,)}


def logged(session: str, k: int, at: str, **fields: object) -> Json:
    return {
        "event": "round",
        "time": f"2026-02-03T04:05:{at}+00:00",
        "session": session,
        "round": k,
        "prompt_tokens": 1000 + 300 * k,
        "history_tokens": 1100 * min(k, 1),
        "decode_tokens": 100,
        "seconds": 2.0,
        "class": "chat",
        "outcome": "ok",
        **fields,
    }


def test_the_request_log_is_gathered_into_sessions() -> None:
    data = lines(
        {"event": "heartbeat_written", "worker": "d0"},
        logged("b", 0, "10.000"),
        logged("a", 0, "06.500"),
        logged("b", 1, "15.250"),
        logged("a", 1, "08.490"),
        logged("c", 0, "20.000", outcome="failed"),
    )
    trace = parse(data)
    assert trace.form == "request-log"
    a, b = trace.sessions
    assert (a.name, a.arrival_s, a.labels) == ("a", 0.0, {"class": "chat"})
    assert b.arrival_s == pytest.approx(3.5)
    assert [r.added_tokens for r in b.rounds] == [1000, 200]
    assert b.rounds[1].gap_s == pytest.approx(3.25)
    assert a.rounds[1].gap_s == 0.0  # workers' clocks differ by some milliseconds
    assert trace.notes == ("1 rounds that failed were left out",)


def test_a_session_that_moved_or_came_back_begins_anew() -> None:
    moved = [logged("a", 0, "01", worker="d0"), logged("a", 1, "05", worker="d0"), logged("a", 0, "15", worker="d1")]
    trace = parse(lines(*moved, logged("a", 0, "40", worker="d0")))
    assert [(s.name, len(s.rounds)) for s in trace.sessions] == [("a", 2), ("a#3", 1), ("a#2", 1)]
    assert trace.notes == ("2 sessions that moved or came back late are read as new ones with long first prompts",)


Change = Callable[[], list[Json]]


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (lambda: [logged("a", 0, "01"), logged("a", 2, "09")], "line 2: round: session a: round 2: round 1 is missing"),
        (lambda: [logged("a", 1, "01")], "line 1: round: session a: round 1: round 0 is missing"),
        (
            lambda: [logged("a", 0, "01"), logged("a", 1, "09"), logged("a", 1, "12")],
            "line 3: round: session a: round 1: appears twice",
        ),
        (
            lambda: [logged("a", 0, "01", seconds=5.0), logged("a", 1, "04")],
            "line 2: time: session a: begins 2.0 s before round 0 has ended",
        ),
        (lambda: [logged("a", 0, "01", history_tokens=1000)], r"line 1: history_tokens: must be fewer"),
        (lambda: [logged("a", 0, "01", time="noon")], "line 1: time: must be a date and time"),
        (lambda: [logged("a", 0, "01", seconds=None)], "line 1: seconds: is missing"),
        (lambda: [logged("a", 0, "01", decode_tokens=0)], "line 1: decode_tokens"),
    ],
)
def test_a_hole_in_the_request_log_is_refused_or_skipped(rows: Change, named: str) -> None:
    with pytest.raises(TraceError, match=named):
        parse(lines(*rows()))
    trace = parse(lines(*rows(), logged("z", 0, "30")), skip_bad=True)
    assert "z" in [s.name for s in trace.sessions]
    assert len(trace.skipped) == 1
