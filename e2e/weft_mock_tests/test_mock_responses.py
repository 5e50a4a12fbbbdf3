"""The Responses API as vLLM has it: the whole object, the events of a stream, and the legs of a round through it."""

from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio

from weft_mock.errors import ApiError
from weft_mock.model import answer
from weft_mock.prompts import response_messages
from weft_mock.tokenizer import chat_ids, decode
from weft_mock_tests.engines import EXPORT, Client, at_rest, config, engines

HELLO: list[dict[str, object]] = [{"role": "user", "content": "Hello, who are you?"}]
TEXT = "Hello, who are you?"
Event = tuple[str | None, dict[str, object]]


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Client]:
    async with engines(config(time_scale=0.1)) as (client,):
        yield client


async def streamed(client: Client, body: dict[str, object], **headers: str) -> tuple[list[Event], list[str]]:
    """Return the named events and the comments of a streamed response."""
    data = orjson.dumps({**body, "stream": True})
    async with client._session.post(client.url + "/v1/responses", data=data, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        text = (await reply.read()).decode()
    events: list[Event] = []
    comments: list[str] = []
    for block in text.split("\n\n")[:-1]:
        if block.startswith(":"):
            comments.append(block)
            continue
        name, _, line = block.rpartition("\n")
        events.append((name.removeprefix("event: ") or None, orjson.loads(line.removeprefix("data: "))))
    return events, comments


@pytest.mark.component
async def test_a_whole_response(engine: Client) -> None:
    reply = await engine.post("/v1/responses", {"input": TEXT, "instructions": "Be kind.", "max_output_tokens": 200})
    prompt = chat_ids([{"role": "system", "content": "Be kind."}, *HELLO])
    words = answer(prompt, 200)
    body = reply.body
    assert (reply.status, body["object"], body["status"], body["incomplete_details"]) == (
        200,
        "response",
        "completed",
        None,
    )
    assert str(body["id"]).startswith("resp_")
    assert isinstance(body["output"], list)
    (item,) = body["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [
        {"type": "output_text", "text": decode(words), "annotations": [], "logprobs": None},
    ]
    assert body["usage"] == {
        "input_tokens": len(prompt),
        "input_tokens_details": {"cached_tokens": 0, "input_tokens_per_turn": [], "cached_tokens_per_turn": []},
        "output_tokens": len(words),
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": len(prompt) + len(words),
    }
    assert body["kv_transfer_params"] is None
    assert (body["instructions"], body["max_output_tokens"]) == ("Be kind.", 200)


@pytest.mark.component
async def test_a_stream_has_every_event_in_order(engine: Client) -> None:
    events, comments = await streamed(engine, {"input": TEXT, "max_output_tokens": 6})
    expected = decode(answer(chat_ids(HELLO), 6))
    assert comments == []
    assert [name for name, _ in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 6,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [body["sequence_number"] for _, body in events] == list(range(len(events)))
    assert all(name == body["type"] for name, body in events)
    assert "".join(str(body["delta"]) for _, body in events if "delta" in body) == expected
    last = events[-1][1]["response"]
    assert isinstance(last, dict)
    # Cut by the limit: incomplete, yet the last event is response.completed, as vLLM has it.
    assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert last["output"][0]["content"][0]["text"] == expected
    assert last["usage"]["output_tokens"] == 6
    assert len({body["item_id"] for _, body in events if "item_id" in body}) == 1


@pytest.mark.component
async def test_too_large_a_limit_is_cut_to_what_fits(engine: Client) -> None:
    body: dict[str, object] = {"input": TEXT, "max_output_tokens": 10**6}
    assert (await engine.post("/v1/responses", body)).body["max_output_tokens"] == 2048 - len(chat_ids(HELLO))


@pytest.mark.component
async def test_a_round_through_responses_hands_its_blocks_over() -> None:
    pair = (
        config(engine_id="p", role="prefill", time_scale=0.1),
        config(engine_id="d", role="decode", time_scale=0.1),
    )
    async with engines(*pair) as (p, d):
        leg = await p.post("/v1/responses", {"input": TEXT, "max_output_tokens": 1, "kv_transfer_params": EXPORT})
        assert leg.handle["do_remote_prefill"] is True
        body: dict[str, object] = {"input": TEXT, "max_output_tokens": 9, "kv_transfer_params": leg.handle}
        events, comments = await streamed(d, body, **{"X-Weft-KV-Handle": "1"})
        last = events[-1][1]["response"]
        assert isinstance(last, dict)
        assert last["output"][0]["content"][0]["text"] == decode(answer(chat_ids(HELLO), 9))
        assert last["kv_transfer_params"]["do_remote_decode"] is True
        (comment,) = comments
        assert orjson.loads(comment.removeprefix(": kv_transfer_params ")) == last["kv_transfer_params"]
        assert d.engine.ledger.handles["undeliverable"] == 0
        release = {**last["kv_transfer_params"], "do_remote_prefill": True, "do_remote_decode": False}
        assert (
            await p.post("/v1/responses", {"model": "none", "input": "x", "kv_transfer_params": release})
        ).status == 404
        await at_rest(p, d)


@pytest.mark.component
@pytest.mark.parametrize(
    ("fields", "status", "word"),
    [
        ({"input": None}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": ["x"]}, 400, "input[0]"),
        ({"input": [{"type": "image", "url": ""}]}, 400, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "content[0]"),
        ({"instructions": 5}, 400, "instructions"),
        ({"previous_response_id": "resp_1"}, 404, "resp_1"),
        ({"background": True}, 400, "background"),
        ({"max_output_tokens": 0}, 400, "max_output_tokens"),
        ({"model": "other"}, 404, "other"),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, 500, "would_crash"),
    ],
)
async def test_what_is_wrong_is_named(engine: Client, fields: dict[str, object], status: int, word: str) -> None:
    reply = await engine.post("/v1/responses", {"input": TEXT, **fields})
    assert reply.status == status
    assert word in str(reply.error["message"])


def test_items_become_the_messages_a_chat_would_send() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1}'}
    output = {"type": "function_call_output", "call_id": "c1", "output": "2"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Sure."}]}
    items = [{"role": "user", "content": "Add."}, {"type": "reasoning", "summary": []}, said, call, output]
    messages = response_messages({"input": items, "instructions": "Be kind."})
    function = {"name": "add", "arguments": '{"a":1}'}
    assert messages == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": "Sure."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    with pytest.raises(ApiError, match="input"):
        response_messages({})


@pytest.mark.component
async def test_an_answer_given_back_as_input_continues_the_history(engine: Client) -> None:
    first = await engine.post("/v1/responses", {"input": TEXT, "max_output_tokens": 40})
    items = [{"role": "user", "content": TEXT}, *first.body["output"], {"role": "user", "content": "And?"}]  # type: ignore[misc]
    second = await engine.post("/v1/responses", {"input": items, "max_output_tokens": 3})
    details = second.body["usage"]["input_tokens_details"]  # type: ignore[index]
    assert details["cached_tokens"] >= 16
