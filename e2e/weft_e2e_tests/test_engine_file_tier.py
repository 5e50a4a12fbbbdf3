"""Real vLLM engines with NIXL and files under MultiConnector: evicted KV comes back, with the same answers."""

import os
from collections.abc import Iterator

import httpx
import pytest

from weft_e2e.engines.counters import sources
from weft_e2e.engines.process import EngineProcess
from weft_e2e_tests.engine_stack import ROUND_S, Chat, EngineStack, engine_stack, wanted

pytestmark = [
    pytest.mark.component,
    pytest.mark.engine,
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_ENGINE"), reason="real engines: make e2e-engine"),
]

BLOCK, BLOCKS = 128, 40
"""A prompt of 4,096 tokens needs 32."""
WHOLE = 8 * BLOCK
"""Tokens in whole blocks of each prompt of a conversation: answers and questions are short."""
TOKENS = 16
WORDS = "Weaving begins with the warp, the set of threads that are held in tension on the loom. "


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, plain: EngineProcess) -> Iterator[EngineStack]:
    args = (f"--num-gpu-blocks-override={BLOCKS}",)
    with engine_stack(tmp_path_factory.mktemp("files"), plain, args=args, file_tier=True) as running:
        yield running


def first_prompt(word: str) -> str:
    """Return a text whose prompt, with the template's three tokens, is a little longer than the whole blocks."""
    return (f"{word}: " + WORDS * 12)[:WHOLE]


def evict(engine: EngineProcess) -> None:
    """Send prompts of more blocks than an engine has; no handle keeps their KV."""
    for number in range(8):
        body = wanted([{"role": "user", "content": f"{number} other words. " + WORDS * 10}], 1)
        httpx.post(f"{engine.url}/v1/chat/completions", json=body, timeout=ROUND_S).raise_for_status()


@pytest.fixture(scope="module")
def chats(stack: EngineStack) -> tuple[Chat, Chat]:
    """Begin two conversations by remote prefills, and push their KV out of both engines once no handle keeps it."""
    stack.use_policy("always-remote")
    before = stack.pages()
    found = stack.chat(stream=False, tokens=TOKENS), stack.chat(stream=False, tokens=TOKENS)
    for number, chat in enumerate(found):
        chat.ask(first_prompt(f"conversation {number}"))
        assert chat.route == "remote"
    stack.until_moved(before, prefill=0, decode=2)
    stack.until_idle()
    evict(stack.prefill)
    evict(stack.decode)
    return found


def agree(stack: EngineStack, chat: Chat) -> None:
    """Hold all answers to those of an engine without connectors."""
    for index in range(1, len(chat.messages), 2):
        assert chat.messages[index]["content"] == stack.expected(chat.messages[:index], TOKENS), f"message {index}"


def test_a_decode_engine_loads_what_came_over_nixl_from_its_files(stack: EngineStack, chats: tuple[Chat, Chat]) -> None:
    chat = chats[0]
    stack.use_policy("always-local")
    before = stack.pages()
    chat.ask("And then?")
    assert chat.route == "local"
    came = sources(stack.grown(before), "decode")
    assert (came.cached, came.read) == (0, WHOLE), "every whole block of the history, and none of GPU memory"
    assert came.computed < BLOCK
    assert stack.transfers(before) == {"prefill": 0, "decode": 0}
    agree(stack, chat)


def test_a_prefill_engine_loads_a_history_from_its_files_and_hands_it_over(
    stack: EngineStack, chats: tuple[Chat, Chat]
) -> None:
    """Of another session: without a handle its own goes on at its decode engine, whose cache may have it."""
    stack.use_policy("always-remote")
    chat, before = Chat(stack.url, stream=False, tokens=TOKENS, messages=chats[1].messages), stack.pages()
    chat.ask("And then?")
    assert chat.route == "remote"
    stack.until_moved(before, prefill=0, decode=1)
    came = sources(stack.grown(before), "prefill")
    assert (came.cached, came.read) == (0, WHOLE)
    assert came.computed < BLOCK
    agree(stack, chat)
