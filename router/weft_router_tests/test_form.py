"""Answers that are recognised by their bytes say what they say when they are parsed."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_router.api.form import LONGEST, PATIENCE, Answers, numbers_end, said
from weft_router.api.inference import Kind
from weft_router.api.reply import read_whole


def answer(kind: Kind = "chat", *, text: str = "one", reason: str | None = "stop", tokens: int = 5, id_: str = "c-1",
           ids: bool = False, details: object = None, **more: Any) -> bytes:  # fmt: skip
    inner: dict[str, Any] = {"message": {"role": "assistant", "content": text, "tool_calls": []}}
    if kind == "text":
        inner = {"text": text}
    choice = {"index": 0, **inner, "logprobs": None, "finish_reason": reason, **({"token_ids": None} if ids else {})}
    usage = {"prompt_tokens": tokens, "total_tokens": tokens + 3, "completion_tokens": 3,
             "prompt_tokens_details": details}  # fmt: skip
    return orjson.dumps({"id": id_, "created": 1_700_000_000 + tokens, "model": "m", "choices": [choice],
                         "usage": usage, **({"prompt_token_ids": None} if ids else {}), **more})  # fmt: skip


def read(answers: Answers, kind: Kind, raw: bytes) -> tuple[object, ...]:
    """Return what an answer says, and the bytes for the client."""
    return told(lambda: answers.read(kind, raw, keep_ids=False))


def told(call: Any) -> tuple[object, ...]:
    try:
        reply, data = call()
    except ValueError:
        return ("no JSON",)
    return said(reply), data


SHAPES: list[dict[str, Any]] = [
    {}, {"kv_transfer_params": None}, {"ids": True}, {"ids": True, "kv_transfer_params": None},
    {"details": {"cached_tokens": 4}}, {"kind": "text"},
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("text", ["", 'a "b"\n\\', "é"])
def test_an_answer_of_the_form_of_the_one_before_is_not_parsed(shape: dict[str, Any], text: str) -> None:
    kind: Kind = shape.get("kind", "chat")
    answers = Answers()
    read(answers, kind, answer(**shape))
    raw = answer(**shape, text=text, reason="length", tokens=123, id_="c-22")
    assert told(lambda: answers._forms[kind].read(raw)) == told(lambda: read_whole(kind, raw, keep_ids=False))


def test_another_form_is_learned_when_it_keeps_coming() -> None:
    answers = Answers()
    read(answers, "chat", answer())
    other = answer(service_tier="x")
    for _ in range(PATIENCE):
        read(answers, "chat", other)
        assert answers._forms["chat"].read(other) is None
    read(answers, "chat", other)
    assert answers._forms["chat"].read(other) is not None


def test_what_is_told_of_an_answer_besides_its_text_is_never_passed_over() -> None:
    answers = Answers()
    for raw in (answer(kv_transfer_params={"a": 1}), answer(reason="tool_calls"), b"{}", b"[]"):
        read(answers, "chat", raw)
    assert not answers._forms


def test_long_answers_are_not_kept() -> None:
    answers = Answers()
    read(answers, "chat", answer(more="x" * LONGEST))
    assert not answers._forms


def test_ids_that_the_client_wants_stay() -> None:
    answers, raw = Answers(), answer(ids=True)
    for _ in range(2):
        read(answers, "chat", raw)
        assert answers.read("chat", raw, keep_ids=True)[1] == raw


small = st.lists(st.integers(0, 10**15 - 1), min_size=1, max_size=4)


@given(small | st.lists(small, min_size=1, max_size=3))
def test_a_list_of_numbers_ends_at_its_bracket(listed: list[Any]) -> None:
    raw = orjson.dumps(listed)
    assert numbers_end(raw + b',"more":[1]}', 1) == len(raw) - 1


@given(st.text("01,[]", max_size=9) | st.integers(0, 10**18).map(lambda number: f"{number},{number}]"))
def test_whatever_ends_as_a_list_of_numbers_is_one(text: str) -> None:
    raw = b"[" + text.encode()
    end = numbers_end(raw, 1)
    if end > 1:
        assert orjson.loads(raw[: end + 1])


def test_a_long_list_is_left_to_the_parse() -> None:
    assert numbers_end(orjson.dumps([*range(1000)]), 1) == 1


texts = st.text(max_size=8) | st.sampled_from(
    ['"', "\\", '","logprobs":null', '"finish_reason":"', '"prompt_tokens":1', ',"kv_transfer_params":null}', "\ud800"]
)
numbers = st.integers(0, 10**17)
extras: st.SearchStrategy[dict[str, Any]] = st.sampled_from([
    {}, {"kv_transfer_params": None}, {"kv_transfer_params": {"a": 1}}, {"prompt_tokens": 1}, {"x": {"id": "c"}},
    {"usage": {"prompt_tokens": 3}}, {"choices": []}, {"choices": [{"text": "t", "message": {"content": "u"}}]},
])  # fmt: skip
edits = st.sampled_from([
    (b"", b""), (b'"prompt_tokens":', b'"prompt_tokens":0'), (b'"prompt_tokens":', b'"prompt_tokens":-'),
    (b'"content":"', b'"content":"\\'), (b'"content":"', b'"content":"\\u0041\\/'),
    (b'"content":"', b'"content":"\x01'),
    (b'"content":"', b'"content":"\xff'), (b'"id":"', b'"id":"a","id":"'), (b'"id":"', b'"id":"\\u0041'), (b":", b": "),
    (b'"content":"', b'"content":"a"b'), (b"}", b""), (b'"role"', b'"reasoning":"r","role"'),
    (b'"tool_calls":[]', b'"tool_calls":[{"id":"t","function":{"name":"f","arguments":"{}"}}]'),
    (b'"usage"', b'"usage":{},"usage"'), (b'"stop"', b'"tool_calls"'), (b'"stop"', b"null"),
])  # fmt: skip


@settings(max_examples=500)
@given(st.lists(
    st.tuples(texts, st.sampled_from(["stop", "length", "odd", None]), numbers, texts, st.booleans(),
              st.sampled_from([None, {"cached_tokens": 3}]), extras, edits),
    min_size=2, max_size=4,
), st.sampled_from(["chat", "text"]))  # fmt: skip
def test_answers_say_the_same_whether_they_are_recognised_or_parsed(answers: list[Any], kind: Kind) -> None:
    for first in answers:
        reader = Answers()
        for one in (first, *answers):
            text, reason, tokens, id_, ids, details, more, (old, new) = one
            raw = orjson.dumps(None)
            try:
                raw = answer(kind, text=text, reason=reason, tokens=tokens, id_=id_, ids=ids, details=details, **more)
            except TypeError:  # a lone surrogate
                continue
            raw = raw.replace(old, new, 1)
            whole = told(lambda raw=raw: read_whole(kind, raw, keep_ids=False))
            assert read(reader, kind, raw) == whole
