"""OpenAI's own clients, in Python and for Node, and those of others talk to the router as they would to OpenAI."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from weft_e2e_tests.test_router_on_engines import EXPECTED, MESSAGES, PROMPT, TOKENS, Front, fronted
from weft_mock_tests.engines import MODEL

pytestmark = pytest.mark.component

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCRIPT = Path(__file__).parent / "openai_client.mjs"


@pytest.fixture(params=[False, True], ids=["standalone", "sidecars"])
async def front(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Front]:
    async with fronted(tmp_path, "vllm", sidecars=request.param) as made:
        yield made


@pytest.fixture
async def client(front: Front) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key="any", base_url=front.url + "/v1", max_retries=0, timeout=15) as made:
        yield made


async def test_chats_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    messages = cast(list[ChatCompletionMessageParam], MESSAGES)
    whole = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=TOKENS)
    assert whole.choices[0].message.content == EXPECTED[CHAT]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == TOKENS
    stream = await client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=TOKENS, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == EXPECTED[CHAT]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == TOKENS
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["length"]


async def test_usage_tells_which_tokens_of_the_prompt_were_not_computed(client: openai.AsyncOpenAI) -> None:
    messages = cast(list[ChatCompletionMessageParam], MESSAGES)
    first = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=TOKENS)
    assert first.usage is not None
    said = first.choices[0].message.content or ""
    messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "and then?"}]
    whole = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=TOKENS)
    stream = await client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=TOKENS, stream=True, stream_options={"include_usage": True}
    )
    for usage in (whole.usage, [chunk async for chunk in stream][-1].usage):
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached = usage.prompt_tokens_details.cached_tokens or 0
        assert first.usage.prompt_tokens // 16 * 16 <= cached <= usage.prompt_tokens


async def test_completes_text_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=TOKENS)
    assert whole.choices[0].text == EXPECTED[TEXT]
    stream = await client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=TOKENS, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream if chunk.choices]) == EXPECTED[TEXT]


async def test_completes_several_prompts(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model=MODEL, prompt=[PROMPT, "four five"], max_tokens=TOKENS)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.choices[0].text == EXPECTED[TEXT]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 2 * TOKENS
    texts = ["", ""]
    async for chunk in await client.completions.create(
        model=MODEL, prompt=[PROMPT, "four five"], max_tokens=TOKENS, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


async def test_creates_responses_and_goes_on_from_them(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL, input="one two three", max_output_tokens=TOKENS)
    assert first.id.startswith("resp_")
    assert first.output_text
    async with client.responses.stream(model=MODEL, input="one two three", max_output_tokens=TOKENS) as stream:
        seen = [event.type async for event in stream]
        last = await stream.get_final_response()
    assert seen[0] == "response.created"
    assert seen[-1] == "response.completed"
    assert last.output_text == first.output_text


async def test_lists_the_model_and_names_what_is_wrong(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError, match="does not exist here"):
        await client.completions.create(model="another", prompt=PROMPT)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=-1)
    assert refused.value.param == "max_tokens"


async def test_the_client_for_node(front: Front) -> None:
    modules = os.environ.get("WEFT_NODE_MODULES", "")
    node = shutil.which("node")
    if node is None or not (Path(modules) / "openai").is_dir():
        pytest.skip("needs Node and its openai package: make test-clients")
    process = await asyncio.create_subprocess_exec(
        node, str(SCRIPT), modules, front.url + "/v1", MODEL, str(TOKENS), PROMPT,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 50)
    assert process.returncode == 0, err.decode()[-2000:]
    told = out.decode().splitlines()
    assert told[0] == "text " + EXPECTED[TEXT].replace("\n", "\\n")
    assert told[1] == "stream " + EXPECTED[TEXT].replace("\n", "\\n")
    assert told[2:] == [f"tokens {TOKENS}", "refused 400 max_tokens", f"models {MODEL}"]


async def test_clients_of_others(front: Front) -> None:
    python = os.environ.get("WEFT_CLIENTS_PYTHON")
    if python is None:
        pytest.skip("needs LiteLLM, LangChain and the Agents SDK: make test-clients")
    script = Path(__file__).parent / "other_clients.py"
    process = await asyncio.create_subprocess_exec(
        python, str(script), front.url, MODEL, PROMPT, str(TOKENS),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, err.decode()[-3000:]
    answers = json.loads(out.decode().splitlines()[-1])
    async with openai.AsyncOpenAI(api_key="any", base_url=front.url + "/v1", max_retries=0) as plain:
        whole = await plain.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": PROMPT}], max_tokens=TOKENS
        )
    expected = whole.choices[0].message.content
    assert expected
    assert answers.pop("agents responses").startswith(expected)
    assert {name: answer for name, answer in answers.items() if answer != expected} == {}
