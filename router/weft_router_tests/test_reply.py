"""Streams and whole replies of engines: bytes pass unchanged but for the declared rewrites, and nothing is missed."""

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_router.http.sse import MAX_EVENT, EventSplitter, EventTooLargeError, payload
from weft_router.openai.reply import read_whole
from weft_router.openai.stream_filter import StreamFilter

HANDLE = {"do_remote_decode": True, "remote_block_ids": [[1, 2]]}


def event(chunk: object) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def delta(content: str | None = None, *, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    part: dict[str, Any] = {} if content is None else {"content": content}
    return {"id": "x", "choices": [{"index": 0, "delta": part, "finish_reason": finish, **fields}]}


ROLE = event({"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
USAGE = event({"id": "x", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
STREAM = b"".join(
    [
        ROLE,
        event(delta("Gr\u00fc\u00df ")),
        event(delta('"token_ids":[1,2],')),
        b": keep-alive\n\n",
        event(delta(" dich")),
        b": kv_transfer_params " + orjson.dumps(HANDLE) + b"\n\n",
        event(delta(None, finish="stop")),
        USAGE,
        b"data: [DONE]\n\n",
    ]
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


@settings(max_examples=200)
@given(st.lists(st.integers(0, 10_000), max_size=30), st.booleans())
def test_any_split_gives_the_same_bytes_and_facts(cuts: list[int], keep_usage: bool) -> None:
    sse_filter = StreamFilter("chat", keep_usage=keep_usage, keep_ids=False)
    out = b"".join(sse_filter.feed(piece) for piece in pieces(STREAM, cuts))
    expected = STREAM.replace(b": kv_transfer_params " + orjson.dumps(HANDLE) + b"\n\n", b"")
    if not keep_usage:
        expected = expected.replace(USAGE, b"")
    assert out == expected
    assert sse_filter.complete
    assert sse_filter.reply.handle == HANDLE
    assert sse_filter.reply.finish_reason == "stop"
    assert (sse_filter.reply.prompt_tokens, sse_filter.reply.completion_tokens) == (7, 3)
    assert sse_filter.reply.content() == {"role": "assistant", "content": 'Gr\u00fc\u00df "token_ids":[1,2], dich'}
    assert sse_filter.tokens == 3


@settings(max_examples=100)
@given(st.lists(st.sampled_from([b"data: a\n\n", b"data: b\r\n\r\n", b": c\n\n", b"event: x\ndata: 1\ndata: 2\n\n"])),
       st.lists(st.integers(0, 200)))  # fmt: skip
def test_events_are_cut_at_blank_lines_of_either_kind(events: list[bytes], cuts: list[int]) -> None:
    splitter = EventSplitter()
    found = [e for piece in pieces(b"".join(events), cuts) for e in splitter.feed(piece)]
    assert found == events
    assert splitter.rest == b""


def test_payloads_of_several_lines_are_joined() -> None:
    assert payload(b"event: x\ndata: 1\ndata:2\n\n") == b"1\n2"
    assert payload(b"data: {}\r\n\r\n") == b"{}"
    assert payload(b": comment\n\n") is None


def test_an_endless_event_is_refused() -> None:
    splitter = EventSplitter()
    half = b"x" * (MAX_EVENT // 2)
    assert splitter.feed(half) + splitter.feed(half) == []
    with pytest.raises(EventTooLargeError):
        splitter.feed(b"x")


def test_the_opening_event_waits_for_the_first_token() -> None:
    sse_filter = StreamFilter("chat", keep_usage=False, keep_ids=False)
    assert sse_filter.feed(ROLE) == b""
    first = event(delta("a"))
    assert sse_filter.feed(first) == ROLE + first
    assert sse_filter.feed(event(delta("b"))) == event(delta("b"))


def test_an_answer_without_tokens_passes() -> None:
    sse_filter = StreamFilter("chat", keep_usage=False, keep_ids=False)
    end = event(delta(None, finish="stop"))
    assert sse_filter.feed(ROLE) + sse_filter.feed(end) == ROLE + end


IDS = {
    "id": "x",
    "prompt_token_ids": [5, 6],
    "choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [9, 10]}],
}


def test_token_ids_are_collected_counted_and_taken_out() -> None:
    sse_filter = StreamFilter("chat", keep_usage=False, keep_ids=False)
    out = sse_filter.feed(event(IDS))
    assert out == event({"id": "x", "choices": [{"index": 0, "delta": {"content": "a"}}]})
    assert sse_filter.tokens == 2
    assert list(sse_filter.reply.ids or ()) == [5, 6, 9, 10]
    kept = StreamFilter("chat", keep_usage=False, keep_ids=True)
    assert kept.feed(event(IDS)) == event(IDS)


@pytest.mark.parametrize(
    "raw",
    [
        b'data: {"prompt_token_ids": [1, 2], "choices": [{"token_ids": null, "text": "\\"token_ids\\":[1]"}]}\n\n',
        b'data: {"choices": [{"token_ids": [1], "text": "\\"token_ids\\":[1]", "prompt_token_ids": [1]}]}\n\n',
        b'data: {"choices": [{"text": "\\"token_ids\\":[1]", "prompt_token_ids": [ ]}]}\n\n',
    ],
)
def test_ids_go_wherever_they_stand_and_content_stays(raw: bytes) -> None:
    sse_filter = StreamFilter("text", keep_usage=False, keep_ids=False)
    data = payload(sse_filter.feed(raw))
    assert data is not None
    assert orjson.loads(data) == {"choices": [{"text": '"token_ids":[1]'}]}


def test_tool_calls_are_put_together_and_reasoning_is_noticed() -> None:
    sse_filter = StreamFilter("chat", keep_usage=False, keep_ids=False)
    parts = [
        {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a'}}]},
        {"tool_calls": [{"index": 1, "id": "d", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '":1}'}}]},
    ]
    for part in parts:
        sse_filter.feed(event({"choices": [{"index": 0, "delta": part}]}))
    content: Any = sse_filter.reply.content()
    assert [call["function"] for call in content["tool_calls"]] == [
        {"name": "f", "arguments": '{"a":1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert not sse_filter.reply.plain
    thinking = StreamFilter("chat", keep_usage=False, keep_ids=False)
    thinking.feed(event({"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}))
    assert not thinking.reply.plain
    assert thinking.tokens == 1


def test_an_error_event_passes_and_is_noticed() -> None:
    sse_filter = StreamFilter("chat", keep_usage=False, keep_ids=False)
    raw = event({"error": {"message": "x"}})
    assert sse_filter.feed(raw) == raw
    assert sse_filter.reply.error
    assert not sse_filter.complete


@pytest.mark.parametrize("rest", [b"", b"data: [DO"])
def test_a_cut_stream_is_not_complete(rest: bytes) -> None:
    sse_filter = StreamFilter("chat", keep_usage=False, keep_ids=False)
    sse_filter.feed(event(delta("a")) + rest)
    assert not sse_filter.complete


def test_whole_replies_lose_only_what_the_router_asked_for() -> None:
    answer = {
        "id": "x",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop", "token_ids": [3]}
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}},
        "prompt_token_ids": [1, 2],
        "kv_transfer_params": HANDLE,
    }  # fmt: skip
    reply, data = read_whole("chat", orjson.dumps(answer), keep_ids=False)
    body = orjson.loads(data)
    assert "kv_transfer_params" not in body
    assert "prompt_token_ids" not in body
    assert "token_ids" not in body["choices"][0]
    assert (reply.handle, list(reply.ids or ()), reply.cached_tokens) == (HANDLE, [1, 2, 3], 1)
    _, kept = read_whole("chat", orjson.dumps(answer), keep_ids=True)
    assert orjson.loads(kept)["prompt_token_ids"] == [1, 2]
    plain = b'{ "id":"x", "choices":[{"message":{"content":"hi"},"finish_reason":"stop"}] }'
    assert read_whole("chat", plain, keep_ids=False)[1] is plain
    with pytest.raises(ValueError, match="object"):
        read_whole("chat", b"[]", keep_ids=False)


tricky = st.sampled_from(
    [
        "hi",
        ',"kv_transfer_params":null}',
        '"kv_transfer_params":',
        "\\",
        '"',
        'token_ids"',
        '{"kv_transfer_params":null}',
    ]
)
members = st.dictionaries(
    tricky | st.sampled_from(["id", "usage", "prompt_token_ids"]), tricky | st.lists(tricky, max_size=2), max_size=4
)


@settings(max_examples=300)
@given(members, members, tricky, st.sampled_from([None, None, HANDLE, "odd"]), st.sampled_from(["", " ", "\n"]))
def test_an_answer_without_its_handle_says_the_same_whether_it_is_cut_or_written(
    before: dict[str, Any], after: dict[str, Any], text: str, handle: object, end: str
) -> None:
    before = {**before, "choices": [{"index": 0, "message": {"content": text}, "kv_transfer_params": None}]}
    answer = {**before, "kv_transfer_params": handle, **after}
    reply, data = read_whole("chat", orjson.dumps(answer) + end.encode(), keep_ids=True)
    del answer["kv_transfer_params"]
    assert list(orjson.loads(data).items()) == list(answer.items())
    assert reply.handle == (handle if handle is HANDLE else None)
    assert reply.content() == {"role": "assistant", "content": text}


def test_an_answer_whose_handle_is_null_is_not_written_anew() -> None:
    raw = b'{"id": "x",  "choices":[{"message":{"content":"hi"}}],"kv_transfer_params":null}'
    cut = b'{"id": "x",  "choices":[{"message":{"content":"hi"}}]}'
    assert read_whole("chat", raw, keep_ids=False)[1] == cut


@pytest.mark.parametrize("keep_ids", [True, False])
def test_a_handle_inside_a_chunk_is_taken_out(keep_ids: bool) -> None:
    sse_filter = StreamFilter("chat", keep_usage=False, keep_ids=keep_ids)
    last = delta("a", finish="stop", token_ids=[1])
    out = sse_filter.feed(event({**last, "kv_transfer_params": HANDLE}))
    assert sse_filter.reply.handle == HANDLE
    assert b"kv_transfer_params" not in out
    shown = payload(out)
    assert shown is not None
    assert orjson.loads(shown) == (last if keep_ids else delta("a", finish="stop"))
