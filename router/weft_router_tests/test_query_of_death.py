"""A request that ends engines ends one; those beside it go on; and nobody is held back for being near."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from weft_router_tests.fake_engine import prompt_ids, reply_text
from weft_router_tests.stack import Answer, Composition, Stack, is_so, router_json, until
from weft_router_tests.test_faults_decode import prefer

pytestmark = pytest.mark.component

PROMPT, FIELD = "kill-word", "top_logprobs"
CHAT = "/v1/chat/completions"
LENGTH = 1000


def asked(k: int | str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"question {k}"}]


async def kill(stack: Stack, marker: str, *, session: str, stream: bool = False, front: str | None = None) -> Answer:
    """Send a request that ends an engine by its prompt, or one that does so by a field."""
    if marker == PROMPT:
        return await stack.chat(asked(PROMPT), session=session, stream=stream, front=front)
    return await stack.chat(asked(0), session=session, stream=stream, front=front, logprobs=True, top_logprobs=2)


def load(stack: Stack, marker: str) -> None:
    for engine in stack.engines.values():
        engine.script.poison = marker


def ended(stack: Stack) -> int:
    return sum(engine.ended for engine in stack.engines.values())


async def settle(stack: Stack, *, decode: int, prefill: int = 0) -> None:
    await stack.settle(decode=decode, prefill=prefill)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("marker", [PROMPT, FIELD])
@pytest.mark.parametrize("prefill", [0, 2])
async def test_a_request_that_ends_an_engine_ends_no_second_one(
    stack: Stack, prefill: int, marker: str, streamed: bool
) -> None:
    await stack.up(decode=3, prefill=prefill)
    load(stack, marker)
    first = await kill(stack, marker, session="a", stream=streamed)
    assert ended(stack) == 1
    told = first.error if first.status == 200 else first.json["error"]
    assert told is not None
    assert told["code"] in ("engine_died", "stream_interrupted")
    for session in ("a", "b", "c", "d"):
        again = await kill(stack, marker, session=session, stream=not streamed)
        assert (again.status, again.json["error"]["code"]) == (422, "request_quarantined")
    assert ended(stack) == 1
    fine = await stack.chat(asked(1), session="e")
    assert (fine.status, fine.text) == (200, reply_text(prompt_ids({"messages": asked(1)})))
    assert await stack.count("weft_router_rejected_total", reason="quarantined") == 4
    assert await stack.count("weft_router_quarantined_requests") == 1


async def test_a_request_that_ends_engines_after_its_first_token_ends_two(stack: Stack) -> None:
    await stack.up(decode=4, prefill=0)
    load(stack, PROMPT)
    for engine in stack.engines.values():
        engine.script.poison_at, engine.script.gap_s = 3, 0.05
    first = await kill(stack, PROMPT, session="a", stream=True)
    assert (first.status, first.error and first.error["code"]) == (200, "stream_interrupted")
    for session in ("a", "b", "c"):
        assert (await kill(stack, PROMPT, session=session, stream=True)).status == 422
    assert ended(stack) == 2
    assert await stack.count("weft_router_quarantined_requests") == 1


async def test_a_stream_that_cannot_go_on_elsewhere_ends_four_engines_at_most(stack: Stack) -> None:
    await stack.up(decode=6, prefill=0)
    load(stack, FIELD)
    for engine in stack.engines.values():
        engine.script.poison_at, engine.script.gap_s = 3, 0.05
    for k in range(4):
        assert await stack.count("weft_router_quarantined_requests") == 0
        assert (await kill(stack, FIELD, session=f"s{k}", stream=True)).status == 200
        assert ended(stack) == k + 1

    async def held() -> bool:
        return await stack.count("weft_router_quarantined_requests") == 1

    await until(held)
    assert (await kill(stack, FIELD, session="s9", stream=True)).status == 422
    assert ended(stack) == 4


async def test_a_request_that_killed_is_known_to_every_coordinator(sidecars: Stack) -> None:
    await sidecars.up(decode=3, prefill=0, coordinators=2)
    load(sidecars, PROMPT)
    assert (await kill(sidecars, PROMPT, session="a")).status == 502

    async def heard() -> bool:
        return await sidecars.count("weft_router_quarantined_requests", "c1") == 1

    await until(heard)
    again = await kill(sidecars, PROMPT, session="b", front=sidecars.processes["c1"].url)
    assert again.status == 422
    assert ended(sidecars) == 1


async def test_other_prompts_with_the_same_fields_end_two_engines_at_most_and_nothing_plain_is_held(
    stack: Stack,
) -> None:
    await stack.up(decode=4, prefill=0)
    load(stack, FIELD)
    codes = []
    for k in range(5):
        got = await stack.chat(asked(k), session=f"s{k}", logprobs=True, top_logprobs=2)
        codes.append(got.json["error"]["code"])
    assert codes == ["engine_died", "engine_died", *["request_quarantined"] * 3]
    assert ended(stack) == 2
    assert (await stack.chat(asked(0), session="s9")).status == 200
    assert (await stack.chat(asked(0), session="s9", logprobs=False, presence_penalty=0.5)).status == 200


async def streams(stack: Stack, count: int, **fields: Any) -> list[asyncio.Task[Answer]]:
    """Begin streams that take long until ``hurry``, and wait until each has given a token."""
    for engine in stack.engines.values():
        engine.script.gap_s = 0.05
    tasks = [
        asyncio.create_task(stack.chat(asked(k), session=f"s{k}", stream=True, max_tokens=LENGTH, **fields))
        for k in range(count)
    ]
    engines = stack.engines.values()

    async def all_go() -> bool:
        """Return whether each of the sidecars has handed on first tokens of all that its engine has."""
        firsts = [await stack.count("weft_router_ttft_seconds_count", name) for name in hosts]
        return sum(engine.running for engine in engines) == count and sum(firsts) == count

    hosts = ["c0"] if stack.composition == "standalone" else [name for name in stack.engines if name.startswith("d")]
    await until(all_go)
    return tasks


def hurry(stack: Stack) -> None:
    for engine in stack.engines.values():
        engine.script.gap_s = 0.0


@pytest.mark.parametrize("marker", [PROMPT, FIELD])
async def test_streams_beside_it_go_on_elsewhere_with_the_same_words(stack: Stack, marker: str) -> None:
    await stack.up(decode=2, prefill=0)
    load(stack, marker)
    beside = await streams(stack, 12)
    killed = await kill(stack, marker, session="killer")
    assert killed.status == 502
    hurry(stack)
    for k, task in enumerate(beside):
        answer = await task
        assert answer.whole, answer.raw[-200:]
        assert answer.text == reply_text(prompt_ids({"messages": asked(k)}), LENGTH)
    assert ended(stack) == 1


async def test_a_lone_stream_of_an_engine_that_is_killed_goes_on(stack: Stack) -> None:
    await stack.up(decode=2, prefill=0)
    (task,) = await streams(stack, 1)
    (engine,) = [e for e in stack.engines.values() if e.running]
    engine.perish()
    hurry(stack)
    answer = await task
    assert answer.whole
    assert answer.text == reply_text(prompt_ids({"messages": asked(0)}), LENGTH)
    assert await stack.count("weft_router_quarantined_requests") == 0


async def test_a_stream_that_saw_two_engines_end_is_not_sent_to_a_third(stack: Stack) -> None:
    await stack.up(decode=3, prefill=0)
    (task,) = await streams(stack, 1)
    engines = stack.engines.values()
    for deaths in range(2):

        async def can_resume(after: int = deaths) -> bool:
            return ended(stack) == after and any(e.running and e.streamed > 5 for e in engines)

        await until(can_resume)
        (engine,) = [e for e in engines if e.running]
        for one in engines:
            one.streamed = 0
        engine.perish()
    answer = await task
    assert answer.error is not None
    assert answer.error["code"] == "stream_interrupted"
    assert ended(stack) == 2
    assert await stack.count("weft_router_quarantined_requests") == 1, "it was the only one on both"


@pytest.mark.parametrize("composition", ["sidecars", "standalone"])
async def test_of_several_that_had_just_come_the_cause_ends_one_more_and_no_other_tenant_loses_anything(
    tmp_path: Path, composition: Composition
) -> None:
    """Nobody can tell which it was; of one tenant one at a time is sent again, and a second death names it."""
    keys = tmp_path / "keys"
    keys.write_text("one-key-of-one tenant=one\nother-key tenant=other\n")
    one, other = {"Authorization": "Bearer one-key-of-one"}, {"Authorization": "Bearer other-key"}
    stack = Stack(tmp_path, composition, router_json(routing={"prefillConcurrency": 8}))
    try:
        await stack.up(decode=4, prefill=0, keys=keys)
        await prefer(stack, "d0")
        load(stack, PROMPT)
        d0 = stack.engines["d0"]
        d0.script.gate = asyncio.Event()
        sent = [asyncio.create_task(stack.chat(asked(k), session=f"s{k}", headers=other)) for k in range(4)]
        killers = [
            asyncio.create_task(stack.chat(asked(f"{PROMPT} {k}"), session=f"k{k}", headers=one)) for k in range(4)
        ]
        await until(lambda: is_so(len(d0.seen) == 8))
        d0.script.gate.set()
        assert [(await task).status for task in killers] == [502] * 4
        assert ended(stack) == 2
        assert [(await task).status for task in sent] == [200] * 4
        assert await stack.count("weft_router_quarantined_requests") == 1
    finally:
        await stack.close()


async def test_fields_that_an_engine_serves_well_are_no_reason_to_blame_a_request(stack: Stack) -> None:
    await stack.up(decode=2, prefill=0)

    def ask(k: int) -> Coroutine[Any, Any, Answer]:
        return stack.chat(asked(k), session=f"s{k}", presence_penalty=0.5)

    for k in range(8):
        assert (await ask(k)).status == 200
    for engine in stack.engines.values():
        engine.script.delay_s = 0.3
    tasks = [asyncio.create_task(ask(k)) for k in range(8)]
    await until(lambda: is_so(all(engine.running > 1 for engine in stack.engines.values())))
    stack.engines["d0"].perish()
    assert [(await task).status for task in tasks] == [200] * 8
    assert await stack.count("weft_router_quarantined_requests") == 0


async def test_an_engine_that_only_breaks_a_connection_is_none_that_died(stack: Stack) -> None:
    await stack.up(decode=2, prefill=0)
    shared: set[str] = set()
    for engine in stack.engines.values():
        engine.script.die_at, engine.script.once = "before_headers", shared
    answer = await stack.chat(asked(1), session="a")
    assert answer.status == 200
    assert shared
    assert await stack.count("weft_router_quarantined_requests") == 0


async def test_a_quarantined_request_is_let_in_again_after_its_time(tmp_path: Path) -> None:
    stack = Stack(tmp_path, "standalone", router_json(limits={"quarantineSeconds": 1}))
    try:
        await stack.up(decode=2, prefill=0)
        load(stack, PROMPT)
        assert (await kill(stack, PROMPT, session="a")).status == 502
        load(stack, "")

        async def served() -> bool:
            return (await kill(stack, PROMPT, session="b")).status == 200

        await until(served)
    finally:
        await stack.close()
