"""Anthropic's own client, and requests as Claude Code sends them, are served as the same chat completions are."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import anthropic
import httpx
import pytest
from anthropic.types import MessageParam, ToolParam

from weft_e2e_tests.test_router_on_engines import TOKENS, Front, fronted
from weft_mock_tests.engines import MODEL

pytestmark = pytest.mark.component

USER: list[MessageParam] = [{"role": "user", "content": "one two three"}]
TOOLS: list[ToolParam] = [
    {"name": "Bash", "description": "Runs a command", "input_schema": {"type": "object", "properties": {}}},
    {"name": "Read", "description": "Reads a file", "input_schema": {"type": "object", "properties": {}}},
]


@pytest.fixture(params=[False, True], ids=["standalone", "sidecars"])
async def front(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Front]:
    async with fronted(tmp_path, "vllm", sidecars=request.param) as made:
        yield made


@pytest.fixture
async def client(front: Front) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(api_key="any", base_url=front.url, max_retries=0, timeout=15) as made:
        yield made


async def as_chat(front: Front, messages: list[Any], **fields: Any) -> str:
    """Return the answer to the same request in OpenAI's form."""
    body = {"model": MODEL, "messages": messages, "max_tokens": TOKENS, **fields}
    async with httpx.AsyncClient(timeout=15) as http:
        answer = await http.post(front.url + "/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return cast(str, answer.json()["choices"][0]["message"]["content"])


async def test_messages_whole_and_streamed(client: anthropic.AsyncAnthropic, front: Front) -> None:
    expected = await as_chat(front, list(USER))
    whole = await client.messages.create(model=MODEL, max_tokens=TOKENS, messages=USER)
    assert [block.text for block in whole.content if block.type == "text"] == [expected]
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", TOKENS)
    async with client.messages.stream(model=MODEL, max_tokens=TOKENS, messages=USER) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        last = await stream.get_final_message()
    assert text == expected
    assert (last.stop_reason, last.usage.output_tokens) == ("max_tokens", TOKENS)
    assert last.usage.input_tokens + (last.usage.cache_read_input_tokens or 0) > 0


async def test_tokens_are_counted(client: anthropic.AsyncAnthropic) -> None:
    counted = await client.messages.count_tokens(model=MODEL, messages=USER, system="be kind", tools=TOOLS)
    whole = await client.messages.create(model=MODEL, max_tokens=TOKENS, messages=USER, system="be kind", tools=TOOLS)
    usage = whole.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


async def test_what_is_wrong_raises_the_clients_own_errors(client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="does not exist here"):
        await client.messages.create(model="another", max_tokens=5, messages=USER)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        await client.messages.create(model=MODEL, max_tokens=10**9, messages=USER)
    bash = cast(ToolParam, {"type": "bash_20250124", "name": "bash"})
    with pytest.raises(anthropic.BadRequestError, match="runs in Anthropic's own service"):
        await client.messages.create(model=MODEL, max_tokens=5, messages=USER, tools=[bash])


async def test_a_conversation_as_claude_code_holds_it(client: anthropic.AsyncAnthropic, front: Front) -> None:
    """Its system prompt begins with a text that differs each time; the rounds are one session all the same."""
    messages: list[MessageParam] = [{"role": "user", "content": [{"type": "text", "text": "list the files"}]}]
    sessions = set()
    for number in range(3):
        raw = await client.messages.with_raw_response.create(
            model=MODEL,
            max_tokens=TOKENS,
            system=[
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={number};"},
                {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
            ],
            messages=messages,
            tools=TOOLS,
            thinking={"type": "disabled"},
            metadata={"user_id": "user_1_account__session_2"},
            extra_body={"temperature": 0},
        )
        sessions.add(raw.headers["X-Weft-Session"])
        answer = await raw.parse()
        messages += [
            {"role": "assistant", "content": cast(Any, [block.model_dump() for block in answer.content])},
            {"role": "user", "content": [{"type": "text", "text": f"go on {number}"}]},
        ]
    assert len(sessions) == 1
    expected = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": "list the files"}]
    tools = [
        {
            "type": "function",
            "function": {"name": t["name"], "description": t["description"], "parameters": t["input_schema"]},
        }
        for t in TOOLS
    ]
    first = cast(Any, messages[1])["content"][0]["text"]
    assert await as_chat(front, expected, tools=tools, chat_template_kwargs={"enable_thinking": False}) == first
