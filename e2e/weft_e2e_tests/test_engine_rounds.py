"""Real vLLM engines behind the router: KV moves both ways, and every answer is the one that a plain engine gives."""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from weft_e2e.engines.counters import sources
from weft_e2e.engines.process import EngineProcess
from weft_e2e.metrics import growth
from weft_e2e.waiting import until
from weft_e2e_tests.engine_routers import Stream, largest_gap, other_router
from weft_e2e_tests.engine_stack import LONG, MODEL, ROUND_S, Chat, EngineStack, ToldError, engine_stack, wanted
from weft_router_tests.stack import MODEL as NO_MODEL
from weft_router_tests.test_faults_hostile import hostile

pytestmark = [
    pytest.mark.component,
    pytest.mark.engine,
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_ENGINE"), reason="real engines: make e2e-engine"),
]

FIRST = "Weaving begins with the warp, the set of threads that are held in tension on the loom. " * 8
VERY_LONG = FIRST * 5
"""Some 3,500 of the 4,096 tokens that a conversation may have."""
CROWD = 8
CROWD_S = 400.0
CORPUS = 300
CLIENTS = 4
TRIALS = 3
LATER = "And then the weft goes back and forth between them, over one thread and under the next. " * 2


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, plain: EngineProcess) -> Iterator[EngineStack]:
    with engine_stack(tmp_path_factory.mktemp("engines"), plain) as running:
        yield running


@pytest.fixture(autouse=True)
def _whole(stack: EngineStack) -> None:
    """Begin with all engines in use, whatever the test before has killed."""
    stack.whole()


def agree(stack: EngineStack, chat: Chat, *, since: int = 0) -> None:
    """Hold the answers of a conversation to the plain engine's, which is given the same history each time.

    Afterwards, for KV is kept for the next round for 20 s only.
    """
    for index, message in enumerate(chat.messages):
        if message["role"] == "assistant" and index >= since:
            assert message["content"] == stack.expected(chat.messages[:index], chat.tokens), f"message {index}"


@pytest.mark.engine_quick
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
        came = sources(stack.grown(before), "prefill")
        assert came.read > 0
        assert came.cached + came.read >= history  # nothing of it was computed again
        assert not any(event.startswith(":") for event in chat.events)
    agree(stack, chat)


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


@pytest.mark.engine_quick
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


def test_each_worker_of_a_symmetric_pool_prefills_for_the_others_sessions(stack: EngineStack, tmp_path: Path) -> None:
    roles, slo = {"prefill": "both", "decode": "both"}, {"ttft": 120.0, "itl": 1.0}
    # By headroom all sessions may go to one worker, where tests before have left KV on the other one.
    routing = {"policy": "always-remote", "binding": "round-robin"}
    with other_router(stack, tmp_path / "symmetric", roles, routing=routing, slo=slo) as url:
        before = stack.pages()
        chats = talk_at_once([Chat(url, stream=index % 2 == 0) for index in range(4)])
        assert all(chat.route == "remote" for chat in chats)
        until(
            lambda: all(stack.transfers(before).values()),
            what="reads of both",
            timeout_s=60,
            last=lambda: str(stack.transfers(before)),
        )
        for chat in chats:
            agree(stack, chat)
    grown = stack.grown(before)
    computed = {engine: sources(grown, engine).computed for engine in ("prefill", "decode")}
    # Two sessions' first prompts each.
    assert min(computed.values()) > 2 * len(FIRST), computed
    assert stack.prefill.alive
    assert stack.decode.alive


def talk_at_once(chats: list[Chat]) -> list[Chat]:
    """Have two rounds of each, all at the same time."""
    with ThreadPoolExecutor(len(chats)) as pool:
        for later in (False, True):
            list(pool.map(lambda chat, later=later: chat.ask(LATER if later else f"{chat.session} {FIRST}"), chats))
    return chats


def test_slices_of_a_long_local_prefill_leave_streams_short_gaps(stack: EngineStack, tmp_path: Path) -> None:
    """The engine is stock vLLM, which would take the whole prompt in one step beside the streams.

    What else the machine does makes gaps longer, so one pair of prompts of a few has to show it.
    """
    shown: list[dict[str, float]] = []
    for trial in range(TRIALS):
        gaps = {mode: gap_beside(stack, tmp_path / f"{mode}-{trial}", mode) for mode in ("whole", "sliced")}
        shown.append(gaps)
        if gaps["whole"] >= 4 * gaps["sliced"]:
            break
    print(f"largest gaps: {shown}", file=sys.stderr)  # noqa: T201 - a figure to note
    assert gaps["whole"] >= 4 * gaps["sliced"], shown


def gap_beside(stack: EngineStack, folder: Path, mode: str) -> float:
    """Return the largest gap of four streams while a long prompt is prefilled beside them, whole or sliced."""
    slices = {"mode": "auto" if mode == "sliced" else "off", "block": 128}
    routing = {"policy": "weft", "mode": "whole-or-chunked", "slices": slices}
    with other_router(stack, folder, {"decode": "decode"}, routing=routing, slo={"ttft": 120.0, "itl": 0.06}) as url:
        before = {"engine": stack.decode.counters()}
        streams = [Stream(url, f"{folder.name} {index}", 3000) for index in range(4)]
        until(
            lambda: all(len(one.at) > 8 for one in streams),
            what="four streams that go",
            timeout_s=ROUND_S,
            last=lambda: f"tokens {[len(one.at) for one in streams]}",
        )
        chat = Chat(url, stream=True)
        begun = time.monotonic()
        chat.ask(f"{folder.name} {VERY_LONG}")
        gap = largest_gap(streams, begun, time.monotonic())
        assert all(one.thread.is_alive() for one in streams), "they ended before the prefill"
        for one in streams:
            one.end()
        hits = growth(before, {"engine": stack.decode.counters()}).total("vllm:prefix_cache_hits_total")
        assert (hits > len(VERY_LONG)) == (mode == "sliced"), "slices are joined by the prefix cache"
    agree(stack, chat)
    return gap


def test_the_hostile_corpus_through_the_router_leaves_engines_alive_and_their_kv_free(stack: EngineStack) -> None:
    """Whatever is wrong in a body is refused or taken out; engines answer the rest."""
    stack.use_policy("always-remote")
    statuses: Counter[int] = Counter()

    def send(number: int) -> None:
        """Send a share of it as one session, whose history no body goes on with."""
        headers = {"Content-Type": "application/json", "X-Session-Id": f"hostile-{number}"}
        for path, raw in corpus[number::CLIENTS]:
            few = b'"max_output_tokens":2' if path.endswith("responses") else b'"max_tokens":2'
            body = raw.replace(f'"{NO_MODEL}"'.encode(), f'"{MODEL}"'.encode())[:-1] + b"," + few + b"}"
            reply = httpx.post(f"{stack.url}{path}", content=body, headers=headers, timeout=ROUND_S)
            statuses[reply.status_code] += 1

    corpus = list(hostile(CORPUS))
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(send, range(CLIENTS)))
    assert set(statuses) <= {200, 400, 404}, statuses
    assert statuses[200] > CORPUS // 3, statuses
    assert stack.prefill.alive
    assert stack.decode.alive
    chat = stack.chat(stream=True)
    chat.ask(f"after the corpus {FIRST}")
    agree(stack, chat)


def test_long_sessions_that_fill_the_kv_cache_finish_or_are_told_why_not(stack: EngineStack) -> None:
    """Together they need half as many tokens again as an engine holds, and it keeps those of ended rounds for a while.

    Afterwards nothing of this and of the tests before is left.
    """
    stack.use_policy("always-remote")
    chats = [stack.chat(stream=index % 2 == 0, tokens=LONG) for index in range(CROWD)]
    errors: Counter[str] = Counter()
    full = 0.0

    def talk(index: int, chat: Chat) -> None:
        for text in (f"{index} {VERY_LONG}", LATER):
            try:
                chat.ask(text, timeout=CROWD_S)
            except ToldError as error:
                errors[error.code] += 1
                return

    with ThreadPoolExecutor(CROWD) as pool:
        talks = [pool.submit(talk, index, chat) for index, chat in enumerate(chats)]
        while not all(one.done() for one in talks):
            full = max(full, stack.decode.kv_usage(), stack.prefill.kv_usage())
            wait(talks, timeout=0.5)
        for one in talks:
            one.result()
    print(f"fullest {full:.2f}; ended with {dict(errors)}", file=sys.stderr)  # noqa: T201 - a figure to note
    assert full > 0.9, "the sessions did not fill the cache"
    assert stack.prefill.alive
    assert stack.decode.alive
    assert sum(errors.values()) < CROWD
    agree(stack, next(chat for chat in chats if len(chat.messages) == 4))
    stack.until_idle()


def test_a_decode_engine_that_is_killed_in_a_stream_is_told_of_and_its_sessions_go_on(stack: EngineStack) -> None:
    """It is the only one, so nobody can go on with the stream; the next rounds wait for nothing of the dead one."""
    stack.use_policy("always-remote")
    chat = stack.chat(stream=True, tokens=LONG)
    chat.ask(f"outlives its engine {FIRST}")
    body = {**wanted([{"role": "user", "content": f"cut {FIRST}"}]), "stream": True, "max_tokens": 3000}
    with httpx.stream("POST", f"{stack.url}/v1/chat/completions", json=body, timeout=ROUND_S) as reply:
        parts = reply.iter_bytes()
        next(part for part in parts if b"content" in part)
        stack.decode.kill()
        rest = b"".join(parts)
    assert b'"error"' in rest, rest[-500:]
    assert stack.prefill.alive
    stack.whole()
    chat.ask(LATER)
    agree(stack, chat)


def test_a_prefill_engine_that_is_killed_between_the_legs_costs_no_answer(stack: EngineStack) -> None:
    """The decode engine was started anew, so the two have to meet again, which takes longer than the kill."""
    stack.use_policy("always-remote")
    chat = stack.chat(stream=True)
    before = stack.prefill.finished()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(chat.ask, f"killed between {FIRST}")
        came = until(
            lambda: "leg" if stack.prefill.finished() > before else "answer" if asked.done() else None,
            what="the first leg",
            timeout_s=ROUND_S,
            every_s=0.01,
            last=stack.prefill.last_words,
        )
        stack.prefill.kill()
        asked.result(ROUND_S)
    assert came == "leg", f"nothing was prefilled there, the route was {chat.route}"
    agree(stack, chat)
    assert stack.decode.alive
    stack.whole()
    chat.ask(LATER)
    agree(stack, chat)
    stack.until_idle()
