"""A plain OpenAI engine, and what no engine may ever be sent."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from weft_mock.config import ConfigError, Protocol
from weft_mock.model import answer
from weft_mock.protocols.foreign import foreign_fields
from weft_mock.tokenizer import chat_ids, decode
from weft_mock_tests.engines import Client, config, engines

HELLO: list[dict[str, object]] = [{"role": "user", "content": "Hello, who are you?"}]


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Client]:
    async with engines(config(protocol="openai", bidirectional=False, time_scale=0.1)) as (client,):
        yield client


@pytest.mark.component
async def test_replies_have_no_field_of_any_engine_s_own(engine: Client) -> None:
    reply = await engine.chat(HELLO, max_tokens=5, return_token_ids=True)
    assert reply.text == decode(answer(chat_ids(HELLO), 5))
    assert set(reply.body) == {"id", "object", "created", "model", "choices", "usage"}
    choice = reply.body["choices"][0]  # type: ignore[index]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason"}
    stream = await engine.stream(HELLO, plugin=True, max_tokens=5)
    assert stream.text == reply.text
    assert stream.comments == []
    assert "X-Weft-Engine-Plugin" not in stream.headers
    assert (await engine.post("/tokenize", {"prompt": "x"})).status == 404


@pytest.mark.component
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kv_transfer_params": None}, "foreign_field:kv_transfer_params"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, "foreign_field:kv_transfer_params"),
        ({"KV_Transfer_Params": {}}, "foreign_field:kv_transfer_params"),
        ({"ec_transfer_params": {}}, "foreign_field:ec_transfer_params"),
        ({"bootstrap_host": "10.0.0.1"}, "foreign_field:bootstrap_host"),
        ({"bootstrap_port": 1}, "foreign_field:bootstrap_port"),
        ({"bootstrap_room": 1}, "foreign_field:bootstrap_room"),
        ({"disaggregated_params": {}}, "foreign_field:disaggregated_params"),
        ({"prompt_token_ids": [1]}, "foreign_field:prompt_token_ids"),
        ({"vllm_xargs": {"kv_transfer_params": {}}}, "foreign_field:vllm_xargs.kv_transfer_params"),
        ({"extra_body": {"bootstrap_room": 1}}, "foreign_field:extra_body.bootstrap_room"),
    ],
)
async def test_transfer_fields_are_violations(engine: Client, fields: dict[str, object], reason: str) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
    ):
        reply = await engine.post(path, {**body, **fields})
        assert reply.status == 400
    assert engine.engine.ledger.violations == {reason: 3}
    assert f'weft_mock_violations_total{{reason="{reason}"}} 3.0' in (await engine.get("/metrics"))[1].decode()


@pytest.mark.component
async def test_a_client_s_choice_of_upstream_is_a_violation(engine: Client) -> None:
    reply = await engine.post("/v1/chat/completions", {"messages": HELLO}, X_Prefiller_Host_Port="10.0.0.1:80")
    assert reply.status == 400
    assert engine.engine.ledger.violations == {"routing_header:x-prefiller-host-port": 1}


@pytest.mark.component
async def test_vllm_ignores_others_fields_and_the_ledger_tells() -> None:
    async with engines(config(time_scale=0.1)) as (client,):
        reply = await client.chat(HELLO, max_tokens=2, bootstrap_room=1, disaggregated_params={}, data_parallel_rank=0)
        assert reply.status == 200
        assert client.engine.ledger.violations == {
            "foreign_field:bootstrap_room": 1,
            "foreign_field:disaggregated_params": 1,
            "foreign_field:data_parallel_rank": 1,
        }


@pytest.mark.parametrize(
    ("protocol", "own"),
    [
        ("vllm", "kv_transfer_params"),
        ("sglang", "bootstrap_room"),
        ("tensorrt-llm", "disaggregated_params"),
    ],
)
def test_a_protocol_s_own_fields_are_not_foreign(protocol: Protocol, own: str) -> None:
    assert list(foreign_fields({own: 1, "messages": []}, protocol)) == []
    assert list(foreign_fields({own.upper(): 1}, protocol)) == [own]
    assert list(foreign_fields({own: 1}, "openai")) == [own]


def test_options_of_one_protocol_are_refused_for_another() -> None:
    with pytest.raises(ConfigError, match="--bidirectional"):
        config(protocol="sglang", bidirectional=True)
    with pytest.raises(ConfigError, match="--trusting"):
        config(protocol="neuron", bidirectional=False, trusting=True)
    with pytest.raises(ConfigError, match="--role"):
        config(protocol="openai", bidirectional=False, role="decode")
    with pytest.raises(ConfigError, match="--meeting-seconds"):
        config(meeting_seconds=0.0)
