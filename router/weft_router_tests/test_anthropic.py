"""Anthropic's Messages API: requests become chat completions, and their answers messages."""

from typing import Any

import orjson
import pytest

from weft_router.anthropic.reply import message_of
from weft_router.anthropic.request import chat_of
from weft_router.errors import ApiError, InvalidRequestError, NotFoundError, engine_error
from weft_router.rounds.message_writer import MessageStream

USER = {"role": "user", "content": "hello"}
FILE = {"type": "image", "source": {"type": "file"}}


def chat(**fields: Any) -> dict[str, Any]:
    return chat_of({"model": "m", "max_tokens": 9, "messages": [USER], **fields})


def messages(*given: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = chat(messages=list(given), **fields)["messages"]
    return made


def test_a_plain_request_is_the_same_in_both_forms() -> None:
    assert chat(temperature=0.5, top_p=0.9, top_k=4, stop_sequences=["x"], metadata={"user_id": "u"}) == {
        "model": "m", "max_tokens": 9, "messages": [USER], "temperature": 0.5, "top_p": 0.9, "top_k": 4, "stop": ["x"],
        "user": "u",
    }  # fmt: skip
    assert chat(stream=True)["stream_options"] == {"include_usage": True}
    assert chat(session_id="s")["session_id"] == "s"


def test_the_system_prompt_comes_first_without_what_differs_in_every_request() -> None:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1a2b;"},
        {"type": "text", "text": "Be brief. ", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be kind."},
    ]
    assert messages(USER, system=system)[0] == {"role": "system", "content": "Be brief. Be kind."}
    assert messages(USER, system="")[0] == USER
    inline = {"role": "system", "content": "Now be long."}
    assert messages(USER, inline) == [USER, inline]


def test_tools_their_calls_and_their_results() -> None:
    schema = {"properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {
        "name": "weather",
        "description": "tells it",
        "input_schema": schema,
        "cache_control": {"type": "ephemeral"},
    }
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bonn"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]}
    made = chat(
        tools=[tool],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        messages=[
            USER,
            {"role": "assistant", "content": [{"type": "text", "text": "let me see"}, call]},
            {"role": "user", "content": [{"type": "text", "text": "and?"}, result]},
        ],
    )
    assert made["tools"] == [
        {
            "type": "function",
            "function": {"name": "weather", "description": "tells it", "parameters": {"type": "object", **schema}},
        }
    ]
    assert (made["tool_choice"], made["parallel_tool_calls"]) == ("required", False)
    function = {"name": "weather", "arguments": '{"city":"Bonn"}'}
    assert made["messages"][1:] == [
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
        {"role": "user", "content": "and?"},
    ]
    named = chat(tools=[tool], tool_choice={"type": "tool", "name": "weather"})
    assert named["tool_choice"] == {"type": "function", "function": {"name": "weather"}}


def test_images_go_to_the_user_message_also_those_of_tools() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [image]}
    assert messages({"role": "user", "content": [result, {"type": "text", "text": "what is it?"}]}) == [
        {"role": "tool", "tool_call_id": "t1", "content": ""},
        {"role": "user", "content": [part, {"type": "text", "text": "what is it?"}]},
    ]


def test_thoughts_go_back_and_thinking_is_the_templates() -> None:
    thoughts = {"type": "thinking", "thinking": "hm", "signature": "s"}
    hidden = {"type": "redacted_thinking", "data": "zz"}
    said = {"role": "assistant", "content": [thoughts, hidden, {"type": "text", "text": "yes"}]}
    assert messages(USER, said, USER)[1] == {"role": "assistant", "content": "yes", "reasoning": "hm"}
    assert chat(thinking={"type": "disabled"})["chat_template_kwargs"] == {"enable_thinking": False}
    assert chat(thinking={"type": "enabled", "budget_tokens": 2048})["chat_template_kwargs"] == {
        "enable_thinking": True
    }
    assert "chat_template_kwargs" not in chat(thinking={"type": "adaptive"})
    config = {"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    made = chat(output_config=config)
    assert made["reasoning_effort"] == "high"
    assert made["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "server_tool_use"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [FILE]}]}, "messages[0].content[0].source.type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"thinking": {"type": "some"}}, "thinking.type"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"kv_transfer_params": {}}, "kv_transfer_params"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        chat(**fields)
    assert refused.value.param == param


def test_a_whole_answer_is_a_message() -> None:
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    answer = {
        "id": "chatcmpl-7",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {"role": "assistant", "content": "ok", "reasoning": "hm", "tool_calls": [call]},
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
    }
    assert orjson.loads(message_of(orjson.dumps(answer))) == {
        "id": "msg_7",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "ok"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 3,
        },
    }  # fmt: skip
    with pytest.raises(ValueError, match="no chat completion"):
        message_of(b"{}")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"finish_reason": "stop"}, ("end_turn", None)),
        ({"finish_reason": "stop", "stop_reason": "END"}, ("stop_sequence", "END")),
        ({"finish_reason": "stop", "stop_reason": 7}, ("end_turn", None)),
        ({"finish_reason": "length"}, ("max_tokens", None)),
    ],
)
def test_why_an_answer_ended(choice: dict[str, Any], expected: tuple[str, str | None]) -> None:
    body = {"choices": [{"message": {"content": "x"}, **choice}]}
    made = orjson.loads(message_of(orjson.dumps(body)))
    assert (made["stop_reason"], made["stop_sequence"]) == expected


def events(*chunks: Any) -> list[tuple[str, Any]]:
    stream = MessageStream()
    raw = b"".join(stream.feed(c if isinstance(c, bytes) else orjson.dumps(c)) for c in chunks)
    found = []
    for one in raw.decode().split("\n\n")[:-1]:
        name, data = one.split("\n")
        body = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        found.append((body["type"], body))
    return found


def delta(**fields: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "model": "m", "choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def test_a_stream_becomes_blocks() -> None:
    call = {"index": 0, "id": "t1", "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"a"'}}
    other = {"index": 1, "id": "t2", "function": {"name": "g", "arguments": "{}"}}
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    found = events(
        delta(role="assistant", content=""),
        delta(reasoning="hm"),
        delta(content="he"),
        delta(content="llo"),
        delta(tool_calls=[call]),
        delta(tool_calls=[more]),
        delta(tool_calls=[other]),
        {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"id": "chatcmpl-1", "choices": [], "usage": usage},
        b"[DONE]",
        b"[DONE]",
    )
    start, stop, piece = "content_block_start", "content_block_stop", "content_block_delta"
    assert [kind for kind, _ in found] == [
        "message_start", start, piece, stop, start, piece, piece, stop, start, piece, stop, start, piece, stop,
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert [body["index"] for kind, body in found if kind == start] == [0, 1, 2, 3]
    assert [body["content_block"]["type"] for kind, body in found if kind == start] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    assert found[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert found[-2][1]["usage"]["output_tokens"] == 2


def test_a_stream_that_breaks_ends_with_an_error_and_nothing_else() -> None:
    found = events(delta(content="he"), {"error": {"message": "lost"}}, b"[DONE]")
    assert [kind for kind, _ in found][-1] == "error"
    assert found[-1][1]["error"]["message"] == "lost"
    assert events(delta(content="he"), b"no JSON")[-1][0] == "error"


def test_errors_have_anthropics_form() -> None:
    assert orjson.loads(NotFoundError("no such model").message_body()) == {
        "type": "error", "error": {"type": "not_found_error", "message": "no such model"},
    }  # fmt: skip
    assert orjson.loads(ApiError("x", status=502).message_body())["error"]["type"] == "api_error"
    assert orjson.loads(engine_error(400, b'{"error":{"message":"bad"}}').message_body()) == {
        "type": "error", "error": {"type": "invalid_request_error", "message": "bad"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error":{"message":"bad","param":"n","code":"x"}}', ("bad", "n", "x")),
        (b'{"object":"error","message":"bad","param":null,"code":400}', ("bad", None, None)),
        (b'{"error":"bad"}', ("the engine refused the request with status 400", None, None)),
        (b"[1]", ("the engine refused the request with status 400", None, None)),
        (b"<html>", ("the engine refused the request with status 400", None, None)),
    ],
)
def test_an_engines_error_keeps_its_message_field_and_code(body: bytes, expected: tuple[str, str, str]) -> None:
    error = engine_error(400, body)
    assert (error.message, error.param, error.code) == expected
    assert (error.status, error.kind, engine_error(502, body).kind) == (400, "invalid_request_error", "server_error")
