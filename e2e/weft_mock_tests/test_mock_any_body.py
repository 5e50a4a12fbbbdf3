"""Whatever a body says, an engine of any protocol answers it or refuses it by name, and keeps nothing for it."""

from collections.abc import Mapping

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_mock.config import Protocol
from weft_mock.engine import Engine
from weft_mock.errors import ApiError
from weft_mock.kv_params import KvProtocolError, Role
from weft_mock.prompts import Api
from weft_mock.protocols.legs import EngineLeg
from weft_mock.protocols.reading import read_leg
from weft_mock.requests import read_generation
from weft_mock_tests.engines import EXPORT, config, engines

FIELDS = [
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "cache_salt",
    "disaggregated_params",
    "extra_body",
    "input",
    "kv_transfer_params",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "messages",
    "min_tokens",
    "model",
    "n",
    "priority",
    "prompt",
    "prompt_token_ids",
    "seed",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "temperature",
    "vllm_xargs",
]
PARAMS = [
    "request_type",
    "first_gen_tokens",
    "ctx_request_id",
    "encoded_opaque_state",
    "disagg_request_id",
    "ctx_info_endpoint",
    "schedule_style",
    "do_remote_prefill",
    "remote_port",
]
PLAIN: Mapping[str, object] = {"messages": [{"role": "user", "content": "x"}], "prompt": [17, 18], "input": "x"}
CONTEXT = {"disaggregated_params": {"request_type": "context_only", "disagg_request_id": 5}}
GENERATION = {
    "disaggregated_params": {"request_type": "generation_only", "ctx_request_id": 5, "first_gen_tokens": [17]},
    "prompt_token_ids": [17, 18],
}
ROOM = {"bootstrap_host": "127.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 7}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64),
    st.sampled_from([0, 1, 17]),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["context_only", "generation_only", "127.0.0.1:80", "bm8="]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from([*PARAMS, *FIELDS]), inner, max_size=3)
    ),
    max_leaves=6,
)
ROLES: Mapping[Protocol, tuple[Role, ...]] = {
    "vllm": ("prefill", "decode", "both"),
    "sglang": ("prefill", "decode", "both"),
    "tensorrt-llm": ("prefill", "decode", "both"),
    "neuron": ("prefill", "decode", "both"),
    "openai": ("both",),
}
ENGINES = [
    Engine(config(protocol=protocol, role=role, bidirectional=protocol == "vllm", max_model_len=0))
    for protocol, roles in ROLES.items()
    for role in roles
]


@settings(max_examples=300)
@given(
    st.sampled_from(ENGINES),
    st.sampled_from(["chat", "completions", "responses"]),
    st.sampled_from([{}, CONTEXT, GENERATION, ROOM, {"kv_transfer_params": EXPORT}]),
    st.dictionaries(st.sampled_from(FIELDS), values, max_size=3),
    st.dictionaries(st.sampled_from(PARAMS), values, max_size=3),
    st.sampled_from(["r", "cmpl-0b9c54a4-0000-4000-8000-0242ac120002_127.0.0.1:80", "cmpl-_:"]),
)
def test_any_body_is_read_or_refused(
    engine: Engine,
    api: Api,
    base: Mapping[str, object],
    changes: Mapping[str, object],
    inner: Mapping[str, object],
    name: str,
) -> None:
    nested = {key: {**value, **inner} for key, value in base.items() if isinstance(value, dict)}
    body = {**PLAIN, **base, **nested, **changes}
    outcome = read(engine, body, api, {"X-Request-Id": name})
    if isinstance(outcome, ApiError):
        assert 400 <= outcome.status < 500
        assert orjson.loads(orjson.dumps(outcome.to_json()))
    elif isinstance(outcome, KvProtocolError):
        assert engine.config.protocol == "vllm"
        assert str(outcome)
    else:
        assert isinstance(outcome, EngineLeg)
    assert len(engine.meetings) == 0


def read(
    engine: Engine, body: Mapping[str, object], api: Api, headers: Mapping[str, str]
) -> EngineLeg | ApiError | KvProtocolError:
    try:
        return read_leg(engine, read_generation(body, engine.config, api=api), headers)[1]
    except (ApiError, KvProtocolError) as refusal:
        return refusal


@pytest.mark.component
@pytest.mark.parametrize("protocol", list(ROLES))
async def test_hostile_bodies_leave_an_engine_as_it_was(protocol: Protocol) -> None:
    extras: list[dict[str, object]] = [
        {"kv_transfer_params": 5},
        {"kv_transfer_params": [[]]},
        {"disaggregated_params": {"request_type": []}},
        {"disaggregated_params": {"request_type": "generation_only", "ctx_request_id": {}}},
        {"bootstrap_room": {}, "bootstrap_host": [], "bootstrap_port": {}},
        {"messages": [{"role": []}], "prompt": {}},
        {"messages": [{"role": "user", "content": {"a": 1}}], "prompt": [[]]},
        {"stop": {}, "tools": 5},
        {"stop_token_ids": {"a": 1}},
        {"max_tokens": 2**63 - 1},
    ]
    bodies: list[object] = [{**PLAIN, "max_tokens": 1, **extra} for extra in extras]
    bodies += [
        b"",
        b"\xff\xfe",
        b'{"prompt":"x","messages":5,"max_tokens":1180591620717411303424}',
        b"[" * 5000,
        b'{"messages":' + b'{"a":' * 3000,
    ]
    async with engines(config(protocol=protocol, bidirectional=protocol == "vllm", time_scale=0.1)) as (client,):
        for path in ("/v1/chat/completions", "/v1/completions"):
            for body in bodies:
                reply = await client.post(path, body)
                assert reply.status in (200, 400, 500), (body, reply.body)
                if reply.status == 500:
                    assert protocol == "vllm"
                    assert client.engine.ledger.kv_protocol_errors
        status, _ = await client.get("/health")
        assert status == 200
        assert client.engine.scheduler.pool.used == 0
        assert len(client.engine.meetings) == 0
