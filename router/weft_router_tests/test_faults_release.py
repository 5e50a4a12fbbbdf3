"""KV that nobody will read is given back at once, not left to its lease; nothing else is."""

import asyncio
from typing import Any

import pytest

from weft_router_tests.stack import MODEL, Stack, is_so, router_json, until
from weft_router_tests.test_stack_closing import end

pytestmark = pytest.mark.component

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


def follow(text: str, more: str = "more " * 100) -> list[dict[str, Any]]:
    return [*HELLO, {"role": "assistant", "content": text}, {"role": "user", "content": more}]


async def freed(stack: Stack, name: str, count: int = 1) -> None:
    engine = stack.engines[name]
    await until(lambda: is_so(engine.released == count and not engine.held), seconds=3)
    assert await stack.count("weft_router_handle_releases_total", "d0", outcome="released") >= count


async def test_prefilled_kv_that_the_decode_engine_refuses_is_given_back(stack: Stack) -> None:
    await stack.up()
    stack.engines["d0"].script.status = 400
    for stream in (True, False):
        assert (await stack.chat(HELLO, stream=stream)).status == 400
    await freed(stack, "p0", 2)


async def test_prefilled_kv_of_a_client_that_left_before_the_first_token_is_given_back(stack: Stack) -> None:
    await stack.up()
    decode = stack.engines["d0"]
    decode.script.hang = True
    pending = asyncio.ensure_future(stack.chat(HELLO, stream=True))
    await until(lambda: is_so(decode.running == 1))
    assert stack.engines["p0"].held
    pending.cancel()
    await asyncio.wait([pending])
    await freed(stack, "p0")


async def shown(stack: Stack) -> None:
    """Start a service whose prefill workers' token is shown at once, and whose broken streams end."""
    stack.config = router_json(routing={"firstTokenFromPrefill": "auto", "resume": "off"})
    await stack.up()
    stack.engines["p0"].script.ends = "length"


async def test_a_client_that_has_the_prefills_token_and_leaves_gives_the_kv_back(stack: Stack) -> None:
    await shown(stack)
    decode = stack.engines["d0"]
    decode.script.hang = True
    async with stack.http.post(
        stack.front + "/v1/chat/completions",
        json={"model": MODEL, "messages": HELLO, "stream": True, "temperature": 0},
    ) as response:
        assert b'"content"' in await response.content.readuntil(b"\n\n")
        await until(lambda: is_so(decode.running == 1))
        assert stack.engines["p0"].held
        response.close()
    await freed(stack, "p0")


async def test_a_stream_that_breaks_between_the_prefills_token_and_the_next_gives_the_kv_back(stack: Stack) -> None:
    await shown(stack)
    decode = stack.engines["d0"]
    decode.script.hang = True
    pending = asyncio.ensure_future(stack.chat(HELLO, stream=True, temperature=0))
    await until(lambda: is_so(decode.running == 1))
    decode.script.hang = False
    stack.worker_of("d0").engine.pool.terminate("scripted")
    answer = await pending
    assert answer.text, "the prefill's token"
    assert answer.error
    await freed(stack, "p0")


@pytest.mark.parametrize("ends", ["length", "stop"])
async def test_kv_of_a_stream_that_breaks_after_its_engine_began_was_read(stack: Stack, ends: str) -> None:
    await shown(stack)
    stack.engines["p0"].script.ends = ends  # with "stop" no token is shown before its time
    stack.engines["d0"].script.die_at_token = 3
    answer = await stack.chat(HELLO, stream=True, temperature=0)
    assert answer.error
    assert await stack.count("weft_router_kv_handles_total", "d0", outcome="orphaned") == 0
    assert await stack.count("weft_router_handle_releases_total", "d0") == 0


async def test_prefilled_kv_that_turns_out_to_be_of_another_prompt_is_given_back(stack: Stack) -> None:
    await stack.up()
    first = await stack.chat(HELLO, session="s")
    stack.engines["p0"].script.wrong_ids = True
    assert (await stack.chat(follow(first.text), session="s")).status == 200
    await until(lambda: is_so(stack.engines["p0"].released == 1))


async def test_a_handle_whose_history_was_changed_is_given_back(stack: Stack) -> None:
    await stack.up()
    first = await stack.chat(HELLO, session="s")
    assert len(stack.engines["d0"].held) == 1
    assert (await stack.chat(follow(first.text + "!"), session="s")).status == 200
    await until(lambda: is_so(stack.engines["d0"].released == 1), seconds=3)
    assert len(stack.engines["d0"].held) == 1, "the handle of the new round"


async def test_a_handle_of_a_round_that_ran_locally_is_given_back(stack: Stack) -> None:
    stack.config = router_json(routing={"policy": "fixed-x", "params": {"x": 1.0}})
    await stack.up()
    first = await stack.chat(HELLO, session="s")
    assert first.headers["X-Weft-Route"] == "remote"
    second = await stack.chat(follow(first.text), session="s")
    assert second.headers["X-Weft-Route"] == "local"
    await until(lambda: is_so(stack.engines["d0"].released == 1), seconds=3)
    assert await stack.count("weft_router_kv_handles_total", "d0", outcome="superseded") == 1


async def test_a_handle_that_was_read_is_not_given_back(stack: Stack) -> None:
    await stack.up()
    first = await stack.chat(HELLO, session="s")
    second = await stack.chat(follow(first.text), session="s")
    assert second.headers["X-Weft-Route"] == "remote"
    assert not stack.engines["p0"].held
    assert stack.engines["d0"].released == stack.engines["p0"].released == 0
    assert await stack.count("weft_router_handle_releases_total", "d0") == 0


async def test_a_burst_of_releases_is_bounded_and_each_one_is_counted(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft_router.sessions.kv_releaser.MOST_AT_ONCE", 2)
    await stack.up()
    decode = stack.engines["d0"]
    decode.script.hang = True
    pending = [asyncio.ensure_future(stack.chat(HELLO, session=f"s{k}", stream=True)) for k in range(8)]
    await until(lambda: is_so(decode.running == 8))
    decode.script.hang = False
    stack.worker_of("d0").engine.pool.terminate("scripted")
    await asyncio.wait(pending)
    for one in pending:
        one.exception()

    async def counted() -> bool:
        return await stack.count("weft_router_handle_releases_total", "d0") >= 8

    await until(counted)
    assert await stack.count("weft_router_handle_releases_total", "d0", outcome="dropped") >= 4


@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_engine_gets_back_what_it_keeps_for_rounds_that_may_come(stack: Stack, stream: bool) -> None:
    """Of sessions alike the one that waits longest for its next round gives first, one for each request that waits."""
    await stack.up()
    decode = stack.engines["d0"]
    answers = [await stack.chat(HELLO, session=f"s{k}", stream=stream) for k in range(3)]
    assert len(decode.held) == 3
    first = next(iter(decode.held))
    decode.kv_usage = 0.95
    await until(lambda: is_so(stack.worker_of("d0").engine.load.kv_usage == 0.95))
    assert len(decode.held) == 3, "a full cache alone is no reason"
    decode.waiting = 1
    await until(lambda: is_so(decode.released > 0))
    decode.waiting = 0
    assert first not in decode.held
    assert await stack.count("weft_router_kv_handles_total", "d0", outcome="yielded") == decode.released
    decode.kv_usage = 0.0
    for k in (0, 2):
        answer = await stack.chat(follow(answers[k].text), session=f"s{k}", stream=stream)
        assert answer.status == 200
    assert await stack.count("weft_router_kv_handles_total", "d0", outcome="used") == 1


async def test_a_full_engine_keeps_what_is_likely_to_be_read_soon(stack: Stack) -> None:
    """Here sessions that got a text end, and those that call the tool return at once: these keep their KV longer."""
    await stack.up()
    decode = stack.engines["d0"]
    for k in range(8):
        await stack.chat(HELLO, session=f"s{k}", stream=True)
        assert (await end(stack, f"s{k}"))[0] == 204
    decode.script.tool_call = True
    for _ in range(8):
        await stack.chat(HELLO, session="calls", stream=True)
    decode.script.tool_call = False
    await until(lambda: is_so(len(decode.held) == 1))
    await stack.chat(HELLO, session="talks", stream=True)
    await until(lambda: is_so(len(decode.held) == 2))
    calls, talks = decode.held
    before = decode.released
    decode.kv_usage, decode.waiting = 0.95, 1
    await until(lambda: is_so(decode.released > before))
    decode.waiting = 0
    assert talks not in decode.held
    assert calls in decode.held or decode.released > before + 1
