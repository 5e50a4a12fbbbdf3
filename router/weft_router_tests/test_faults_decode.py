"""A decode worker that dies is replaced unseen, gone on from exactly, or told of: no silent end, no token twice."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from weft_router_tests.fake_engine import prompt_ids, reply_text
from weft_router_tests.stack import Answer, Stack, crowd, failures, is_so, router_json, until

pytestmark = pytest.mark.component

STREAMS = 50
LENGTH = 8
USAGE = {"include_usage": True}


def messages(k: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"question {k}"}]


def ask(stack: Stack, kind: str) -> Callable[[int], Awaitable[Answer]]:
    if kind == "chat":
        return lambda k: stack.chat(messages(k), session=f"s{k}", stream=True, stream_options=USAGE)
    return lambda k: stack.complete(f"question {k}:", session=f"s{k}", stream=True, stream_options=USAGE)


def prompt(kind: str, k: int) -> list[int]:
    return prompt_ids({"messages": messages(k)}) if kind == "chat" else prompt_ids({"prompt": f"question {k}:"})


def flaw(answer: Answer, ids: list[int], *, may_end_at: int | None) -> str | None:
    """Return what is wrong with a stream; with ``may_end_at`` it may end in an error after so many tokens."""
    whole = reply_text(ids, LENGTH)
    if answer.status != 200:
        return f"status {answer.status}"
    if answer.error is not None:
        if may_end_at is None or answer.error["code"] != "stream_interrupted" or b"[DONE]" in answer.raw:
            return f"ended in {answer.error}"
        return None if answer.text == whole[:may_end_at] else f"{answer.text!r} is not {whole[:may_end_at]!r}"
    if not answer.whole:
        return f"ended without a word: {answer.raw[-80:]!r}"
    if answer.text != whole:
        return f"{answer.text!r} is not {whole!r}"
    if len({chunk["id"] for chunk in answer.chunks}) != 1:
        return f"several ids: {[chunk['id'] for chunk in answer.chunks]}"
    usage = [chunk["usage"] for chunk in answer.chunks if chunk.get("usage")]
    counts = [(use["prompt_tokens"], use["completion_tokens"]) for use in usage]
    return None if counts == [(len(ids), LENGTH)] else f"usage {counts}, not {(len(ids), LENGTH)}"


async def prefer(stack: Stack, *workers: str) -> None:
    """Make the other decode workers look full, the first of these least."""
    for name, engine in stack.engines.items():
        if name.startswith("d"):
            engine.kv_usage = 0.2 * workers.index(name) if name in workers else 0.9

    def seen() -> bool:
        records = stack.registry("c0").known("decode")
        return all(r.kv_used == round(stack.engines[r.worker].kv_usage * r.capacity) for r in records)

    await until(lambda: is_so(seen()))


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize("mode", ["auto", "off"])
async def test_streams_whose_engine_dies_at_any_token_are_whole_or_end_in_an_error(
    stack: Stack, mode: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft_router.engines.watch.STRIKES", 10**9)  # the same engine shall die again and again
    stack.config = router_json(routing={"resume": mode})
    await stack.up(decode=2, prefill=0)
    await prefer(stack, "d0")
    dying, send = stack.engines["d0"], ask(stack, kind)
    sent = 0
    for token in (0, 1, LENGTH // 2, LENGTH):
        dying.script.die_at_token, dying.died = token, 0
        told = 0

        async def one(k: int, token: int = token) -> str | None:
            nonlocal told
            started = time.monotonic()
            answer = await send(k)
            told += answer.error is not None
            if time.monotonic() - started > 2.5:
                return "ended too late"
            return flaw(answer, prompt(kind, k), may_end_at=token if mode == "off" and token else None)

        failed: list[str] = []
        first = sent
        while dying.died < STREAMS:
            failed += await crowd(10, 5, lambda k: one(sent + k))  # noqa: B023 - ends before the next turn
            sent += 10
            assert sent - first <= 4 * STREAMS, "the streams go elsewhere"
        assert not failed, f"token {token}: {failures(failed, sent - first)}"
        assert told == (dying.died if mode == "off" and token else 0)
    resumed = await stack.count("weft_router_resumes_total", outcome="resumed")
    assert resumed >= (2 * STREAMS if mode == "auto" else 0)
    assert (resumed > 0) == (mode == "auto")
    assert await stack.count("weft_router_broken_streams_total") >= (3 * STREAMS if mode == "off" else 0)


@pytest.mark.parametrize("kind", ["chat", "text"])
async def test_a_lost_pod_loses_no_stream(sidecars: Stack, kind: str) -> None:
    await sidecars.up(decode=2, prefill=0)
    await prefer(sidecars, "d0")
    dying, send = sidecars.engines["d0"], ask(sidecars, kind)
    dying.script.gap_s = 0.05
    live = [asyncio.ensure_future(send(k)) for k in range(20)]
    await until(lambda: is_so(dying.running >= 10))
    await sidecars.kill("d0")
    await dying.stop()
    answers = await asyncio.gather(*live)
    failed = [wrong for k, a in enumerate(answers) if (wrong := flaw(a, prompt(kind, k), may_end_at=None))]
    assert not failed, failures(failed, 20)
    assert await sidecars.count("weft_router_resumes_total", outcome="resumed") > 0


@pytest.mark.parametrize("kind", ["chat", "text"])
async def test_a_stream_that_loses_its_second_worker_too_goes_on_on_a_third(stack: Stack, kind: str) -> None:
    await stack.up(decode=3, prefill=0)
    await prefer(stack, "d0", "d1")
    stack.engines["d0"].script.die_at_token = 3
    stack.engines["d1"].script.die_at_token = 2
    answer = await ask(stack, kind)(0)
    assert flaw(answer, prompt(kind, 0), may_end_at=None) is None
    assert [stack.engines[name].died for name in ("d0", "d1", "d2")] == [1, 1, 0]
    assert await stack.count("weft_router_resumes_total", outcome="resumed") == 2


async def test_a_stream_with_nobody_left_to_go_on_ends_in_an_error_within_two_seconds(stack: Stack) -> None:
    await stack.up(decode=2, prefill=0)
    for name in ("d0", "d1"):
        stack.engines[name].script.die_at_token = 3
    started = time.monotonic()
    answer = await ask(stack, "chat")(0)
    assert time.monotonic() - started < 2
    assert answer.error is not None
    assert answer.text == reply_text(prompt("chat", 0), LENGTH)[:6]  # three tokens of each


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 0.5},
        {"logprobs": True},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"stop": ["x"]},
    ],
)
async def test_streams_that_would_not_go_on_as_they_began_end_in_an_error(stack: Stack, fields: dict[str, Any]) -> None:
    await stack.up(decode=2, prefill=0)
    await prefer(stack, "d0")
    stack.engines["d0"].script.die_at_token = 3
    answer = await stack.chat(messages(0), stream=True, **fields)
    assert answer.error is not None
    assert answer.text == reply_text(prompt("chat", 0), LENGTH)[:3]
    assert not stack.engines["d1"].seen


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 0.5},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"stop": ["x"]},
    ],
)
async def test_greedy_streams_that_ids_cannot_continue_are_generated_again(
    stack: Stack, fields: dict[str, Any]
) -> None:
    await stack.up(decode=3, prefill=0)
    await prefer(stack, "d0", "d1")
    stack.engines["d0"].script.die_at_token = 3
    stack.engines["d1"].script.die_at_token = 5
    answer = await stack.chat(messages(0), stream=True, temperature=0, stream_options=USAGE, **fields)
    assert flaw(answer, prompt("chat", 0), may_end_at=None) is None
    assert await stack.count("weft_router_resumes_total", outcome="regenerated") == 2


async def test_a_tool_call_whose_engine_dies_is_generated_again(stack: Stack) -> None:
    await stack.up(decode=2, prefill=0)
    await prefer(stack, "d0")
    for engine in stack.engines.values():
        engine.script.tool_call = True
    stack.engines["d0"].script.die_at_token = 3
    answer = await stack.chat(
        messages(0), stream=True, temperature=0, tools=[{"type": "function", "function": {"name": "f"}}]
    )
    assert answer.whole
    calls = [
        call
        for chunk in answer.chunks
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls") or ()
    ]
    assert [call["id"] for call in calls if "id" in call] == ["c1"]
    assert "".join(call["function"]["arguments"] for call in calls) == reply_text(prompt("chat", 0), LENGTH)


async def test_a_stream_that_is_generated_differently_ends_in_an_error(stack: Stack) -> None:
    await stack.up(decode=2, prefill=0)
    await prefer(stack, "d0")
    stack.engines["d0"].script.die_at_token = 3
    stack.engines["d1"].script.tool_call = True
    tools = [{"type": "function", "function": {"name": "f"}}]
    answer = await stack.chat(messages(0), stream=True, temperature=0, tools=tools)
    assert answer.error is not None
    assert answer.text == reply_text(prompt("chat", 0), LENGTH)[:3]
    assert "d1" in {record.worker for record in stack.registry("c0").known("decode")}


async def test_a_continued_stream_is_not_generated_again(stack: Stack) -> None:
    """No engine has generated all that the client has of it, so nothing can be compared with another engine's."""
    await stack.up(decode=3, prefill=0)
    await prefer(stack, "d0", "d1")
    stack.engines["d0"].script.die_at_token = 3
    stack.engines["d1"].script.die_at_token = 2
    stack.engines["d1"].script.tool_call = True
    answer = await stack.chat(messages(0), stream=True, temperature=0)
    assert answer.error is not None
    assert (answer.error["code"], b"[DONE]" in answer.raw) == ("stream_interrupted", False)
    assert answer.text == reply_text(prompt("chat", 0), LENGTH)[:3]
    assert [stack.engines[name].died for name in ("d0", "d1")] == [1, 1]
    assert not stack.engines["d2"].seen
    outcomes = {how: await stack.count("weft_router_resumes_total", outcome=how) for how in ("resumed", "regenerated")}
    assert outcomes == {"resumed": 1, "regenerated": 0}
    assert await stack.count("weft_router_resumes_total", outcome="structure") == 1


async def test_only_greedy_streams_go_on_where_the_service_wants_exact_ones(stack: Stack) -> None:
    stack.config = router_json(routing={"resume": "exact"})
    await stack.up(decode=2, prefill=0)
    await prefer(stack, "d0")
    stack.engines["d0"].script.die_at_token = 3
    sampled = await stack.chat(messages(0), stream=True, temperature=0.7)
    assert sampled.error is not None
    greedy = await stack.chat(messages(1), stream=True, temperature=0)
    assert (greedy.whole, greedy.text) == (True, reply_text(prompt("chat", 1), LENGTH))


async def test_a_stream_goes_on_within_the_limit_it_was_given(stack: Stack) -> None:
    await stack.up(decode=2, prefill=0)
    await prefer(stack, "d0")
    for engine in stack.engines.values():
        engine.script.length = 40
    stack.engines["d0"].script.die_at_token = 5
    answer = await stack.chat(messages(0), stream=True, max_tokens=20, stream_options=USAGE)
    assert answer.text == reply_text(prompt("chat", 0), 20)
    assert stack.engines["d1"].seen[-1]["max_tokens"] == 15
    assert answer.chunks[-1]["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize("token", [0, 1, 3])
async def test_a_stream_whose_first_token_came_from_its_prefill_goes_on_too(
    stack: Stack, token: int, kind: str
) -> None:
    stack.config = router_json(routing={"firstTokenFromPrefill": "auto"})
    await stack.up(decode=2)
    await prefer(stack, "d0")
    stack.engines["p0"].script.ends = "length"
    dying = stack.engines["d0"]
    dying.script.die_at_token = token
    if kind == "chat":
        answer = await stack.chat(messages(0), stream=True, temperature=0, stream_options=USAGE)
    else:
        answer = await stack.complete("question 0:", stream=True, temperature=0, stream_options=USAGE)
    assert dying.died == 1
    assert flaw(answer, prompt(kind, 0), may_end_at=None) is None
    assert await stack.count("weft_router_resumes_total", outcome="resumed") == 1
