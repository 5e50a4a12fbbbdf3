"""The Responses API: what it takes, what it refuses and why, how its history is counted and found again."""

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_router.config import LimitsConfig, ModelConfig
from weft_router.errors import ApiError, NotFoundError
from weft_router.openai import responses
from weft_router.openai.body import sanitise
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.identity import SessionIndex, derived_identity, explicit_identity, session_key
from weft_router.openai.inference import Inference, check_request
from weft_router.openai.prompt_history import extends, history_of, shared_share, with_reply
from weft_router.openai.reply import read_whole
from weft_router.openai.responses_filter import ResponsesFilter
from weft_router.openai.tokens import CharsPerToken
from weft_router.sessions.session_table import SessionTable

MODEL = ModelConfig.model_validate({"name": "m", "maxModelLen": 1000})
LIMITS = LimitsConfig.model_validate({"maxOutputTokens": 800})
SECRET = b"0123456789abcdef"
MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "hello", "annotations": [], "logprobs": None}],
}  # fmt: skip


def ask(given: object = "hi", **fields: Any) -> Inference:
    return check_request("/v1/responses", {"model": "m", "input": given, **fields}, RequestLimits(MODEL, LIMITS))


def answer(*output: dict[str, Any], status: str = "completed") -> bytes:
    usage = {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 3, "total_tokens": 10}
    return orjson.dumps({"id": "resp_1", "object": "response", "created_at": 5, "model": "m", "status": status,
                         "output": list(output), "usage": usage})  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": {}}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"role": 5, "content": "x"}]}, "input[0].role"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": "x" * 16_001}, "input"),
        ({"instructions": 5}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 801}, "max_output_tokens"),
        ({"max_output_tokens": 800, "input": "x" * 4_000}, "input"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"store": True}, "store"),
        ({"store": 1}, "store"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"previous_input_messages": []}, "previous_input_messages"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"stream": True, "stream_options": {}}, "stream_options"),
        ({"tools": {}}, "tools"),
        ({"n": 99}, "n"),
    ],
)
def test_what_cannot_be_done_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        ask(**{"given": fields.pop("input", "hi"), **fields})
    assert (refusal.value.status, refusal.value.param) == (400, param)
    assert refusal.value.message.startswith(param.split("[")[0])


def test_what_the_engine_judges_passes() -> None:
    found = ask(
        [{"role": "user", "content": [{"type": "input_image"}, {"type": "input_text", "text": "abc"}]},
         {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
         {"type": "function_call_output", "call_id": "c", "output": "42"},
         {"type": "reasoning", "summary": []}],
        instructions="be", stream=True, store=False, background=False, include=[], max_output_tokens=9,
    )  # fmt: skip
    assert (found.kind, found.stream, found.max_tokens, found.n) == ("responses", True, 9, 1)
    assert found.chars == len("abc") + len("f{}") + len("42") + len("be")
    assert found.transferable
    assert not found.chained


def test_an_earlier_response_stays_in_the_body_and_keeps_the_round_where_its_history_is() -> None:
    body: dict[str, object] = {
        "model": "m",
        "input": "x",
        "previous_response_id": "resp_1",
        "session_id": "s",
        "bootstrap_host": "h",
    }
    assert sorted(sanitise(body, "responses")) == ["bootstrap_host", "session_id"]
    found = check_request("/v1/responses", body, RequestLimits(MODEL, LIMITS))
    assert found.chained
    assert not found.transferable
    assert b"resp_1" in found.whole()
    for kind in ("chat", "text"):
        assert sanitise({"model": "m", "previous_response_id": "resp_1"}, kind) == ["previous_response_id"]
    assert sanitise({"model": "m", "Previous-Response-Id": "resp_1"}, "responses") == ["Previous-Response-Id"]


tenants = st.text(max_size=8)


@settings(max_examples=100)
@given(tenants, tenants, st.text(min_size=1, max_size=8))
def test_only_the_tenant_that_got_a_response_goes_on_from_it(mine: str, other: str, name: str) -> None:
    session = session_key(mine, "id", name)
    one, two = (responses.new_id(SECRET, mine, session) for _ in range(2))
    assert one != two
    assert one.startswith("resp_")
    assert responses.session_of(SECRET, mine, one) == session
    named = explicit_identity(mine, {"x-session-id": "else"}, {"previous_response_id": one}, secret=SECRET)
    assert named is not None
    assert named.key == session
    if other != mine:
        with pytest.raises(NotFoundError):
            responses.session_of(SECRET, other, one)
    with pytest.raises(NotFoundError):
        responses.session_of(b"another secret!!", mine, one)


@pytest.mark.parametrize(
    "change",
    [
        lambda i: i[:-1],
        lambda i: i + "0",
        lambda i: "resp_" + "0" * 32 + i[37:],
        lambda i: i.replace("resp_", "msg_"),
        lambda _: "",
        lambda _: "resp_é" + "0" * 79,
    ],
)
def test_a_made_up_id_is_none(change: Any) -> None:
    with pytest.raises(NotFoundError) as refusal:
        responses.session_of(SECRET, "t", change(responses.new_id(SECRET, "t", "a" * 32)))
    assert refusal.value.code == "previous_response_not_found"


def test_nothing_is_kept_for_retrieval() -> None:
    error = responses.not_kept("resp_" + "x" * 1000)
    assert (error.status, error.code) == (404, "response_not_found")
    assert len(error.message) < 400


def test_a_whole_answer_tells_text_usage_and_calls() -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c", "id": "fc_1"}
    raw = answer(MESSAGE, call)
    reply, data = read_whole("responses", raw, keep_ids=False)
    assert data is raw
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (7, 3, 4)
    assert ("".join(reply.text), reply.finish_reason, reply.plain) == ("hello", "stop", False)
    assert read_whole("responses", answer(MESSAGE), keep_ids=False)[0].plain
    assert not read_whole("responses", answer({"type": "reasoning"}, MESSAGE), keep_ids=False)[0].plain
    assert read_whole("responses", answer(MESSAGE, status="incomplete"), keep_ids=False)[0].finish_reason == "length"


@pytest.mark.parametrize(
    "echo",
    [
        MESSAGE,
        {"role": "assistant", "content": "hello"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]},
    ],
)
def test_a_client_that_sends_the_items_back_extends_the_round(echo: dict[str, Any]) -> None:
    user = {"role": "user", "content": "hi"}
    asked = ask([user])
    reply, _ = read_whole("responses", answer(MESSAGE), keep_ids=False)
    content = reply.content()
    assert isinstance(content, dict)
    seen = with_reply(history_of(asked), asked, content)
    follow = ask([user, echo, {"role": "user", "content": "more"}])
    assert extends(follow, history_of(follow), seen)
    assert shared_share(history_of(follow), seen) == 1.0
    for changed in ([user, {**echo, "role": "user"}, user], [user], ["x"]):
        other = ask([item if isinstance(item, dict) else user for item in changed])
        assert not extends(other, history_of(other), seen)
    told = ask([user, echo, user], instructions="be brief")
    assert not extends(told, history_of(told), seen)


def test_a_text_is_the_users_message() -> None:
    assert history_of(ask("hi")).links == history_of(ask([{"role": "user", "content": "hi"}])).links


def test_the_latest_response_of_a_session_is_what_its_next_round_extends() -> None:
    asked = ask("hi")
    reply, _ = read_whole("responses", answer(MESSAGE), keep_ids=False)
    content = reply.content()
    assert isinstance(content, dict)
    seen = with_reply(history_of(asked), asked, content)
    follow = ask("more", previous_response_id="resp_1")
    assert extends(follow, history_of(follow), seen)
    stale = ask("more", previous_response_id="resp_0")
    assert not extends(stale, history_of(stale), seen)


def test_a_round_that_goes_on_from_a_response_sends_only_what_is_new() -> None:
    sessions, ratio = SessionTable(ttl_s=60), CharsPerToken()
    asked = ask("x" * 400)
    prompt_history = history_of(asked)
    assert not sessions.begin("s", asked, prompt_history, ratio).later
    reply, _ = read_whole("responses", answer(MESSAGE), keep_ids=False)
    content = reply.content()
    assert isinstance(content, dict)
    seen = with_reply(prompt_history, asked, content)
    sessions.finish("s", prompt_history=seen, tokens=109, chars=405, handle=None, prefilled={})
    follow = ask("y" * 80, previous_response_id="resp_1")
    prefix_match = sessions.begin("s", follow, history_of(follow), ratio)
    assert prefix_match.later
    assert prefix_match.continues
    assert (prefix_match.task.history, prefix_match.task.increment) == (109, 20)


def test_a_nameless_conversation_of_items_is_found_again() -> None:
    known = SessionIndex(ttl_s=60)
    first = ask("hi")
    one = derived_identity("t", first, history_of(first), fresh="1")
    known.put(one.prefix_hash, one.key)
    call = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}
    user = {"role": "user", "content": "hi"}
    follow = ask([user, {"type": "reasoning", "summary": []}, call, {"type": "function_call_output", "output": "1"}])
    two = derived_identity("t", follow, history_of(follow), fresh="2")
    assert known.find(two.parents) == one.key
    assert known.find(derived_identity("u", follow, history_of(follow), fresh="2").parents) is None


@pytest.mark.parametrize(
    ("given", "follows"),
    [
        ("hi", False),
        ([{"role": "user", "content": "hi"}], False),
        ([{"role": "user", "content": "hi"}, MESSAGE], True),
        ([{"role": "user", "content": "hi"}, {"type": "function_call", "name": "f", "arguments": "{}"}], True),
    ],
)
def test_an_answer_among_the_input_makes_it_a_later_round(given: object, follows: bool) -> None:
    assert ask(given).follows == follows


def named(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"


STREAM = [
    named("response.created", response={"id": "resp_1", "model": "m", "output": []}),
    named("response.in_progress", response={"id": "resp_1"}),
    named("response.output_item.added", item={"type": "message"}),
    named("response.output_text.delta", delta="hel"),
    named("response.output_text.delta", delta="lo"),
    named("response.output_text.done", text="hello"),
    named("response.completed", response=orjson.loads(answer(MESSAGE))),
]


@settings(max_examples=100)
@given(st.lists(st.integers(0, 3_000), max_size=12))
def test_a_streamed_response_passes_as_it_is(cuts: list[int]) -> None:
    stream, sse_filter = b"".join(STREAM), ResponsesFilter()
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    assert b"".join(sse_filter.feed(stream[a:b]) for a, b in pairwise(edges)) == stream
    reply = sse_filter.reply
    assert (sse_filter.tokens, sse_filter.complete, "".join(reply.text)) == (2, True, "hello")
    assert (reply.prompt_tokens, reply.completion_tokens, reply.finish_reason) == (7, 3, "stop")
    assert reply.content() == {"id": "resp_1", "output": [MESSAGE]}


def test_nothing_is_sent_before_the_first_token() -> None:
    sse_filter = ResponsesFilter()
    assert [sse_filter.feed(part) for part in STREAM[:3]] == [b"", b"", b""]
    assert sse_filter.feed(STREAM[3]) == b"".join(STREAM[:4])
    assert not sse_filter.complete


@pytest.mark.parametrize(
    "bad", [named("error", message="x"), named("response.failed", response={"error": {"message": "x"}})]
)
def test_a_failed_response_is_noticed(bad: bytes) -> None:
    sse_filter = ResponsesFilter()
    sse_filter.feed(b"".join(STREAM[:4]))
    assert sse_filter.feed(bad) == bad
    assert sse_filter.error


def test_a_handle_in_the_last_event_is_taken_out() -> None:
    sse_filter = ResponsesFilter()
    sse_filter.feed(b"".join(STREAM[:4]))
    last = {**orjson.loads(answer(MESSAGE)), "kv_transfer_params": {"remote_host": "h"}}
    out = sse_filter.feed(named("response.completed", response=last))
    assert out == STREAM[-1]
    assert sse_filter.reply.handle == {"remote_host": "h"}
    nothing = ResponsesFilter()
    nothing.feed(b"".join(STREAM[:4]))
    assert nothing.feed(named("response.completed", response={**last, "kv_transfer_params": None})) == STREAM[-1]
    assert nothing.reply.handle is None
    commented = ResponsesFilter()
    commented.feed(b"".join(STREAM[:4]))
    assert commented.feed(b': kv_transfer_params {"remote_host":"h"}\n\n') == b""
    assert commented.reply.handle == {"remote_host": "h"}
