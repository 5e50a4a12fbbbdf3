"""What stock vLLM does with wrong transfer parameters, exact continuation, priorities and what is recorded."""

import asyncio
from typing import Any

import orjson
import pytest

from weft_mock.model import answer
from weft_mock.recording import Recording
from weft_mock.tokenizer import chat_ids, decode, filler
from weft_mock_tests.engines import EXPORT, Client, Reply, at_rest, config, engines, until

pytestmark = pytest.mark.component

HELLO: list[dict[str, object]] = [{"role": "user", "content": "hello"}]


def ids_of(reply: Reply) -> list[int]:
    ids = reply.body["choices"][0]["token_ids"]  # type: ignore[index]
    assert isinstance(ids, list)
    return ids


async def test_a_trusting_engine_leaks_what_vllm_leaks() -> None:
    async with engines(config(trusting=True, time_scale=0.1)) as (client,):
        messages: list[dict[str, object]] = [{"role": "user", "content": filler(100, 1)}]
        reply = await client.chat(messages, max_tokens=2, kv_transfer_params={"a": 1})
        assert reply.status == 200
        assert reply.body["kv_transfer_params"] is None
        assert client.engine.ledger.kv_consequences == {"would_leak": 1}
        pool = client.engine.scheduler.pool
        assert pool.used == len(client.engine.scheduler.leaked) == 7
        holds = orjson.loads((await client.get("/mock/ledger"))[1])["holds"]
        assert (holds["leaked_blocks"], holds["total"]) == (7, 7)
        assert "weft_mock_leaked_blocks 7.0" in (await client.get("/metrics"))[1].decode()


async def test_a_trusting_engine_dies_of_what_vllm_dies_of() -> None:
    died = asyncio.Event()
    async with engines(config(trusting=True, time_scale=0.1), die=died.set) as (client,):
        reply = await client.chat(HELLO, kv_transfer_params={"do_remote_prefill": True})
        assert reply.status == 500
        await asyncio.wait_for(died.wait(), 5)


async def test_a_trusting_engine_ignores_what_vllm_ignores() -> None:
    async with engines(config(trusting=True, bidirectional=False, time_scale=0.1)) as (client,):
        assert (await client.chat(HELLO, max_tokens=2, kv_transfer_params={"a": 1})).status == 200
        assert client.engine.ledger.kv_consequences == {"would_ignore": 1}
        await at_rest(client)


@pytest.mark.parametrize("cut", [1, 7, 20, 47])
async def test_a_greedy_request_is_continued_exactly(cut: int) -> None:
    async with engines(config(time_scale=0.1), config(engine_id="other", time_scale=0.1)) as (first, other):
        fields: dict[str, Any] = {"ignore_eos": True, "return_token_ids": True, "temperature": 0}
        whole = ids_of(await first.chat(HELLO, max_tokens=48, **fields))
        stream = await first.stream(HELLO, max_tokens=cut, **fields)
        known = [token for choice in stream.choices() for token in choice.get("token_ids", [])]  # type: ignore[attr-defined]
        assert known == whole[:cut]
        prompt = stream.events[0]["prompt_token_ids"]
        assert isinstance(prompt, list)
        params = {"prompt_token_ids": prompt + known}
        rest = await other.chat([], max_tokens=48 - cut, kv_transfer_params=params, **fields)
        assert known + ids_of(rest) == whole
        body = {"prompt": prompt + known, "max_tokens": 48 - cut, **fields}
        assert known + ids_of(await other.post("/v1/completions", body)) == whole


@pytest.mark.parametrize(
    "fields", [{"temperature": 0.7}, {"seed": 3}, {"temperature": 0, "presence_penalty": 0.5}, {"frequency_penalty": 1}]
)
async def test_sampled_and_penalised_requests_are_not(fields: dict[str, object]) -> None:
    async with engines(config(time_scale=0.1)) as (client,):

        async def made(prompt: list[int], tokens: int) -> list[int]:
            body = {"prompt": prompt, "max_tokens": tokens, "return_token_ids": True, **fields}
            return ids_of(await client.post("/v1/completions", body))

        prompt = chat_ids(HELLO)
        whole = await made(prompt, 12)
        # The same request gives the same answer, which is what a replay before the first byte needs.
        assert await made(prompt, 12) == whole
        rest = await made(prompt + whole[:4], 8)
        assert sum(a == b for a, b in zip(rest, whole[4:], strict=True)) <= 2


async def test_slices_of_a_prefill_warm_the_cache_in_whole_blocks() -> None:
    async with engines(config(time_scale=0.1)) as (client,):
        messages: list[dict[str, object]] = [{"role": "user", "content": filler(200, 1)}]
        prompt = chat_ids(messages)
        for end in (64, 128, 190):
            body = {"prompt": prompt[:end], "max_tokens": 1}
            assert (await client.post("/v1/completions", body)).status == 200
        last = await client.chat(messages, max_tokens=5)
        assert last.text == decode(answer(prompt, 5))
        computed = [record.computed for record in client.engine.ledger.recent]
        assert computed == [64, 64, 62, len(prompt) - 176]
        assert last.usage["prompt_tokens_details"] == {"cached_tokens": 176}
        await at_rest(client)


async def test_a_release_through_the_prefill_engine_reads_nothing() -> None:
    pair = (
        config(engine_id="p", role="prefill", time_scale=0.1),
        config(engine_id="d", role="decode", time_scale=0.1),
    )
    async with engines(*pair) as (p, d):
        leg = await p.chat(HELLO, max_tokens=1, kv_transfer_params=EXPORT)
        done = await d.chat(HELLO, max_tokens=3, kv_transfer_params=leg.handle)
        release = {**done.handle, "do_remote_prefill": True, "do_remote_decode": False}
        body = {"model": "no such model", "prompt": "x", "kv_transfer_params": release}
        assert (await p.post("/v1/completions", body)).status == 404
        await at_rest(p, d)
        assert d.engine.ledger.handles["released_unread"] == 1
        assert p.engine.ledger.kv_protocol_errors.total() == 0


async def test_priorities_order_the_queue_only_where_configured() -> None:
    async with engines(config(max_sequences=1, time_scale=2.0, priority_scheduling=True)) as (client,):
        order: list[str] = []

        async def one(name: str, priority: int) -> None:
            assert (await client.chat(HELLO, max_tokens=4, priority=priority)).status == 200
            order.append(name)

        running = await client.open_stream(HELLO, max_tokens=60, ignore_eos=True)
        tasks = []
        for count, (name, priority) in enumerate((("late", 5), ("soon", -5), ("mid", 0), ("mid2", 0))):
            tasks.append(asyncio.create_task(one(name, priority)))
            await until(lambda least=count + 1: len(client.engine.scheduler.waiting) == least)  # type: ignore[misc]
        await asyncio.gather(*tasks)
        assert order == ["soon", "mid", "mid2", "late"]
        assert b"[DONE]" in await running.read()
    async with engines(config()) as (plain,):
        refused = await plain.chat(HELLO, priority=1)
        assert refused.status == 400
        assert refused.error["param"] == "priority"


async def test_bodies_are_recorded_as_they_came() -> None:
    async with engines(config(time_scale=0.1)) as (client,):
        odd = b'{ "messages": [{"role":"user","content":"hi"}],"max_tokens":1,"max_tokens":2}'
        assert (await client.post("/v1/chat/completions", odd, X_Odd="yes")).status == 200
        assert (await client.post("/v1/completions", b"{")).status == 400
        recorded = await _recorded(client)
        assert recorded["total"] == 2
        requests = recorded["requests"]
        assert isinstance(requests, list)
        assert requests[0]["body"] == odd.decode()
        assert requests[0]["headers"]["X-Odd"] == "yes"
        assert (requests[1]["path"], requests[1]["body"]) == ("/v1/completions", "{")
        async with client._session.delete(client.url + "/mock/requests") as reply:
            assert reply.status == 200
        assert await _recorded(client) == {"total": 0, "requests": []}


async def _recorded(client: Client) -> dict[str, object]:
    status, body = await client.get("/mock/requests")
    assert status == 200
    read = orjson.loads(body)
    assert isinstance(read, dict)
    return read


def test_the_recording_is_bounded() -> None:
    ring = Recording()
    for number in range(1200):
        ring.add("POST", f"/{number}", [("A", "1"), ("A", "2")], b"x")
    kept = ring.to_json()
    assert kept["total"] == 1200
    assert isinstance(kept["requests"], list)
    assert (len(kept["requests"]), kept["requests"][0]["path"]) == (1000, "/200")
    assert kept["requests"][0]["headers"] == {"A": "1, 2"}
    for _ in range(6):
        ring.add("POST", "/long", [], b"y" * 2**21)
    kept = ring.to_json()
    assert isinstance(kept["requests"], list)
    assert [each["cut"] for each in kept["requests"]] == [True] * 4
    assert sum(len(each["body"]) for each in kept["requests"]) == 4 * 2**20
