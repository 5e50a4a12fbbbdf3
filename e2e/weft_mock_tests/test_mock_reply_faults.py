"""Faults that meet single replies: the process dies, the reply hangs, the connection is cut."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest
import pytest_asyncio

from weft_mock.faults import FaultError, faults_from_json
from weft_mock.model import answer
from weft_mock.tokenizer import chat_ids, decode
from weft_mock_tests.engines import EXPORT, Client, at_rest, config, engines, until

HELLO: list[dict[str, object]] = [{"role": "user", "content": "hello"}]
LIMITS: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True}
WORDS = answer(chat_ids(HELLO), 20, ignore_eos=True)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Client]:
    async with engines(config(time_scale=0.1)) as (client,):
        yield client


async def raw(client: Client, *, stream: bool) -> tuple[int | None, bytes]:
    """Return the status, None when there was none, and what came of the body before the connection ended."""
    body = orjson.dumps({"messages": HELLO, "stream": stream, **LIMITS})
    got = b""
    status: int | None = None
    try:
        async with client._session.post(client.url + "/v1/chat/completions", data=body) as reply:
            status = reply.status
            async for part in reply.content.iter_any():
                got += part
    except aiohttp.ClientError:
        return status, got
    raise AssertionError("the reply ended well")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"die_at": "half"}, "die_at"),
        ({"die_at": "token:0"}, "die_at"),
        ({"die_at": 17}, "die_at"),
        ({"hang_at": "after_body"}, "hang_at"),
        ({"cut_at": "after_body"}, "cut_at"),
        ({"cut_at": "token:"}, "cut_at"),
        ({"cut_at": "half", "status": 500}, "not together with status"),
        ({"cut_at": "half", "hang_at": "before_headers"}, "not together with hang_at"),
    ],
)
def test_points_of_a_reply_that_do_not_exist_are_named(body: object, word: str) -> None:
    with pytest.raises(FaultError, match=word):
        faults_from_json(body)


def test_a_fault_meets_as_many_replies_as_it_says() -> None:
    faults = faults_from_json({"cut_at": "token:17", "times": 2})
    met = [faults.of_reply() for _ in range(3)]
    assert [(each.action, each.token) if each else None for each in met] == [("cut", 17), ("cut", 17), None]
    assert faults_from_json({}).of_reply() is None


@pytest.mark.component
@pytest.mark.parametrize("stream", [False, True])
async def test_cut_before_the_headers(engine: Client, stream: bool) -> None:
    await engine.faults(cut_at="before_headers", times=1)
    assert await raw(engine, stream=stream) == (None, b"")
    await at_rest(engine)
    assert (await engine.chat(HELLO, **LIMITS)).text == decode(WORDS)


@pytest.mark.component
@pytest.mark.parametrize("stream", [False, True])
async def test_cut_after_the_headers(engine: Client, stream: bool) -> None:
    await engine.faults(cut_at="after_headers", times=1)
    assert await raw(engine, stream=stream) == (200, b"")
    await at_rest(engine)


@pytest.mark.component
async def test_half_a_reply(engine: Client) -> None:
    await engine.faults(cut_at="half", times=2)
    status, got = await raw(engine, stream=False)
    assert status == 200
    assert got.startswith(b'{"id"')
    with pytest.raises(ValueError, match="unexpected end"):
        orjson.loads(got)
    status, got = await raw(engine, stream=True)
    assert status == 200
    assert got.startswith(b"data: ")
    assert not got.endswith(b"\n\n")
    await at_rest(engine)


@pytest.mark.component
async def test_a_stream_cut_after_a_token(engine: Client) -> None:
    await engine.faults(cut_at="token:7", times=1)
    status, got = await raw(engine, stream=True)
    assert status == 200
    events = [orjson.loads(line[6:]) for line in got.decode().split("\n\n") if line]
    text = "".join(event["choices"][0]["delta"]["content"] for event in events)
    assert text == decode(WORDS[:7])
    await at_rest(engine)
    await engine.faults(cut_at="token:7", times=1)
    assert await raw(engine, stream=False) == (None, b"")
    await at_rest(engine)


@pytest.mark.component
@pytest.mark.parametrize("at", ["before_headers", "after_headers", "token:3"])
async def test_a_reply_hangs_while_health_and_others_go_on(engine: Client, at: str) -> None:
    await engine.faults(hang_at=at, times=1)
    hanging = asyncio.create_task(raw(engine, stream=True))
    await until(lambda: engine.engine.faults.times == 0)
    assert (await engine.chat(HELLO, **LIMITS)).status == 200
    assert (await engine.get("/health"))[0] == 200
    done, _ = await asyncio.wait({hanging}, timeout=0.1)
    assert not done
    hanging.cancel()
    await at_rest(engine)


@pytest.mark.component
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at", ["before_headers", "after_headers", "after_body", "token:4"])
async def test_the_process_dies_at_a_point_of_a_reply(at: str, stream: bool) -> None:
    died = asyncio.Event()
    async with engines(config(time_scale=0.1), die=died.set) as (client,):
        await client.faults(die_at=at)
        body = orjson.dumps({"messages": HELLO, "stream": stream, **LIMITS})

        async def ask() -> tuple[int, bytes]:
            async with client._session.post(client.url + "/v1/chat/completions", data=body) as reply:
                got = b""
                async for part in reply.content.iter_any():
                    got += part
                    if at == "token:4" and decode(WORDS[3:4]) in got.decode():
                        break
                return reply.status, got

        asking = asyncio.create_task(ask())
        await asyncio.wait_for(died.wait(), 5)
        if at == "after_body":
            status, got = await asking
            assert status == 200
            assert b"[DONE]" in got if stream else orjson.loads(got)
        elif at == "token:4" and stream:
            assert decode(WORDS[:1]).encode() in (await asking)[1]
        else:
            assert not asking.done()
        asking.cancel()


@pytest.mark.component
async def test_a_prefill_that_dies_after_its_body_leaves_its_blocks_to_nobody() -> None:
    died = asyncio.Event()
    async with engines(config(engine_id="p", role="prefill", time_scale=0.1), die=died.set) as (p,):
        await p.faults(die_at="after_body")
        reply = await p.chat(HELLO, max_tokens=1, kv_transfer_params=EXPORT)
        assert reply.handle["do_remote_prefill"] is True
        await asyncio.wait_for(died.wait(), 5)
