"""The bodies and headers of every leg, engine by engine, as literal JSON: what goes over the wire is what is here."""

import contextlib
import json
from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_router.config import LimitsConfig, ModelConfig
from weft_router.engines.adapter import (
    Adapter,
    AdapterOptions,
    Call,
    EngineEndpoint,
    EngineRequest,
    NotPossibleError,
    PrefillResult,
)
from weft_router.engines.catalogue import ADAPTERS, adapter_for
from weft_router.engines.handles import KvHandle
from weft_router.engines.vllm_prefill import CACHED
from weft_router.errors import UpstreamFailedError
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import Inference, check_request
from weft_router.openai.reply import Reply

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = [{"role": "user", "content": "hi"}]
PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[3, 4]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}
HANDLE = {**PARAMS, "do_remote_prefill": False, "do_remote_decode": True, "remote_num_tokens": 4}
KEEP = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
RICH: dict[str, Any] = {
    "stream": True, "stream_options": {"other": 1}, "max_completion_tokens": 50, "min_tokens": 5, "n": 1,
    "logprobs": True, "top_logprobs": 2, "seed": 3,
}  # fmt: skip
CONTEXT: dict[str, Any] = {
    "request_type": "context_only", "first_gen_tokens": [11], "ctx_request_id": 99,
    "encoded_opaque_state": "c3RhdGU=", "draft_tokens": None, "disagg_request_id": 7,
}  # fmt: skip
PREFILL = EngineEndpoint("10.0.0.1", 8000, bootstrap_port=8998)
DECODE = EngineEndpoint("fd00::2", 8000)


def inference(path: str = CHAT, **fields: Any) -> Inference:
    given: dict[str, dict[str, Any]] = {
        CHAT: {"messages": MESSAGES},
        TEXT: {"prompt": "hi"},
        RESPONSES: {"input": "hi"},
    }
    model, limits = ModelConfig.model_validate({"name": "m", "maxModelLen": 1000}), LimitsConfig.model_validate({})
    return check_request(path, {"model": "m", **given[path], **fields}, RequestLimits(model, limits))


def ask(path: str = CHAT, **fields: Any) -> EngineRequest:
    return EngineRequest(inference(path, **fields), "weft-1", prefill=PREFILL, decode=DECODE, room=7)


def sent(call: Call) -> Any:
    return orjson.loads(call.whole)


def headers(call: Call) -> dict[str, str]:
    *lines, rest = call.lines.split("\r\n")
    assert rest == ""
    return dict(line.split(": ") for line in lines)


def prefilled(**fields: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "A"}, "finish_reason": "length"}
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
    return orjson.dumps({"id": "chatcmpl-weft-1", "created": 5, "model": "m", "choices": [choice], "usage": usage,
                         "kv_transfer_params": PARAMS, **fields})  # fmt: skip


def handed(adapter: Adapter, asked: EngineRequest, **fields: Any) -> PrefillResult:
    return adapter.read_prefill(asked, prefilled(**fields))


@pytest.mark.parametrize("kind", sorted(ADAPTERS))
def test_no_id_ends_its_header_line(kind: str) -> None:
    adapter, asked = adapter_for(kind), ask()
    asked.request_id = "weft-1\r\nX-Weft-Engine-Proof: a"
    asked.decode = EngineEndpoint("d\r\nX-Weft-Engine-Proof: a", 1)
    ids = array("I", [1, 2, 3])
    legs: list[Callable[[EngineRequest], Call]] = [
        adapter.local,
        adapter.prefill,
        lambda asked: adapter.slice(asked, ids, 2),
    ]
    refused = 0
    for leg in legs:
        with suppress(NotPossibleError):
            with pytest.raises(ValueError, match="line break"):
                leg(asked)
            refused += 1
    assert refused
    assert asked.lines == ""


class TestVllm:
    adapter = adapter_for("vllm")

    def test_the_prefill_leg_asks_for_one_token_whose_kv_stays(self) -> None:
        call = self.adapter.prefill(ask(stream=True, max_tokens=50))
        assert (call.path, headers(call)["X-Request-Id"]) == (CHAT, "weft-1")
        assert sent(call) == {
            "model": "m", "messages": MESSAGES, "stream": False, "max_tokens": 1, "kv_transfer_params": KEEP,
        }  # fmt: skip
        assert sent(self.adapter.prefill(ask(**RICH))) == {
            "model": "m", "messages": MESSAGES, "stream": False, "max_tokens": 1, "max_completion_tokens": 1, "n": 1,
            "seed": 3, "kv_transfer_params": KEEP,
        }  # fmt: skip

    def test_with_a_handle_it_reads_the_history(self) -> None:
        asked = ask()
        asked.handle, asked.want_ids, asked.salt = KvHandle(HANDLE, 4, 99.0, None), True, "s"
        assert sent(self.adapter.prefill(asked)) == {
            "model": "m", "messages": MESSAGES, "stream": False, "max_tokens": 1, "return_token_ids": True,
            "kv_transfer_params": HANDLE, "cache_salt": "s",
        }  # fmt: skip

    def test_salt_keeps_tenants_apart_on_every_leg(self) -> None:
        asked = ask(stream=True)
        asked.salt = 'a"b'
        found = handed(self.adapter, asked)
        calls = [self.adapter.prefill(asked), self.adapter.decode(asked, found), self.adapter.local(asked)]
        calls.append(self.adapter.slice(asked, array("I", [1, 2, 3]), 2))
        assert [sent(call)["cache_salt"] for call in calls] == ['a"b'] * 4

    def test_the_decode_leg_is_the_clients_with_what_the_prefill_gave(self) -> None:
        asked = ask(**RICH)
        found = handed(self.adapter, asked)
        assert (found.reply.prompt_tokens, found.reply.cached_tokens) == (9, 4)
        call = self.adapter.decode(asked, found)
        assert headers(call) == {"X-Request-Id": "weft-1", "X-Weft-KV-Handle": "1"}
        assert sent(call) == {
            "model": "m", "messages": MESSAGES, **RICH, "stream_options": {"other": 1, "include_usage": True},
            "kv_transfer_params": PARAMS,
        }  # fmt: skip

    def test_what_decides_the_first_token_reaches_both_engines_and_the_rest_the_one_that_answers(self) -> None:
        schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
        both: dict[str, Any] = {
            "tools": [{"type": "function", "function": {"name": "count"}}], "tool_choice": "required",
            "response_format": schema, "structured_outputs": {"regex": "a"}, "logit_bias": {"5": 1}, "seed": 3,
        }  # fmt: skip
        answer: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "min_tokens": 5}
        asked = ask(**both, **answer)
        prefill = sent(self.adapter.prefill(asked))
        decode = sent(self.adapter.decode(asked, handed(self.adapter, asked)))
        assert both.items() <= prefill.items()
        assert not answer.keys() & prefill.keys()
        assert {**both, **answer}.items() <= decode.items()

    def test_the_local_leg_may_keep_the_kv_for_the_next_round(self) -> None:
        asked = ask(max_tokens=9)
        plain = {"model": "m", "messages": MESSAGES, "max_tokens": 9}
        assert sent(self.adapter.local(asked)) == plain
        asked.export = asked.want_ids = True
        assert sent(self.adapter.local(asked)) == {**plain, "kv_transfer_params": KEEP, "return_token_ids": True}

    @pytest.mark.parametrize(
        ("fields", "bounded"),
        [
            ({}, {"max_completion_tokens": 5}),
            ({"max_tokens": 9}, {"max_tokens": 5}),
            ({"max_tokens": 3}, {"max_tokens": 3}),
            ({"max_completion_tokens": 9, "min_tokens": 7}, {"max_completion_tokens": 5, "min_tokens": 5}),
        ],
    )
    def test_an_answer_can_be_capped(self, fields: dict[str, Any], bounded: dict[str, Any]) -> None:
        asked = ask(**fields)
        asked.cap = 5
        assert sent(self.adapter.local(asked)) == {"model": "m", "messages": MESSAGES, **bounded}

    def test_a_slice_is_an_id_prompt_of_the_first_tokens(self) -> None:
        call = self.adapter.slice(ask(), array("I", range(10)), 4)
        assert call.path == TEXT
        assert sent(call) == {"model": "m", "prompt": [0, 1, 2, 3], "max_tokens": 1, "stream": False}

    def test_a_chat_goes_on_from_its_ids(self) -> None:
        asked = ask(stream=True, max_tokens=10, min_tokens=4, temperature=0)
        call = self.adapter.resume(asked, broken("chat"))
        assert call.lines == "X-Request-Id: weft-1-resumed\r\n"
        assert sent(call) == {
            "model": "m", "messages": MESSAGES, "stream": True, "max_tokens": 8, "min_tokens": 2, "temperature": 0,
            "stream_options": {"include_usage": True}, "return_token_ids": True,
            "kv_transfer_params": {"prompt_token_ids": [1, 2, 3, 7, 8]},
        }  # fmt: skip

    def test_a_completion_goes_on_from_an_id_prompt(self) -> None:
        assert sent(self.adapter.resume(ask(TEXT, stream=True, max_tokens=10), broken("text"))) == {
            "model": "m", "prompt": [1, 2, 3, 7, 8], "stream": True, "max_tokens": 8, "return_token_ids": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip

    @pytest.mark.parametrize("params", [PARAMS, HANDLE])
    def test_kv_nobody_reads_is_let_go_by_a_request_that_is_refused(self, params: dict[str, Any]) -> None:
        call = self.adapter.release(params)
        assert call is not None
        body = sent(call)
        pointer = body.pop("kv_transfer_params")
        assert body == {"model": "weft-release", "prompt": [1], "max_tokens": 1}
        assert pointer == {**params, "do_remote_prefill": True, "do_remote_decode": False}
        assert self.adapter.release({"remote_host": "x"}) is None

    def test_exact_ids_come_from_the_engine_itself(self) -> None:
        call = self.adapter.tokenize(ask(tools=[{"type": "function"}], temperature=1))
        assert call is not None
        assert call.path == "/tokenize"
        assert sent(call) == {"model": "m", "messages": MESSAGES, "tools": [{"type": "function"}]}
        text = self.adapter.tokenize(ask(TEXT))
        assert text is not None
        assert sent(text) == {"model": "m", "prompt": "hi"}
        assert self.adapter.tokenize(ask(TEXT, prompt=[1, 2])) is None
        ids = self.adapter.read_ids(b'{"count":2,"max_model_len":9,"tokens":[5,6]}')
        assert list(ids or ()) == [5, 6]
        for raw in (b"x", b"[]", b'{"tokens":["a"]}', b'{"tokens":null}'):
            assert self.adapter.read_ids(raw) is None

    def test_a_response_has_its_own_names(self) -> None:
        asked = ask(RESPONSES, stream=True, max_output_tokens=50, store=False)
        asked.response_id = "resp_1"
        assert sent(self.adapter.prefill(asked)) == {
            "model": "m", "input": "hi", "stream": False, "max_output_tokens": 1, "store": False,
            "kv_transfer_params": KEEP,
        }  # fmt: skip
        found = PrefillResult(dict(PARAMS), Reply("responses"))
        assert sent(self.adapter.decode(asked, found)) == {
            "model": "m", "input": "hi", "stream": True, "max_output_tokens": 50, "store": False,
            "request_id": "resp_1", "kv_transfer_params": PARAMS,
        }  # fmt: skip

    @pytest.mark.parametrize("raw", [b"x", b"[]", prefilled(kv_transfer_params=None), prefilled(kv_transfer_params={})])
    def test_a_reply_without_kv_is_a_failed_leg(self, raw: bytes) -> None:
        with pytest.raises(UpstreamFailedError):
            self.adapter.read_prefill(ask(), raw)

    def test_ids_of_the_prompt_are_read_where_they_stand(self) -> None:
        asked, completion = ask(), ask(TEXT)
        asked.handle = completion.handle = KvHandle(HANDLE, 4, 99.0, None)  # without one no ids are asked for
        found = handed(self.adapter, asked, prompt_token_ids=[4, 5])
        assert list(found.reply.prompt_ids or ()) == [4, 5]
        choice = {"index": 0, "text": "A", "finish_reason": "length", "prompt_token_ids": [4, 5]}
        text = handed(self.adapter, completion, choices=[choice])
        assert list(text.reply.prompt_ids or ()) == [4, 5]


tricky = st.sampled_from(["A", '"', "\\", ',"kv_transfer_params":{', '"usage":{"prompt_tokens":1}', "é"])
counts = st.integers(0, 10**6)
odd = st.none() | tricky | st.lists(counts, max_size=2) | st.dictionaries(tricky, counts, max_size=2)


@settings(max_examples=300)
@given(
    tricky, counts, st.sampled_from([None, {"cached_tokens": 3}, {"audio_tokens": None, "cached_tokens": 4}, {"x": 1}]),
    st.dictionaries(tricky | st.sampled_from(["tp_size", "remote_host", "do_remote_prefill", CACHED]), odd, max_size=3),
    st.sampled_from(["last", "between", "first", "nested", "twice", "spaced", "torn", "blank", "number", "list"]),
    st.booleans(),
)  # fmt: skip
def test_a_prefills_parameters_go_on_the_same_whether_they_are_spliced_or_parsed(
    text: str, prompt: int, details: dict[str, Any] | None, more: dict[str, Any], form: str, learns: bool
) -> None:
    adapter, asked = adapter_for("vllm"), ask()
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + 1, "completion_tokens": 1,
             "prompt_tokens_details": details}  # fmt: skip
    answer = {"id": "c", "choices": [{"index": 0, "message": {"content": text}}], "usage": usage}
    params = {**PARAMS, "remote_block_ids": [[prompt]], "remote_request_id": text, **more}
    raw = orjson.dumps({**answer, "kv_transfer_params": params})
    if form == "first":
        raw = orjson.dumps({"kv_transfer_params": params, **answer})
    elif form == "between":
        raw = orjson.dumps({**answer, "prompt_logprobs": None, "inner": {"a": text}, "kv_transfer_params": params})
    elif form == "nested":
        raw = orjson.dumps({**answer, "inner": {"a": 1, "kv_transfer_params": params}})
    elif form == "twice":
        raw = orjson.dumps({"a": {"b": 1, "kv_transfer_params": {"do_remote_prefill": True}}, **orjson.loads(raw)})
    elif form == "spaced":
        raw = json.dumps(orjson.loads(raw)).encode()
    elif form == "torn":
        raw = raw[:-1]
    elif form == "blank":
        raw = raw.replace(b'"remote_request_id":"', b'"remote_request_id":"","a":"')
    elif form == "number":
        raw = raw.replace(b'"prompt_tokens":', b'"prompt_tokens":0')
    elif form == "list":
        raw = raw.replace(b'"remote_block_ids":[[', b'"remote_block_ids":[[],[1,,')
    if learns:
        usage = {"prompt_tokens": 5, "total_tokens": 6, "completion_tokens": 1, "prompt_tokens_details": details}
        usual = {**PARAMS, "remote_block_ids": [[1, 2]], **more, "remote_request_id": "other"}
        with contextlib.suppress(UpstreamFailedError):
            adapter.read_prefill(asked, orjson.dumps({**answer, "usage": usage, "kv_transfer_params": usual}))
    found: list[object] = []
    for handle in (None, None, KvHandle(HANDLE, 4, 99.0, None)):  # without one ids may be asked for: it is parsed
        asked.handle = handle
        try:
            handed = adapter.read_prefill(asked, raw)
        except UpstreamFailedError as error:
            found.append(error.reason)
            continue
        reply, body = handed.reply, sent(adapter.decode(asked, handed))
        counts = (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens, handed.cached_tokens)
        found.append((counts, handed.params, body))
    assert found[0] == found[1] == found[2]


def test_the_usual_reply_of_a_prefill_is_not_parsed_but_for_its_parameters() -> None:
    asked, adapter = ask(), adapter_for("vllm")
    usage = {"prompt_tokens": 9, "total_tokens": 10, "completion_tokens": 1, "prompt_tokens_details": None}
    handed = adapter.read_prefill(asked, orjson.dumps({"id": "c", "usage": usage, "kv_transfer_params": PARAMS}))
    assert handed.written == orjson.dumps(PARAMS)
    assert (handed.reply.prompt_tokens, handed.reply.cached_tokens) == (9, None)
    assert sent(adapter.decode(asked, handed))["kv_transfer_params"] == PARAMS
    assert adapter.read_prefill(asked, prefilled()).written == orjson.dumps(PARAMS)


class TestSglang:
    adapter = adapter_for("sglang")

    def test_both_legs_are_the_same_and_meet_in_a_room(self) -> None:
        asked = ask(stream=True)
        prefill, decode = self.adapter.prefill(asked), self.adapter.decode(asked, None)
        assert prefill.body == decode.body
        assert sent(prefill) == {
            "model": "m", "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True},
            "bootstrap_host": "10.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 7,
        }  # fmt: skip

    def test_several_answers_have_a_room_each(self) -> None:
        body = sent(self.adapter.prefill(ask(n=3)))
        assert body["bootstrap_host"] == ["10.0.0.1"] * 3
        assert body["bootstrap_port"] == [8998] * 3
        assert body["bootstrap_room"] == [7, 8, 9]

    def test_an_address_of_ipv6_is_in_brackets_because_engines_join_it_with_the_port(self) -> None:
        peer = EngineEndpoint("fd00::1", 8000, bootstrap_port=8998)
        for n, named in ((1, "[fd00::1]"), (2, ["[fd00::1]"] * 2)):
            assert (
                sent(self.adapter.prefill(EngineRequest(inference(n=n), "weft-1", prefill=peer)))["bootstrap_host"]
                == named
            )

    def test_rooms_differ_by_request_and_fit_63_bits(self) -> None:
        rooms = set()
        for i in range(100):
            asked = EngineRequest(inference(), f"weft-{i}", prefill=PREFILL)
            rooms.add(sent(self.adapter.prefill(asked))["bootstrap_room"])
        assert len(rooms) == 100
        assert all(2**42 <= room < 2**63 for room in rooms)

    def test_the_port_is_the_services_where_the_worker_has_none(self) -> None:
        adapter = adapter_for("sglang", traits=AdapterOptions(bootstrap_port=9001))
        asked = ask()
        asked.prefill = EngineEndpoint("h", 1)
        assert sent(adapter.prefill(asked))["bootstrap_port"] == 9001

    def test_nothing_goes_without_a_prefill_worker(self) -> None:
        asked = ask()
        with pytest.raises(NotPossibleError):
            self.adapter.local(asked)
        asked.prefill = None
        with pytest.raises(NotPossibleError):
            self.adapter.decode(asked, None)


class TestTensorRtLlm:
    adapter = adapter_for("tensorrt-llm")

    def reply(self, *, finish: str = "length", **fields: Any) -> bytes:
        choice = {"index": 0, "message": {"role": "assistant", "content": "A"}, "finish_reason": finish,
                  "disaggregated_params": CONTEXT}  # fmt: skip
        return orjson.dumps({"id": "c", "created": 5, "model": "m", "choices": [choice],
                             "usage": {"prompt_tokens": 2, "completion_tokens": 1},
                             "prompt_token_ids": [5, 6], **fields})  # fmt: skip

    def test_the_context_leg(self) -> None:
        call = self.adapter.prefill(ask(stream=True, stream_options={"include_usage": True}, max_tokens=20))
        assert sent(call) == {
            "model": "m", "messages": MESSAGES, "stream": False, "max_tokens": 20,
            "disaggregated_params": {"request_type": "context_only", "disagg_request_id": 7, "schedule_style": 0},
        }  # fmt: skip

    def test_the_generation_leg_of_a_chat(self) -> None:
        asked = ask(stream=True, max_tokens=20)
        call = self.adapter.decode(asked, self.adapter.read_prefill(asked, self.reply()))
        assert sent(call) == {
            "model": "m", "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True},
            "max_tokens": 20, "prompt_token_ids": [5, 6],
            "disaggregated_params": {
                **CONTEXT, "request_type": "generation_only", "schedule_style": 0, "disagg_request_id": 7,
                "ctx_usage": {"prompt_tokens": 2, "completion_tokens": 1},
            },
        }  # fmt: skip

    def test_the_generation_leg_of_a_completion_has_ids_for_its_prompt(self) -> None:
        asked = ask(TEXT, max_tokens=20)
        body = sent(self.adapter.decode(asked, self.adapter.read_prefill(asked, self.reply())))
        assert (body["prompt"], body["max_tokens"]) == ([5, 6], 20)
        assert "prompt_token_ids" not in body

    def test_what_the_context_server_finished_needs_no_generation(self) -> None:
        found = self.adapter.read_prefill(ask(), self.reply(finish="stop"))
        assert found.finished is not None
        answer = orjson.loads(found.finished)
        assert answer["choices"] == [
            {"index": 0, "message": {"role": "assistant", "content": "A"}, "finish_reason": "stop"}
        ]
        assert "prompt_token_ids" not in answer
        streamed = self.adapter.read_prefill(
            ask(stream=True, stream_options={"include_usage": True}), self.reply(finish="stop")
        )
        assert streamed.finished is not None
        *events, done, rest = streamed.finished.split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        chunk, usage = (orjson.loads(event[6:]) for event in events)
        assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": "A"}
        assert chunk["choices"][0]["finish_reason"] == "stop"
        assert (usage["choices"], usage["usage"]["prompt_tokens"]) == ([], 2)

    def test_there_is_no_generation_without_a_context(self) -> None:
        with pytest.raises(NotPossibleError):
            self.adapter.decode(ask(), None)

    def test_a_context_without_parameters_is_a_failed_leg(self) -> None:
        for raw in (b"x", b"{}", self.reply(prompt_token_ids=None), self.reply(choices=[])):
            with pytest.raises(UpstreamFailedError):
                self.adapter.read_prefill(ask(), raw)


class TestNeuron:
    adapter = adapter_for("neuron")

    def test_each_leg_names_the_other_engine_and_the_prefill_makes_one_token(self) -> None:
        asked = ask(stream=True, stream_options={"include_usage": True}, max_tokens=20, min_tokens=3)
        prefill, decode = self.adapter.prefill(asked), self.adapter.decode(asked, None)
        first, second = headers(prefill)["X-Request-Id"], headers(decode)["X-Request-Id"]
        same = "cmpl-" + str(UUID(first[5:41]))
        assert (first, second) == (same + "_[fd00::2]:8000", same + "_10.0.0.1:8000")
        assert sent(prefill) == {"model": "m", "messages": MESSAGES, "stream": True, "max_tokens": 1}
        assert sent(decode) == {
            "model": "m", "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True},
            "max_tokens": 20, "min_tokens": 3,
        }  # fmt: skip
        assert self.adapter.public_id(asked) == "weft-1"


class TestOpenAi:
    adapter = adapter_for("openai")

    def test_there_is_one_leg_and_it_is_the_clients(self) -> None:
        asked = ask(max_tokens=5, verbosity={"a": 1})
        asked.salt = "s"
        for call in (self.adapter.local(asked), self.adapter.decode(asked, None)):
            assert sent(call) == {"model": "m", "messages": MESSAGES, "max_tokens": 5, "verbosity": {"a": 1}}
        for leg in (self.adapter.prefill, lambda a: self.adapter.slice(a, array("I", [1]), 1)):
            with pytest.raises(NotPossibleError):
                leg(asked)


@pytest.mark.parametrize("kind", sorted(ADAPTERS))
def test_no_leg_changes_the_clients_object_or_leaves_a_field_out(kind: str) -> None:
    adapter = adapter_for(kind)
    asked = ask(stream=True, n=1, seed=1, verbosity="x", stop=["a"])
    asked.cap, asked.salt, asked.want_ids = 3, "s", True
    before = orjson.dumps(asked.inference.body)
    calls = [adapter.prefill(asked)] if adapter.can.order != "decode-only" else []
    if kind != "tensorrt-llm":
        given = handed(adapter, asked) if adapter.can.order == "prefill-then-decode" else None
        calls.append(adapter.decode(asked, given))
    if adapter.can.local:
        calls.append(adapter.local(asked))
    for call in calls:
        body = sent(call)
        assert {key: body[key] for key in ("model", "messages", "seed", "verbosity", "stop")} == {
            "model": "m", "messages": MESSAGES, "seed": 1, "verbosity": "x", "stop": ["a"],
        }  # fmt: skip
    assert orjson.dumps(asked.inference.body) == before
    assert orjson.loads(asked.inference.whole()) == asked.inference.body


@pytest.mark.parametrize(("path", "name"), [(CHAT, "messages"), (TEXT, "prompt"), (RESPONSES, "input")])
@pytest.mark.parametrize("salt", [None, "a salt"])
def test_both_legs_share_what_they_say_alike(path: str, name: str, salt: str | None) -> None:
    adapter = adapter_for("vllm")
    text = 'a "long" text, \\ of a \u00fc and a \n \U0001f9f6' * 40
    prompt = [{"role": "user", "content": text}] if path == CHAT else text
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    others = {"cache_salt": salt} if salt is not None else {}
    given = PrefillResult(PARAMS, Reply("chat"), written=orjson.dumps(PARAMS))
    for stream in (False, True):  # the second prefill is begun as the first one was
        asked = ask(path, stream=stream, seed=1, **{name: prompt, limit: 9})
        asked.salt = salt
        first, then = adapter.prefill(asked), adapter.decode(asked, given)
        assert first.tail is then.tail
        assert asked.written == b"", "nothing keeps it once both legs are written"
        assert len(first.body) + len(then.body) < 1000
        assert {**sent(first), "store": None} == {
            "model": "m", "seed": 1, name: prompt, "stream": False, limit: 1, "kv_transfer_params": KEEP,
            "store": None, **others,
        }  # fmt: skip
        decoded = sent(then)
        if stream and path != RESPONSES:
            assert decoded.pop("stream_options") == {"include_usage": True}
        assert decoded == {
            "model": "m", "seed": 1, name: prompt, "stream": stream, limit: 9, "kv_transfer_params": PARAMS, **others,
        }  # fmt: skip
        assert adapter.decode(asked, given).whole == then.whole, "a leg that is sent again is written anew"


def test_what_only_the_router_says_is_never_a_clients() -> None:
    adapter, given = adapter_for("vllm"), PrefillResult(PARAMS, Reply("chat"), written=orjson.dumps(PARAMS))
    asked = ask(max_tokens=9)
    asked.inference.body.update(kv_transfer_params={"remote_host": "x"}, cache_salt="x", request_id="x")
    for leg, params in ((adapter.prefill(asked), KEEP), (adapter.decode(asked, given), PARAMS)):
        raw = leg.whole
        assert raw.count(b"kv_transfer_params") == 1
        assert raw.count(b"cache_salt") + raw.count(b"request_id") == raw.count(b"remote_request_id")
        assert sent(leg)["kv_transfer_params"] == params


def test_an_unknown_engine_is_named() -> None:
    with pytest.raises(ValueError, match="'tgi' is not known"):
        adapter_for("tgi")


def broken(kind: Any) -> Reply:
    reply = Reply(kind)
    reply.text = ["ab"]
    reply.prompt_ids, reply.output_ids, reply.shown = array("I", [1, 2, 3]), array("I", [7, 8, 9]), 2
    return reply
