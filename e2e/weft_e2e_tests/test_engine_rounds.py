"""Real vLLM engines behind the router: KV moves both ways, and every answer is the one that a plain engine gives."""

import os
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from weft_e2e_tests.engine_stack import LONG, MODEL, Chat, EngineStack, engine_stack, wanted

pytestmark = [
    pytest.mark.component,
    pytest.mark.engine,
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_ENGINE"), reason="real engines: make e2e-engine"),
]

FIRST = "Weaving begins with the warp, the set of threads that are held in tension on the loom. " * 8
LATER = "And then the weft goes back and forth between them, over one thread and under the next. " * 2


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineStack]:
    with engine_stack(tmp_path_factory.mktemp("engines")) as running:
        yield running


def agree(stack: EngineStack, chat: Chat, *, since: int = 0) -> None:
    """Hold the answers of a conversation to the plain engine's, which is given the same history each time.

    Afterwards, for KV is kept for the next round for a minute and a half only.
    """
    for index, message in enumerate(chat.messages):
        if message["role"] == "assistant" and index >= since:
            assert message["content"] == stack.expected(chat.messages[:index], chat.tokens), f"message {index}"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_later_rounds_read_their_history_from_the_decode_engine(stack: EngineStack, stream: bool) -> None:
    """What only the decode engine has goes to the prefill engine, and the increment comes back."""
    stack.use_policy("always-remote")
    chat, before = stack.chat(stream=stream, tokens=LONG), stack.pages()
    chat.ask(f"{FIRST} {stream}")
    assert chat.route == "remote"
    stack.until_moved(before, prefill=0, decode=1)
    for _ in range(2):
        history = sum(len(message["content"]) for message in chat.messages)
        before = stack.pages()
        chat.ask(LATER)
        assert chat.route == "remote"
        stack.until_moved(before, prefill=1, decode=1)
        stack.until_counted(before, "weft_router_kv_handles_total", 1, outcome="used")
        stack.until_counted(before, "weft_router_kv_handles_total", 1, outcome="stored")
        came = prompt_tokens(stack, before, "prefill")
        assert came["external_kv_transfer"] > 0
        assert came["local_cache_hit"] + came["external_kv_transfer"] >= history  # nothing of it was computed again
        assert not any(event.startswith(":") for event in chat.events)
    agree(stack, chat)


def prompt_tokens(stack: EngineStack, before: dict[str, str], engine: str) -> dict[str, float]:
    """Return where an engine's prompt tokens came from since, by its own counters."""
    grown = stack.grown(before)
    sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
    return {source: grown.by_page("vllm:prompt_tokens_by_source_total", source=source)[engine] for source in sources}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_local_rounds_are_served_by_the_decode_engines_prefix_cache(stack: EngineStack, stream: bool) -> None:
    stack.use_policy("always-remote")
    chat = stack.chat(stream=stream)
    chat.ask(f"local {stream} {FIRST}")
    stack.use_policy("always-local")
    for _ in range(2):
        history = sum(len(message["content"]) for message in chat.messages)
        before = stack.pages()
        chat.ask(LATER)
        assert chat.route == "local"
        assert stack.transfers(before) == {"prefill": 0, "decode": 0}
        assert stack.grown(before).by_page("vllm:prefix_cache_hits_total")["decode"] > history - 140
    agree(stack, chat)


def test_a_local_round_is_exported_for_a_remote_one(stack: EngineStack) -> None:
    stack.use_policy("always-remote")
    chat = stack.chat(stream=True)
    chat.ask(f"export {FIRST}")
    stack.use_policy("always-local")
    chat.ask(LATER)
    assert chat.route == "local"
    stack.use_policy("always-remote")
    chat.ask(LATER)
    assert chat.route == "remote"
    agree(stack, chat)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_history_that_the_client_edits_is_never_answered_from_old_kv(stack: EngineStack, stream: bool) -> None:
    stack.use_policy("always-remote")
    chat = stack.chat(stream=stream)
    chat.ask(f"edited {stream} {FIRST}")
    chat.ask(LATER)
    said = chat.messages[1]["content"]
    chat.messages[1]["content"] = said[:-1] + ("!" if said.endswith("?") else "?")
    before = stack.pages()
    chat.ask(LATER)
    assert stack.grown(before).total("weft_router_kv_handles_total", outcome="used") == 0
    assert stack.transfers(before)["prefill"] == 0
    agree(stack, chat, since=4)


def test_a_client_that_leaves_and_a_session_that_ends_leave_no_kv(stack: EngineStack) -> None:
    stack.use_policy("always-remote")
    body = {**wanted([{"role": "user", "content": f"cancel {FIRST}"}]), "stream": True, "max_tokens": 3000}
    before = stack.pages()
    with httpx.stream("POST", f"{stack.url}/v1/chat/completions", json=body, timeout=120) as reply:
        next(part for part in reply.iter_bytes() if b"content" in part)
    stack.until_counted(before, "weft_router_cancelled_total", 1)
    chat = stack.chat(stream=True)
    chat.ask(f"expires {FIRST}")
    agree(stack, chat)
    stack.until_idle()


KEEP = {"do_remote_decode": True, "do_remote_prefill": False}
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": FIRST}], "max_tokens": 4},
    "/v1/completions": {"prompt": FIRST, "max_tokens": 4},
    "/v1/responses": {"input": FIRST, "max_output_tokens": 4},
    "/v1/messages": {"messages": [{"role": "user", "content": FIRST}], "max_tokens": 4},
}


@pytest.mark.parametrize("path", STREAMS)
def test_every_kind_of_stream_brings_its_handle_when_asked(stack: EngineStack, path: str) -> None:
    """Asked of the engine itself: one comment, before the event that ends the answer; unasked the stream is vLLM's."""
    body = {"model": MODEL, "stream": True, "temperature": 0, "kv_transfer_params": KEEP, **STREAMS[path]}
    proof = {"X-Weft-Engine-Proof": stack.proof}
    for asked in ({"X-Weft-KV-Handle": "1"}, {}):
        reply = httpx.post(f"{stack.decode.url}{path}", json=body, headers={**proof, **asked}, timeout=60)
        assert reply.status_code == 200, reply.text
        events = reply.text.split("\n\n")
        comments = [event for event in events if event.startswith(": kv_transfer_params ")]
        assert (reply.headers.get("x-weft-engine-plugin"), len(comments)) == (("1", 1) if asked else (None, 0))
        if asked:
            assert events.index(comments[0]) < len([event for event in events if event]) - 1
            handle = orjson.loads(comments[0].removeprefix(": kv_transfer_params "))
            assert handle["do_remote_prefill"] is True
            assert handle["remote_block_ids"]


HOSTILE: tuple[dict[str, Any], ...] = (
    {"do_remote_prefill": True},
    {"a": 1},
    {"do_remote_prefill": False, "do_remote_decode": False},
    {"do_remote_prefill": True, "remote_host": "127.0.0.9", "remote_port": 1, "remote_block_ids": [[1]]},
)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_no_transfer_parameters_of_a_stranger_reach_an_engine(stack: EngineStack, stream: bool) -> None:
    """Through the router they are taken out; sent to the engine itself, the plug-in refuses them."""
    stack.use_policy("always-remote")
    asked = [{"role": "user", "content": "hostile"}]
    expected = stack.expected(asked)
    for params in HOSTILE:
        chat = stack.chat(stream=stream)
        assert chat.ask("hostile", kv_transfer_params=params) == expected
        for engine in (stack.prefill, stack.decode):
            body = {**wanted(asked), "stream": stream, "kv_transfer_params": params}
            reply = httpx.post(f"{engine.url}/v1/chat/completions", json=body, timeout=60)
            assert reply.status_code == 400, reply.text
            assert "kv_transfer_params" in reply.text
    assert stack.prefill.alive
    assert stack.decode.alive
