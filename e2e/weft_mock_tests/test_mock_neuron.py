"""Two engines of the Neuron fork over real sockets: they find each other by their X-Request-Id."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from weft_core.fixed_shapes import with_fixed_shapes
from weft_mock.engine import Engine, limits_of
from weft_mock.model import answer
from weft_mock.tokenizer import chat_ids, completion_ids, decode, filler
from weft_mock_tests.engines import Client, Reply, Stream, at_rest, config, engines, profile, until

pytestmark = pytest.mark.component

Pair = tuple[Client, Client]
Messages = list[dict[str, object]]


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    prefill = config(engine_id="p", role="prefill", protocol="neuron", bidirectional=False, time_scale=0.1)
    decoder = config(engine_id="d", role="decode", protocol="neuron", bidirectional=False, time_scale=0.1)
    async with engines(prefill, decoder) as (p, d):
        yield p, d


def ask(tokens: int = 60, seed: int = 1) -> Messages:
    return [{"role": "user", "content": filler(tokens, seed)}]


def ids(pair: Pair) -> tuple[str, str]:
    """Return the ids of the prefill's and of the decode's leg."""
    name = uuid.uuid4()
    prefill, decoder = (each.url.removeprefix("http://") for each in pair)
    return f"cmpl-{name}_{decoder}", f"cmpl-{name}_{prefill}"


async def both(pair: Pair, messages: Messages, **fields: Any) -> tuple[Stream, Stream]:
    p, d = pair
    mine, its = ids(pair)
    return await asyncio.gather(
        p.stream(messages, request_id=mine, **{**fields, "max_tokens": 1}),
        d.stream(messages, request_id=its, **fields),
    )


async def test_prompts_are_computed_as_long_as_the_profile_pads_them() -> None:
    shapes = with_fixed_shapes(profile(), lengths=(200, 400), batch=4)
    pacing = Engine(config(role="prefill", protocol="neuron", bidirectional=False, profile=shapes)).pacing
    seconds = [pacing.prefill(history=0, increment=tokens) for tokens in (1, 200, 201, 400)]
    assert seconds == pytest.approx([0.003, 0.003, 0.005, 0.005])
    assert pacing.decode(batch=1, context=50) == pacing.decode(batch=4, context=50)


async def test_prefill_sends_one_token_and_decode_repeats_it_first(pair: Pair) -> None:
    messages = ask()
    first, rest = await both(pair, messages, max_tokens=12)
    words = answer(chat_ids(messages), 12)
    assert first.text == decode(words[:1])
    assert rest.text == decode(words)
    texts = [choice["delta"]["content"] for choice in rest.choices() if "content" in choice["delta"]]  # type: ignore[operator, index]
    # As in vLLM the role comes in an event of its own.
    assert texts[:2] == ["", decode(words[:1])]
    assert first.choices()[-1]["finish_reason"] == "length"
    assert "token_ids" not in rest.choices()[-1]
    got = pair[1].engine.ledger.recent[-1]
    assert (got.computed, got.read) == (0, 64)
    await at_rest(*pair)
    for client in pair:
        assert not client.engine.ledger.violations


async def test_text_completions_repeat_the_token_in_the_first_event(pair: Pair) -> None:
    p, d = pair
    mine, its = ids(pair)
    prompt = filler(30, 2)

    async def leg(client: Client, name: str, tokens: int) -> Reply:
        return await client.post("/v1/completions", {"prompt": prompt, "max_tokens": tokens}, X_Request_Id=name)

    first, rest = await asyncio.gather(leg(p, mine, 1), leg(d, its, 7))
    words = answer(completion_ids(prompt), 7)
    assert (first.text, rest.text) == (decode(words[:1]), decode(words))
    assert rest.body["id"] == f"cmpl-{its}"
    await at_rest(p, d)


async def test_prefill_does_not_wait_for_decode(pair: Pair) -> None:
    p, d = pair
    mine, its = ids(pair)
    first = await p.stream(ask(), request_id=mine, max_tokens=1)
    assert first.text == decode(answer(chat_ids(ask()), 1))
    assert len(p.engine.pins) == 1
    rest = await d.stream(ask(), request_id=its, max_tokens=4)
    assert rest.text == decode(answer(chat_ids(ask()), 4))
    await at_rest(p, d)


async def test_a_stopped_first_token_ends_both(pair: Pair) -> None:
    stop = answer(chat_ids(ask()), 1)
    first, rest = await both(pair, ask(), max_tokens=9, stop_token_ids=stop)
    assert first.text == rest.text == decode(stop)
    assert rest.choices()[-1]["finish_reason"] == "stop"
    await at_rest(*pair)


@pytest.mark.parametrize(
    "name",
    [
        "r",
        "cmpl-1_127.0.0.1:80",
        "cmpl-0b9c54a4-0000-4000-8000-0242ac120002",
        "cmpl-0b9c54a4-0000-4000-8000-0242ac120002_127.0.0.1",
        "cmpl-0b9c54a4-0000-4000-8000-0242ac120002_127.0.0.1:99999",
        "___prefill_addr_127.0.0.1:80___decode_addr_127.0.0.1:81_0b9c54a4",
    ],
)
async def test_an_id_without_a_peer_is_refused(pair: Pair, name: str) -> None:
    for client in pair:
        assert (await client.chat(ask(), request_id=name, max_tokens=1)).status == 400
        assert client.engine.ledger.violations == {"no_peer": 1}


async def test_a_prefill_of_more_than_one_token_is_refused(pair: Pair) -> None:
    p, _ = pair
    assert (await p.chat(ask(), request_id=ids(pair)[0], max_tokens=2)).status == 400
    assert p.engine.ledger.violations == {"prefill_not_cut": 1}


async def test_the_legs_must_name_each_other(pair: Pair) -> None:
    p, d = pair
    name = uuid.uuid4()
    wrong = f"cmpl-{name}_127.0.0.1:9"
    right = f"cmpl-{name}_{p.url.removeprefix('http://')}"
    legs = [
        asyncio.create_task(d.chat(ask(), request_id=right, max_tokens=3)),
        asyncio.create_task(p.chat(ask(), request_id=wrong, max_tokens=1)),
    ]
    assert (await legs[0]).status == 500
    await legs[1]
    assert p.engine.ledger.violations == {"peer_mismatch": 1}
    nobody = await d.chat(ask(), request_id=f"cmpl-{uuid.uuid4()}_127.0.0.1:9", max_tokens=3)
    assert nobody.status == 500
    await at_rest(d)


async def test_prefill_gone_fails_decode() -> None:
    slow = config(engine_id="p", role="prefill", protocol="neuron", bidirectional=False, time_scale=200.0)
    decoder = config(engine_id="d", role="decode", protocol="neuron", bidirectional=False)
    async with engines(slow, decoder) as (p, d):
        mine, its = ids((p, d))
        legs = [
            asyncio.create_task(p.chat(ask(), request_id=mine, max_tokens=1)),
            asyncio.create_task(d.chat(ask(), request_id=its, max_tokens=5)),
        ]
        await until(lambda: len(p.engine.scheduler.running) == 1 and len(p.engine.meetings) == 1)
        legs[0].cancel()
        assert (await legs[1]).status == 500
        await at_rest(p, d)


async def test_decode_gone_fails_prefill() -> None:
    slow = config(engine_id="p", role="prefill", protocol="neuron", bidirectional=False, time_scale=200.0)
    decoder = config(engine_id="d", role="decode", protocol="neuron", bidirectional=False)
    async with engines(slow, decoder) as (p, d):
        mine, its = ids((p, d))
        legs = [
            asyncio.create_task(p.chat(ask(), request_id=mine, max_tokens=1)),
            asyncio.create_task(d.chat(ask(), request_id=its, max_tokens=5)),
        ]
        await until(lambda: len(p.engine.scheduler.running) == 1)
        meeting = next(iter(p.engine.meetings._open.values()))
        await until(meeting.joined.is_set)
        legs[1].cancel()
        assert (await legs[0]).status == 500
        await at_rest(p, d)


async def test_nothing_is_cached_for_later_prompts(pair: Pair) -> None:
    for _ in range(2):
        await both(pair, ask(), max_tokens=4)
        records = [client.engine.ledger.recent[-1] for client in pair]
        assert [(one.cached, one.computed, one.read) for one in records] == [(0, 64, 0), (0, 0, 64)]
    await at_rest(*pair)


async def test_a_prefill_keeps_its_place_until_its_kv_was_read() -> None:
    prefill = config(
        engine_id="p", role="prefill", protocol="neuron", bidirectional=False, time_scale=0.1, max_sequences=1
    )
    decoder = config(engine_id="d", role="decode", protocol="neuron", bidirectional=False, time_scale=0.1)
    async with engines(prefill, decoder) as (p, d):
        first, second = ids((p, d)), ids((p, d))
        await p.chat(ask(), request_id=first[0], max_tokens=1)
        waiting = asyncio.create_task(p.chat(ask(seed=2), request_id=second[0], max_tokens=1))
        await until(lambda: len(p.engine.scheduler.waiting) == 1)
        assert (await d.chat(ask(), request_id=first[1], max_tokens=3)).status == 200
        assert (await waiting).status == 200
        assert (await d.chat(ask(seed=2), request_id=second[1], max_tokens=3)).status == 200
        await at_rest(p, d)


@pytest.mark.parametrize(("role", "chunk"), [("prefill", None), ("decode", None), ("both", 16)])
def test_prompts_are_computed_as_a_whole_where_kv_is_transferred(role: Any, chunk: int | None) -> None:
    assert limits_of(config(role=role, protocol="neuron", bidirectional=False, chunk=16)).chunk == chunk


async def test_there_is_no_responses_api_and_no_foreign_field(pair: Pair) -> None:
    p, _ = pair
    assert (await p.post("/v1/responses", {"input": "x"})).status == 404
    refused = await p.chat(ask(), request_id=ids(pair)[0], max_tokens=1, kv_transfer_params={"a": 1})
    assert refused.status == 400
    assert refused.error["type"] == "BadRequestError"
    assert p.engine.ledger.violations == {"foreign_field:kv_transfer_params": 1}
