"""Two SGLang engines over real sockets: both legs at once, and what happens when one of them fails."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from weft_mock.model import answer
from weft_mock.tokenizer import chat_ids, decode, filler
from weft_mock_tests.engines import Client, Reply, at_rest, config, engines, until

pytestmark = pytest.mark.component

Pair = tuple[Client, Client]
Messages = list[dict[str, object]]
ROOM = 2**63 - 7


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    prefill = config(engine_id="p", role="prefill", protocol="sglang", bidirectional=False, time_scale=0.1)
    decoder = config(engine_id="d", role="decode", protocol="sglang", bidirectional=False, time_scale=0.1)
    async with engines(prefill, decoder) as (p, d):
        yield p, d


def ask(tokens: int = 60, seed: int = 1) -> Messages:
    return [{"role": "user", "content": filler(tokens, seed)}]


def bootstrap(p: Client, room: object = ROOM, **changes: object) -> dict[str, Any]:
    return {"bootstrap_host": "127.0.0.1", "bootstrap_port": p.side_port, "bootstrap_room": room, **changes}


async def both(pair: Pair, messages: Messages, **fields: Any) -> tuple[Reply, Reply]:
    p, d = pair
    body = {**bootstrap(p), **fields}
    first, second = await asyncio.gather(p.chat(messages, **body), d.chat(messages, **body))
    return first, second


async def test_decode_answers_and_prefill_is_drained(pair: Pair) -> None:
    p, d = pair
    messages = ask()
    drained, reply = await both(pair, messages, max_tokens=20)
    assert (drained.status, reply.status) == (200, 200), (drained.body, reply.body)
    assert reply.text == decode(answer(chat_ids(messages), 20))
    assert drained.text == decode(answer(chat_ids(messages), 1))
    choice = reply.body["choices"][0]  # type: ignore[index]
    assert choice["matched_stop"] is None
    assert "stop_reason" not in choice
    assert "kv_transfer_params" not in reply.body
    got = d.engine.ledger.recent[-1]
    assert (got.form, got.prompt, got.computed, got.read) == ("import", 64, 0, 64)
    await at_rest(p, d)
    assert not p.engine.ledger.violations
    assert not d.engine.ledger.violations


async def test_a_stream_has_sglang_s_events(pair: Pair) -> None:
    p, d = pair
    messages = ask()
    fields = {**bootstrap(p), "max_tokens": 6}
    drained, stream = await asyncio.gather(p.stream(messages, **fields), d.stream(messages, **fields))
    assert stream.text == decode(answer(chat_ids(messages), 6))
    assert drained.text == decode(answer(chat_ids(messages), 1))
    assert all(event["usage"] is None for event in stream.events)
    assert all("matched_stop" in choice for choice in stream.choices())


async def test_prefill_waits_for_decode(pair: Pair) -> None:
    p, d = pair
    messages = ask()
    fields = {**bootstrap(p), "max_tokens": 3}
    early = asyncio.create_task(p.chat(messages, **fields))
    await until(lambda: len(p.engine.meetings) == 1)
    done, _ = await asyncio.wait({early}, timeout=0.1)
    assert not done
    assert not p.engine.scheduler.running
    assert (await d.chat(messages, **fields)).status == 200
    assert (await early).status == 200


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bootstrap_room": None}, "no_room"),
        ({"bootstrap_room": "7"}, "wrong_type"),
        ({"bootstrap_room": True}, "wrong_type"),
        ({"bootstrap_room": 2**63}, "wrong_type"),
        ({"bootstrap_room": -1}, "wrong_type"),
        ({"bootstrap_host": None}, "wrong_type"),
        ({"bootstrap_port": "8998"}, "wrong_type"),
        ({"n": 2}, "several_answers"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, "foreign_field:kv_transfer_params"),
        ({"disaggregated_params": {}}, "foreign_field:disaggregated_params"),
    ],
)
async def test_wrong_fields_are_refused_on_both_legs(pair: Pair, change: dict[str, Any], reason: str) -> None:
    for client in pair:
        reply = await client.chat(ask(), **{**bootstrap(pair[0]), **change})
        assert reply.status == 400
        # SGLang sends its errors flat.
        assert set(reply.body) == {"object", "message", "type", "param", "code"}
        assert client.engine.ledger.violations[reason] == 1
    await at_rest(*pair)


async def test_the_missing_room_has_sglang_s_words(pair: Pair) -> None:
    reply = await pair[1].chat(ask())
    assert reply.body["message"] == "Disaggregated request received without bootstrap room id"
    responses = await pair[1].post("/v1/responses", {"input": "x", **bootstrap(pair[0])})
    assert responses.body["message"] == "Disaggregated request received without bootstrap room id"


async def test_a_wrong_address_fails_decode_and_leaves_prefill_waiting_until_it_is_aborted(pair: Pair) -> None:
    p, d = pair
    fields = bootstrap(p, bootstrap_port=1)
    prefill = asyncio.create_task(p.chat(ask(), **fields))
    reply = await d.chat(ask(), **fields)
    assert reply.status == 500
    assert "bootstrap_addr 127.0.0.1:1" in str(reply.body["message"])
    await until(lambda: len(p.engine.meetings) == 1)
    assert not prefill.done()
    assert p.engine.ledger.violations == {"bootstrap_elsewhere": 1}
    prefill.cancel()
    await at_rest(p, d)


async def test_a_room_serves_one_pair_once(pair: Pair) -> None:
    p, d = pair
    await both(pair, ask(), max_tokens=2)
    again = await p.chat(ask(), **bootstrap(p))
    assert again.status == 400
    assert p.engine.ledger.violations == {"key_reused": 1}
    late = await d.chat(ask(), **bootstrap(p))
    assert late.status == 500
    assert "used before" in str(late.body["message"])
    await at_rest(p, d)


async def test_a_leg_that_comes_when_the_other_one_has_left_uses_its_room_for_the_first_time(pair: Pair) -> None:
    p, d = pair
    fields = bootstrap(p)
    decode = asyncio.create_task(d.chat(ask(), **fields))
    await until(lambda: len(p.engine.meetings) == 1)
    decode.cancel()
    await until(lambda: len(p.engine.meetings) == 0)
    late = await p.chat(ask(), **fields)
    assert late.status == 500
    assert "reader_gone" in str(late.body["message"])
    assert not p.engine.ledger.violations
    assert (await p.chat(ask(), **fields)).status == 400
    assert p.engine.ledger.violations == {"key_reused": 1}
    await at_rest(p, d)


async def test_a_decode_that_comes_when_the_prefill_has_left_uses_its_room_for_the_first_time(pair: Pair) -> None:
    p, d = pair
    fields = bootstrap(p)
    prefill = asyncio.create_task(p.chat(ask(), **fields))
    await until(lambda: len(p.engine.meetings) == 1)
    prefill.cancel()
    await until(lambda: len(p.engine.meetings) == 0)
    late = await d.chat(ask(), **fields)
    assert late.status == 500
    assert "holder_gone" in str(late.body["message"])
    assert not p.engine.ledger.violations
    await d.chat(ask(), **fields)
    assert p.engine.ledger.violations == {"key_reused": 1}
    await at_rest(p, d)


async def test_another_room_never_meets(pair: Pair) -> None:
    p, d = pair
    legs = [
        asyncio.create_task(p.chat(ask(), **bootstrap(p, 1))),
        asyncio.create_task(d.chat(ask(), **bootstrap(p, 2))),
    ]
    await until(lambda: len(p.engine.meetings) == 2)
    assert not any(leg.done() for leg in legs)
    for leg in legs:
        leg.cancel()
    await at_rest(p, d)


async def test_another_prompt_is_no_answer(pair: Pair) -> None:
    p, d = pair
    fields = bootstrap(p)
    drained, reply = await asyncio.gather(p.chat(ask(seed=1), **fields), d.chat(ask(seed=2), **fields))
    assert reply.status == 500
    assert "another history" in str(reply.body["message"])
    assert drained.status in (200, 500)
    await at_rest(p, d)


async def test_decode_gone_while_prefill_computes_fails_prefill() -> None:
    slow = config(engine_id="p", role="prefill", protocol="sglang", bidirectional=False, time_scale=200.0)
    decoder = config(engine_id="d", role="decode", protocol="sglang", bidirectional=False)
    async with engines(slow, decoder) as (p, d):
        legs = [asyncio.create_task(each.chat(ask(), **bootstrap(p))) for each in (p, d)]
        await until(lambda: len(p.engine.scheduler.running) == 1)
        legs[1].cancel()
        failed = await legs[0]
        assert failed.status == 500
        assert "reader_gone" in str(failed.body["message"])
        await at_rest(p, d)


async def test_prefill_gone_fails_decode() -> None:
    slow = config(engine_id="p", role="prefill", protocol="sglang", bidirectional=False, time_scale=200.0)
    decoder = config(engine_id="d", role="decode", protocol="sglang", bidirectional=False)
    async with engines(slow, decoder) as (p, d):
        legs = [asyncio.create_task(each.chat(ask(), **bootstrap(p))) for each in (p, d)]
        await until(lambda: len(p.engine.scheduler.running) == 1)
        legs[0].cancel()
        failed = await legs[1]
        assert failed.status == 500
        assert "holder_gone" in str(failed.body["message"])
        assert d.engine.ledger.failed_reads == {"holder_gone": 1}
        await at_rest(p, d)


async def test_a_leg_alone_gives_up_in_time() -> None:
    prefill = config(engine_id="p", role="prefill", protocol="sglang", bidirectional=False, meeting_seconds=0.1)
    decoder = config(engine_id="d", role="decode", protocol="sglang", bidirectional=False, meeting_seconds=0.1)
    async with engines(prefill, decoder) as (p, d):
        alone = await p.chat(ask(), **bootstrap(p, 1))
        assert (alone.status, "no reader" in str(alone.body["message"])) == (500, True)
        alone = await d.chat(ask(), **bootstrap(p, 2))
        assert (alone.status, "nothing was offered" in str(alone.body["message"])) == (500, True)
        await at_rest(p, d)


async def test_cancels_at_any_point_leave_nothing_behind(pair: Pair) -> None:
    p, d = pair

    async def round_of(room: int) -> None:
        fields = {**bootstrap(p, room), "max_tokens": 20}
        replies = await asyncio.gather(p.chat(ask(40, room), **fields), d.chat(ask(40, room), **fields))
        assert [reply.status for reply in replies] == [200, 200]

    rounds = [asyncio.create_task(round_of(room)) for room in range(40)]
    for room, task in enumerate(rounds):
        if room % 2:
            await until(lambda least=room: p.engine.ledger.requests.total() >= least // 2)  # type: ignore[misc]
            task.cancel()
    outcomes = await asyncio.gather(*rounds, return_exceptions=True)
    assert outcomes[::2] == [None] * 20
    await at_rest(p, d)


async def test_an_engine_without_a_role_serves_alone_and_refuses_bootstrap_fields() -> None:
    async with engines(config(protocol="sglang", bidirectional=False, time_scale=0.1)) as (alone,):
        assert (await alone.chat(ask(), max_tokens=2)).status == 200
        assert (await alone.chat(ask(), bootstrap_room=1)).status == 400
        assert alone.engine.ledger.violations == {"no_role": 1}
        status, body = await alone.get("/server_info")
        assert status == 200
        assert b'"disaggregation_mode":"null"' in body


async def test_metrics_have_sglang_s_names() -> None:
    async with engines(config(protocol="sglang", bidirectional=False, time_scale=0.1)) as (alone,):
        text = (await alone.get("/metrics"))[1].decode()
        assert 'sglang:max_total_num_tokens{model_name="test/model"} 4096.0' in text
        assert 'sglang:num_running_reqs{model_name="test/model"} 0.0' in text
        assert "weft_mock_free_blocks 256.0" in text
        assert "vllm:" not in text
