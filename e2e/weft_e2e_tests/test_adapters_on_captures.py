"""The router's adapters against the captured exchanges: from the client's request they make the captured ones."""

import re
from typing import Any

import orjson
import pytest

from weft_mock_tests.captures import Answer, Request, filled, read
from weft_router.config import LimitsConfig, ModelConfig
from weft_router.engines.adapter import Call, EngineEndpoint, EngineRequest
from weft_router.engines.catalogue import adapter_for
from weft_router.engines.handles import KvHandle
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import check_request

PLACE = re.compile(r"<(?:(\w+):)?(int|number|str|list|object|any)>")
HANDLE = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1]], "remote_engine_id": "p",
          "remote_request_id": "r", "remote_host": "10.0.0.1", "remote_port": 5600}  # fmt: skip
SAMPLES: dict[str, object] = {"int": 7, "number": 7, "str": "s", "list": [1, 2], "object": HANDLE, "any": 1}
BOUND: dict[str, object] = {"p_host": "10.0.0.1", "p_side_port": 5600, "d_host": "10.0.0.2", "d_side_port": 5601}
OURS = ("bootstrap_host", "bootstrap_port", "bootstrap_room", "kv_transfer_params", "disaggregated_params",
        "prompt_token_ids", "return_token_ids")  # fmt: skip


def sample(value: object, bound: dict[str, object]) -> object:
    """Return a reply like the captured one, and bind what that names."""
    if isinstance(value, str) and (place := PLACE.fullmatch(value)):
        found = SAMPLES[place[2]]
        if place[1]:
            bound[place[1]] = found
        return found
    if isinstance(value, dict):
        return {key: sample(each, bound) for key, each in value.items()}
    if isinstance(value, list):
        return [sample(each, bound) for each in value]
    return filled(value, bound)


def asked(request: Request, bound: dict[str, object]) -> EngineRequest:
    """Return the client's request that a captured decode leg was made from."""
    captured = filled(request.body, bound)
    assert isinstance(captured, dict)
    body = {key: value for key, value in captured.items() if key not in OURS}
    model = ModelConfig.model_validate({"name": "test/model", "maxModelLen": 2048})
    inference = check_request(request.path, body, RequestLimits(model, LimitsConfig.model_validate({})))
    prefill, decode = EngineEndpoint("10.0.0.1", 8000, bootstrap_port=5600), EngineEndpoint("10.0.0.2", 8000)
    return EngineRequest(inference, request.headers.get("X-Request-Id", "r"), prefill=prefill, decode=decode)


def same(call: Call, request: Request, bound: dict[str, object]) -> None:
    """Compare a leg with the captured one; that a stream's usage is asked for is the router's own addition."""
    assert call.path == request.path
    made, captured = orjson.loads(call.whole), filled(request.body, bound)
    assert isinstance(captured, dict)
    if made.get("stream") and "stream_options" not in captured:
        assert made.pop("stream_options", {"include_usage": True}) == {"include_usage": True}
    if request.path == "/v1/responses" and request.role == "prefill" and "store" not in captured:
        assert made.pop("store") is False
    assert made == captured


def groups(name: str) -> list[tuple[list[Request], list[Answer]]]:
    return list(read(name))


@pytest.mark.parametrize("group", [0, 1])
def test_sglang(group: int) -> None:
    (prefill, decode), _ = groups("sglang")[group]
    adapter, ask = adapter_for("sglang"), asked(decode, BOUND)
    assert isinstance(prefill.body, dict)
    ask.room = prefill.body["bootstrap_room"]
    same(adapter.prefill(ask), prefill, BOUND)
    same(adapter.decode(ask, None), decode, BOUND)


def test_neuron() -> None:
    (prefill, decode), _ = groups("neuron")[0]
    adapter, ask = adapter_for("neuron"), asked(decode, BOUND)
    same(adapter.prefill(ask), prefill, BOUND)
    same(adapter.decode(ask, None), decode, BOUND)
    lines = [call.lines for call in (adapter.prefill(ask), adapter.decode(ask, None))]
    assert all(line.startswith("X-Request-Id: ") and line.endswith("\r\n") for line in lines)
    names = [line[14:-2] for line in lines]
    form = {"uuid": names[0][5:41], "d_api": "10.0.0.2:8000", "p_api": "10.0.0.1:8000"}
    assert names == [leg.headers["X-Request-Id"].format(**form) for leg in (prefill, decode)]


def test_tensorrt_llm() -> None:
    ((prefill,), (answer,)), ((decode,), _) = groups("tensorrt_llm")[:2]
    adapter, bound = adapter_for("tensorrt-llm"), dict(BOUND)
    reply: Any = sample(answer.body, bound)
    bound["usage"] = reply["usage"]
    ask = asked(decode, bound)
    ask.room = 7204111222333444
    same(adapter.prefill(ask), prefill, bound)
    same(adapter.decode(ask, adapter.read_prefill(ask, orjson.dumps(reply))), decode, bound)


@pytest.mark.parametrize("name", ["vllm", "vllm_responses"])
def test_vllm(name: str) -> None:
    adapter, bound = adapter_for("vllm"), dict(BOUND)
    handed: Any = None
    compared = 0
    for requests, answers in groups(name):
        for request, answer in zip(requests, answers, strict=True):
            if answer.status != 200:
                continue
            captured = filled(request.body, bound)
            assert isinstance(captured, dict)
            ask = asked(request, bound)
            ask.want_ids = "return_token_ids" in captured
            ask.response_id = captured.get("request_id")
            params = captured.get("kv_transfer_params")
            if request.role == "prefill":
                if params is not None and params.get("remote_engine_id") is not None:
                    ask.handle = KvHandle(params, 1, 0.0, None)
                same(adapter.prefill(ask), request, bound)
                handed = adapter.read_prefill(ask, orjson.dumps(sample(answer.body, bound)))
            else:
                same(adapter.decode(ask, handed), request, bound)
                if answer.body is not None:
                    sample(answer.body, bound)
            compared += 1
    assert compared >= 2
