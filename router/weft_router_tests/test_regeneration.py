"""An answer that another engine generates again loses what the client has, however both cut it into events."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from weft_router.http.sse import payload
from weft_router.openai.regeneration import Regeneration
from weft_router.openai.reply import Reply, to_event
from weft_router.openai.stream_filter import StreamFilter

DONE = b"data: [DONE]\n\n"
TEXTS = st.text(alphabet='ab"\\é{}', max_size=12)
CALLS = st.lists(st.tuples(st.sampled_from(["f", "g"]), TEXTS), max_size=3)


def delta(**fields: Any) -> bytes:
    head = {"id": fields.pop("id", "one"), "created": fields.pop("created", 1), "model": "m"}
    finish = fields.pop("finish_reason", None)
    return to_event({**head, "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def pieces(text: str, draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[str]:
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=4)) | {0, len(text)})
    return [text[a:b] for a, b in pairwise(cuts)]


def stream(
    draw: Callable[[st.SearchStrategy[Any]], Any], thoughts: str, text: str, calls: list[tuple[str, str]], **head: Any
) -> list[bytes]:
    """Return the events of an answer, cut anywhere; a call's id is random, as with engines."""
    events = [delta(role="assistant", content="", **head)]
    events += [delta(reasoning=piece, **head) for piece in pieces(thoughts, draw)]
    events += [delta(content=piece, **head) for piece in pieces(text, draw)]
    for index, (name, arguments) in enumerate(calls):
        named = {"index": index, "id": draw(st.uuids()).hex, "type": "function", "function": {"name": name}}
        events.append(delta(tool_calls=[named], **head))
        for piece in pieces(arguments, draw):
            events.append(delta(tool_calls=[{"index": index, "function": {"arguments": piece}}], **head))
    return [*events, delta(finish_reason="tool_calls" if calls else "stop", **head), DONE]


def read(events: list[bytes]) -> Reply:
    """Return what a client reads."""
    seen = StreamFilter("chat", keep_usage=True, keep_ids=True)
    seen.feed(b"".join(events))
    return seen.reply


def filtered(again: Regeneration, events: list[bytes]) -> list[bytes]:
    return [fresh for event in events if (fresh := again.filter(event))]


def words(reply: Reply) -> tuple[str, str, list[tuple[str, str]]]:
    calls: list[Any] = [reply.tool_calls[index]["function"] for index in sorted(reply.tool_calls)]
    named = [(str(call["name"]), str(call.get("arguments", ""))) for call in calls]
    return "".join(reply.reasoning_text or ()), "".join(reply.text), named


@given(st.data(), TEXTS, TEXTS, CALLS)
def test_a_client_gets_the_whole_answer_once(
    data: st.DataObject, thoughts: str, text: str, calls: list[tuple[str, str]]
) -> None:
    first, second, third = (
        stream(data.draw, thoughts, text, calls, id=name, created=created)
        for name, created in (("one", 1), ("two", 2), ("three", 3))
    )
    got = first[: data.draw(st.integers(1, len(first) - 1))]
    again = Regeneration(read(got))
    got = got + filtered(again, second[: data.draw(st.integers(0, len(second) - 1))])
    again.restart()
    got = got + filtered(again, third)
    assert not again.diverged
    answer = read(got)
    assert words(answer) == (thoughts, text, calls)
    assert got.count(DONE) == 1
    chunks = [orjson.loads(payload(event) or b"") for event in got if event != DONE]
    assert {(chunk["id"], chunk["created"]) for chunk in chunks} == {("one", 1)}
    assert sum(chunk["choices"][0]["finish_reason"] is not None for chunk in chunks) == 1
    known = {
        call["id"] for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ()) if "id" in call
    }
    assert len(known) == len(calls)


def sent(**fields: Any) -> Regeneration:
    return Regeneration(read([delta(role="assistant", content=""), delta(**fields)]))


def test_another_text_is_not_shown() -> None:
    again = sent(content="abc")
    assert again.filter(delta(content="ab")) == b""
    assert again.filter(delta(content="d")) == b""
    assert again.diverged


def test_a_shorter_answer_is_another_one() -> None:
    again = sent(content="abc")
    assert filtered(again, [delta(content="ab"), delta(finish_reason="stop")]) == []
    assert again.diverged


def test_a_call_of_another_function_is_another_answer() -> None:
    again = sent(tool_calls=[{"index": 0, "id": "x", "type": "function", "function": {"name": "f", "arguments": ""}}])
    again.filter(delta(tool_calls=[{"index": 0, "id": "y", "type": "function", "function": {"name": "g"}}]))
    assert again.diverged


def test_comments_errors_and_usage_pass() -> None:
    again = sent(content="abc")
    usage = to_event({"id": "two", "choices": [], "usage": {"prompt_tokens": 1}})
    error = to_event({"error": {"message": "x"}})
    assert filtered(again, [b": ping\n\n", error]) == [b": ping\n\n", error]
    assert orjson.loads(payload(again.filter(usage)) or b"") == {
        "id": "one", "choices": [], "usage": {"prompt_tokens": 1},
    }  # fmt: skip


def test_text_completions_are_compared_too() -> None:
    before = Reply("text")
    before.text, before.head = ["abc"], {"id": "one"}
    again = Regeneration(before)
    event = to_event({"id": "two", "choices": [{"index": 0, "text": "abcd", "finish_reason": None}]})
    assert orjson.loads(payload(again.filter(event)) or b"") == {
        "id": "one", "choices": [{"index": 0, "text": "d", "finish_reason": None}],
    }  # fmt: skip
