"""What clients send that are no OpenAI SDK: other names, compressed bodies, several prompts, messages, browsers."""

import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from weft_router.roles.pooling_endpoint import PATHS
from weft_router_tests.stack import MODEL, Stack, free_port, router_json

pytestmark = pytest.mark.component

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
USER = {"role": "user", "content": "hello"}
MESSAGE = {"model": MODEL, "max_tokens": 8, "messages": [USER]}
ORIGIN = "https://chat.example.com"


@pytest.fixture
def known(stack: Stack) -> Stack:
    """Give a service with another name for its model, and a page that may call it."""
    stack.config = router_json(model={"aliases": ["gpt-4"]})
    stack.config["cors"] = {"allowedOrigins": [ORIGIN]}
    return stack


async def post(stack: Stack, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    async with stack.http.post(stack.front + path, json=body, headers=headers) as response:
        return response.status, await response.json()


async def test_a_model_has_several_names_and_engines_see_one(known: Stack) -> None:
    await known.up(prefill=0)
    async with known.http.get(known.front + "/v1/models") as response:
        assert [one["id"] for one in (await response.json())["data"]] == [MODEL, "gpt-4"]
    for name in (MODEL, "gpt-4", MODEL.replace("/", "%2F")):
        async with known.http.get(f"{known.front}/v1/models/{name}") as response:
            assert response.status == 200
            assert (await response.json())["root"] == MODEL
    async with known.http.get(f"{known.front}/v1/models/other/model") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, "model_not_found")
    status, answer = await post(known, CHAT, {"model": "gpt-4", "messages": [USER]})
    assert (status, answer["model"]) == (200, MODEL)
    assert known.engines["d0"].seen[-1]["model"] == MODEL


async def test_a_whole_number_may_be_written_with_a_point(stack: Stack) -> None:
    await stack.up(prefill=0)
    status, _ = await post(stack, CHAT, {"model": MODEL, "messages": [USER], "max_tokens": 4.0, "n": 1.0})
    assert status == 200
    sent = stack.engines["d0"].seen[-1]
    assert type(sent["max_tokens"]) is int
    status, answer = await post(stack, CHAT, {"model": MODEL, "messages": [USER], "max_tokens": 4.5})
    assert (status, answer["error"]["param"]) == (400, "max_tokens")


async def test_a_compressed_body_is_read(stack: Stack) -> None:
    await stack.up(prefill=0)
    raw = gzip.compress(orjson.dumps({"model": MODEL, "messages": [USER]}))
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    async with stack.http.post(stack.front + CHAT, data=raw, headers=headers) as response:
        assert response.status == 200
    bomb = gzip.compress(b'{"a":"' + b"x" * 20_000_000 + b'"}')
    async with stack.http.post(stack.front + CHAT, data=bomb, headers=headers) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (413, "limits.maxBodyBytes")
    assert (await stack.chat([USER])).status == 200


async def test_a_key_may_come_as_anthropics_clients_send_it(stack: Stack, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-one tenant=acme\nsk-two tenant=other\n")
    await stack.up(prefill=0, keys=keys)
    body = {"model": MODEL, "messages": [USER], "session_id": "s"}
    salts: dict[str, set[str]] = {"sk-one": set(), "sk-two": set()}
    for _ in range(3):  # heads of one connection are compared with those before
        for key, found in salts.items():
            status, _answer = await post(stack, CHAT, body, **{"X-Api-Key": key})
            assert status == 200
            found.add(stack.engines["d0"].seen[-1]["cache_salt"])
    assert [len(found) for found in salts.values()] == [1, 1]
    assert salts["sk-one"] != salts["sk-two"]
    assert await stack.count("weft_router_sessions") == 2  # one of each tenant
    for headers in ({"X-Api-Key": "sk-three"}, {"X-Api-Key": "sk-one", "Authorization": "Bearer sk-three"}):
        assert (await post(stack, CHAT, body, **headers))[0] == 401
    status, answer = await post(stack, MESSAGES, MESSAGE)
    assert (status, answer["error"]["type"]) == (401, "authentication_error")


async def test_messages_whole_and_streamed(stack: Stack) -> None:
    await stack.up()
    status, message = await post(stack, MESSAGES, MESSAGE)
    assert (status, message["type"], message["stop_reason"]) == (200, "message", "end_turn")
    text = message["content"][0]["text"]
    assert len(text) == 8
    async with stack.http.post(stack.front + MESSAGES, json={**MESSAGE, "stream": True}) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        raw = (await response.read()).decode()
    bodies = [orjson.loads(line.removeprefix("data: ")) for line in raw.split("\n") if line.startswith("data: ")]
    assert bodies[0]["type"] == "message_start"
    assert bodies[-1]["type"] == "message_stop"
    assert "".join(body["delta"]["text"] for body in bodies if body["type"] == "content_block_delta") == text
    assert bodies[-2]["usage"]["output_tokens"] == 8


async def test_a_conversation_of_messages_is_one_session(stack: Stack) -> None:
    await stack.up(decode=2)
    _, first = await post(stack, MESSAGES, MESSAGE)
    said = {"role": "assistant", "content": first["content"]}
    await post(stack, MESSAGES, {**MESSAGE, "messages": [USER, said, {"role": "user", "content": "and?"}]})
    assert await stack.count("weft_router_sessions") == 1


async def test_refusals_of_messages_have_anthropics_form(stack: Stack) -> None:
    await stack.up(prefill=0)
    for fields, status, kind in (
        ({"max_tokens": None}, 400, "invalid_request_error"),
        ({"model": "other"}, 404, "not_found_error"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error"),
    ):
        found, answer = await post(stack, MESSAGES, {**MESSAGE, **fields})
        assert (found, answer["type"], answer["error"]["type"]) == (status, "error", kind)
    stack.engines["d0"].script.status = 400
    found, answer = await post(stack, MESSAGES, MESSAGE)
    assert (found, answer["error"]["message"]) == (400, "scripted failure")


async def test_tokens_of_a_message_are_counted(stack: Stack) -> None:
    await stack.up(prefill=0)
    stack.engines["d0"].script.tokenizes = True
    body = {"model": MODEL, "messages": [USER], "system": "be kind"}
    status, answer = await post(stack, f"{MESSAGES}/count_tokens", body)
    assert (status, list(answer)) == (200, ["input_tokens"])
    assert answer["input_tokens"] > len("hello")


@pytest.mark.parametrize("stream", [False, True])
async def test_each_of_several_prompts_is_a_round(stack: Stack, stream: bool) -> None:
    await stack.up(decode=2)
    alone = [(await stack.complete(prompt, max_tokens=5)).text for prompt in ("one", "two", "three")]
    body = {"model": MODEL, "prompt": ["one", "two", "three"], "max_tokens": 5, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    async with stack.http.post(stack.front + "/v1/completions", json=body) as response:
        assert response.status == 200
        raw = (await response.read()).decode()
    if stream:
        assert raw.endswith("data: [DONE]\n\n")
        assert raw.count("[DONE]") == 1
        chunks = [orjson.loads(line[6:]) for line in raw.split("\n") if line.startswith("data: {")]
        assert len({chunk["id"] for chunk in chunks}) == 1
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        texts = ["".join(c["text"] for c in choices if c["index"] == place) for place in range(3)]
        usage = chunks[-1]["usage"]
    else:
        answer = orjson.loads(raw)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        texts, usage = [choice["text"] for choice in answer["choices"]], answer["usage"]
    assert texts == alone
    assert usage["completion_tokens"] == 15
    assert usage["prompt_tokens"] == len("onetwothree")


async def test_lists_of_token_ids_and_several_answers_each(stack: Stack) -> None:
    await stack.up(prefill=0)
    body = {"model": MODEL, "prompt": [[1, 2], [3, 4]], "max_tokens": 4}
    status, answer = await post(stack, "/v1/completions", body)
    assert (status, [choice["index"] for choice in answer["choices"]]) == (200, [0, 1])
    assert {tuple(sent["prompt"]) for sent in stack.engines["d0"].seen} == {(1, 2), (3, 4)}


async def test_one_prompt_that_an_engine_refuses_fails_all(stack: Stack) -> None:
    await stack.up(prefill=0)
    stack.engines["d0"].script.status = 400
    status, answer = await post(stack, "/v1/completions", {"model": MODEL, "prompt": ["a", "b"]})
    assert (status, answer["error"]["message"]) == (400, "scripted failure")
    stack.engines["d0"].script.status = 200
    assert (await stack.chat([USER])).status == 200


async def test_a_page_of_an_allowed_origin_may_call(known: Stack) -> None:
    await known.up(prefill=0)
    asked = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    async with known.http.options(known.front + CHAT, headers=asked) as response:
        assert response.status == 204
        assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert response.headers["Access-Control-Allow-Headers"] == "authorization"
    body = {"model": MODEL, "messages": [USER]}
    for origin, allowed in ((ORIGIN, ORIGIN), ("https://evil.example.com", None)):
        async with known.http.post(known.front + CHAT, json=body, headers={"Origin": origin}) as response:
            assert (response.status, response.headers.get("Access-Control-Allow-Origin")) == (200, allowed)
    async with known.http.post(known.front + CHAT, json={}, headers={"Origin": ORIGIN}) as response:
        assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (400, ORIGIN)
    async with known.http.options(
        known.front + CHAT, headers={**asked, "Origin": "https://evil.example.com"}
    ) as response:
        assert response.status == 405


async def test_a_silent_stream_gets_comments(stack: Stack) -> None:
    stack.config = router_json(timeouts={"silence": 0.1})
    await stack.up()
    stack.engines["d0"].script.gap_s = 0.4
    answer = await stack.chat([USER], stream=True, max_tokens=3)
    assert answer.whole
    assert answer.raw.count(b": keep-alive\n\n") >= 2
    async with stack.http.post(stack.front + MESSAGES, json={**MESSAGE, "max_tokens": 3, "stream": True}) as response:
        raw = await response.read()
    assert b"event: ping" in raw
    assert raw.endswith(b"\n\n")
    assert b"message_stop" in raw


async def test_an_adapter_is_a_model_whose_kv_nobody_else_reads(stack: Stack) -> None:
    stack.config = router_json(model={"adapters": ["sql", "chat"]}, routing={"policy": "always-remote"})
    await stack.up(decode=2)
    async with stack.http.get(stack.front + "/v1/models") as response:
        assert [(one["id"], one["parent"]) for one in (await response.json())["data"]] == [
            (MODEL, None), ("sql", MODEL), ("chat", MODEL),
        ]  # fmt: skip
    made: dict[str, str] = {}
    for number in range(3):
        for model in (MODEL, "sql", "chat"):
            messages = [USER, *([{"role": "assistant", "content": "x"}, USER] * number)]
            body = {"model": model, "messages": messages, "session_id": "s", "max_tokens": 4}
            status, _ = await post(stack, CHAT, body)
            assert status == 200
    for engine in stack.engines.values():
        for sent in engine.seen:
            params = sent.get("kv_transfer_params") or {}
            if (handle := params.get("remote_request_id")) is not None:
                assert made.setdefault(handle, sent["model"]) == sent["model"]
    assert set(made.values()) == {MODEL, "sql", "chat"}
    assert await stack.count("weft_router_sessions") == 3
    async with stack.http.delete(stack.front + "/v1/sessions/s") as response:
        assert response.status == 204
    assert await stack.count("weft_router_sessions") == 0


@pytest.fixture
async def pooling() -> AsyncIterator[tuple[str, list[Any]]]:
    """Give a server of embeddings, and what it was sent."""
    seen: list[Any] = []

    async def embed(request: web.Request) -> web.Response:
        seen.append((await request.json(), dict(request.headers)))
        return web.json_response({"object": "list", "data": [{"index": 0, "embedding": [0.5]}]})

    app = web.Application()
    app.add_routes([web.post("/v1/embeddings", embed)])
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield f"http://127.0.0.1:{port}", seen
    await runner.cleanup()


async def test_embeddings_are_another_services(stack: Stack, pooling: tuple[str, list[Any]]) -> None:
    url, seen = pooling
    stack.config["poolingUrl"] = url
    await stack.up(prefill=0)
    status, answer = await post(stack, "/v1/embeddings", {"model": "bge", "input": "x"}, Authorization="Bearer sk")
    assert (status, answer["data"][0]["embedding"]) == (200, [0.5])
    assert seen[0][0] == {"model": "bge", "input": "x"}
    assert "Authorization" not in seen[0][1]
    for path in PATHS[1:]:
        async with stack.http.post(stack.front + path, json={"query": "x"}) as response:
            assert (response.status, await response.text()) == (404, "404: Not Found"), "the other service's own answer"


async def test_without_such_a_service_embeddings_are_refused_by_name(stack: Stack) -> None:
    await stack.up(prefill=0)
    for path in PATHS:
        status, answer = await post(stack, path, {"model": MODEL, "input": "x"})
        assert status == 404
        assert "spec.coordinator.poolingUrl" in answer["error"]["message"]
