"""A context and a generation server of TensorRT-LLM over real sockets."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from weft_mock.model import answer
from weft_mock.tokenizer import chat_ids, completion_ids, decode, filler
from weft_mock_tests.engines import Client, Reply, at_rest, config, engines, until

pytestmark = pytest.mark.component

Pair = tuple[Client, Client]
Messages = list[dict[str, object]]
ID = 7_204_111_222_333_444


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    context = config(engine_id="c", role="prefill", protocol="tensorrt-llm", bidirectional=False, time_scale=0.1)
    generation = config(engine_id="g", role="decode", protocol="tensorrt-llm", bidirectional=False, time_scale=0.1)
    async with engines(context, generation) as (c, g):
        yield c, g


def ask(tokens: int = 60, seed: int = 1) -> Messages:
    return [{"role": "user", "content": filler(tokens, seed)}]


async def context(c: Client, messages: Messages, **fields: Any) -> Reply:
    params: dict[str, Any] = {"request_type": "context_only", "disagg_request_id": ID, "schedule_style": 0}
    return await c.chat(messages, **{"stream": False, "disaggregated_params": params, "max_tokens": 20, **fields})


def params_of(reply: Reply) -> dict[str, Any]:
    choice = reply.body["choices"][0]  # type: ignore[index]
    return dict(choice["disaggregated_params"])


def onward(reply: Reply, **changes: object) -> dict[str, Any]:
    params = {**params_of(reply), "request_type": "generation_only", **changes}
    return {"disaggregated_params": params, "prompt_token_ids": reply.body["prompt_token_ids"]}


async def test_generation_goes_on_after_the_context_server_s_first_token(pair: Pair) -> None:
    c, g = pair
    messages = ask()
    first = await context(c, messages)
    assert first.status == 200
    assert first.body["choices"][0]["finish_reason"] == "not_finished"  # type: ignore[index]
    assert first.body["prompt_token_ids"] == chat_ids(messages)
    params = params_of(first)
    assert params["first_gen_tokens"] == answer(chat_ids(messages), 1)
    assert (params["ctx_request_id"], params["disagg_request_id"]) == (ID, ID)
    assert len(c.engine.pins) == 1
    reply = await g.chat(messages, max_tokens=20, **onward(first))
    assert reply.text == decode(answer(chat_ids(messages), 20))
    assert reply.usage["completion_tokens"] == 20
    got = g.engine.ledger.recent[-1]
    assert (got.computed, got.read, got.generated) == (0, 64, 20)
    await at_rest(c, g)
    assert not c.engine.ledger.violations
    assert not g.engine.ledger.violations


async def test_text_completions_and_streams(pair: Pair) -> None:
    c, g = pair
    text = filler(40, 3)
    params = {"request_type": "context_only", "disagg_request_id": 5}
    first = await c.post("/v1/completions", {"prompt": text, "max_tokens": 9, "disaggregated_params": params})
    assert first.body["prompt_token_ids"] == completion_ids(text)
    body = {
        "prompt": first.body["prompt_token_ids"],
        "max_tokens": 9,
        "disaggregated_params": onward(first)["disaggregated_params"],
    }
    reply = await g.post("/v1/completions", body)
    assert reply.text == decode(answer(completion_ids(text), 9))
    again = await context(c, ask(), disaggregated_params={"request_type": "context_only", "disagg_request_id": 6})
    stream = await g.stream(ask(), max_tokens=9, **onward(again))
    assert stream.text == decode(answer(chat_ids(ask()), 9))
    await at_rest(c, g)


async def test_one_wanted_token_ends_with_length_on_both(pair: Pair) -> None:
    c, g = pair
    first = await context(c, ask(), max_tokens=1)
    assert first.body["choices"][0]["finish_reason"] == "length"  # type: ignore[index]
    reply = await g.chat(ask(), max_tokens=1, **onward(first))
    assert reply.text == first.text
    assert reply.body["choices"][0]["finish_reason"] == "length"  # type: ignore[index]
    await at_rest(c, g)


async def test_an_answer_that_ends_at_once_needs_no_generation(pair: Pair) -> None:
    c, g = pair
    stop = answer(chat_ids(ask()), 1)
    first = await context(c, ask(), stop_token_ids=stop)
    assert first.body["choices"][0]["finish_reason"] == "stop"  # type: ignore[index]
    await at_rest(c)
    late = await g.chat(ask(), **onward(first))
    assert late.status == 400
    assert "holds no such request" in str(late.body["message"])


@pytest.mark.parametrize(
    ("change", "word", "reason"),
    [
        ({"ctx_request_id": ID + 1}, "ctx_request_id", "wrong_request"),
        ({"ctx_request_id": None}, "ctx_request_id", "incomplete"),
        ({"ctx_request_id": "5"}, "ctx_request_id", "wrong_type"),
        ({"first_gen_tokens": [17]}, "first_gen_tokens", "offer_mismatch"),
        ({"first_gen_tokens": None}, "first_gen_tokens", "incomplete"),
        ({"encoded_opaque_state": "bm8="}, "encoded_opaque_state", "wrong_state"),
        ({"encoded_opaque_state": None}, "encoded_opaque_state", "wrong_state"),
        ({"request_type": "context_only"}, "request_type", "wrong_role"),
        ({"request_type": "both"}, "request_type", "wrong_type"),
        ({"schedule_style": "soon"}, "schedule_style", "wrong_type"),
        ({"remote_host": "10.0.0.1"}, "remote_host", "unknown_field"),
    ],
)
async def test_changed_parameters_are_refused(pair: Pair, change: dict[str, Any], word: str, reason: str) -> None:
    c, g = pair
    first = await context(c, ask())
    reply = await g.chat(ask(), **onward(first, **change))
    assert reply.status == 400
    assert word in str(reply.body["message"])
    assert g.engine.ledger.violations[reason] == 1


async def test_a_request_id_is_used_once(pair: Pair) -> None:
    c, g = pair
    first = await context(c, ask())
    assert (await g.chat(ask(), max_tokens=3, **onward(first))).status == 200
    again = await g.chat(ask(), max_tokens=3, **onward(first))
    assert again.status == 400
    assert "used before" in str(again.body["message"])
    await at_rest(c, g)


async def test_an_unknown_request_id_is_refused_at_once(pair: Pair) -> None:
    c, g = pair
    first = await context(c, ask())
    state = {"host": "127.0.0.1", "port": c.side_port, "id": 1}
    forged = {"ctx_request_id": 1, "encoded_opaque_state": base64.b64encode(orjson.dumps(state)).decode()}
    reply = await g.chat(ask(), **onward(first, **forged))
    assert reply.status == 400
    assert "nothing is held" in str(reply.body["message"])
    assert len(c.engine.pins) == 1


async def test_the_prompt_must_be_the_context_server_s(pair: Pair) -> None:
    c, g = pair
    first = await context(c, ask())
    without = onward(first)
    del without["prompt_token_ids"]
    assert (await g.chat(ask(), **without)).status == 400
    assert g.engine.ledger.violations == {"prompt_not_replaced": 1}
    other = {**onward(first), "prompt_token_ids": chat_ids(ask(seed=2))}
    reply = await g.chat(ask(), **other)
    assert reply.status == 500
    assert g.engine.ledger.failed_reads == {"history_mismatch": 1}
    await at_rest(c, g)


async def test_a_context_request_is_not_streamed_and_has_no_state(pair: Pair) -> None:
    c, _ = pair
    reply = await context(c, ask(), stream=True)
    assert (reply.status, c.engine.ledger.violations["context_streamed"]) == (400, 1)
    params = {"request_type": "context_only", "first_gen_tokens": [5]}
    reply = await context(c, ask(), disaggregated_params=params)
    assert (reply.status, c.engine.ledger.violations["context_with_state"]) == (400, 1)


async def test_both_legs_at_once_meet_at_the_context_server(pair: Pair) -> None:
    c, g = pair
    status, info = await c.get("/server_info")
    assert status == 200
    endpoint = orjson.loads(info)["disaggregated_params"]["ctx_info_endpoint"][0]
    params = {"disagg_request_id": 99, "schedule_style": 1}
    first = {"request_type": "context_only", **params}
    second = {"request_type": "generation_only", "ctx_request_id": 99, "ctx_info_endpoint": endpoint, **params}
    ids = chat_ids(ask())
    generating = asyncio.create_task(g.chat(ask(), max_tokens=8, disaggregated_params=second, prompt_token_ids=ids))
    await until(lambda: len(c.engine.meetings) == 1)
    drained = await context(c, ask(), disaggregated_params=first, max_tokens=8)
    reply = await generating
    assert (drained.status, reply.status) == (200, 200), reply.body
    assert reply.text == decode(answer(ids, 8))
    await at_rest(c, g)


async def test_what_no_generation_server_reads_is_freed_when_its_lease_is_over() -> None:
    short = config(
        engine_id="c",
        role="prefill",
        protocol="tensorrt-llm",
        bidirectional=False,
        time_scale=0.1,
        lease_seconds=0.1,
    )
    async with engines(short) as (c,):
        assert (await context(c, ask())).status == 200
        await at_rest(c)
        assert c.engine.ledger.handles == {"given": 1, "expired": 1}


async def test_without_parameters_any_server_answers_alone(pair: Pair) -> None:
    for client in pair:
        assert (await client.chat(ask(), max_tokens=3)).text == decode(answer(chat_ids(ask()), 3))


async def test_iteration_statistics_are_json(pair: Pair) -> None:
    _, g = pair
    running = await g.open_stream(ask(), max_tokens=500, ignore_eos=True)
    (latest,) = orjson.loads((await g.get("/metrics"))[1])
    assert latest["numActiveRequests"] == 1
    assert latest["kvCacheStats"]["usedNumBlocks"] >= 4
    assert "weft_mock_used_blocks" in (await g.get("/prometheus/metrics"))[1].decode()
    running.close()
    await at_rest(g)
