"""Checking requests: every refusal names its field, everything the router does not judge passes."""

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given as of_any
from hypothesis import settings
from hypothesis import strategies as st

from weft_router.config import LimitsConfig, ModelConfig
from weft_router.errors import ApiError, NotFoundError
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import Inference, check_request

MODEL = ModelConfig.model_validate({"name": "m", "maxModelLen": 1000})
LIMITS = LimitsConfig.model_validate({"maxN": 4, "maxOutputTokens": 800})
USER = {"role": "user", "content": "hello"}


def chat(**fields: Any) -> Inference:
    return check_request(
        "/v1/chat/completions", {"model": "m", "messages": [USER], **fields}, RequestLimits(MODEL, LIMITS)
    )


def text(**fields: Any) -> Inference:
    return check_request("/v1/completions", {"model": "m", "prompt": "hello", **fields}, RequestLimits(MODEL, LIMITS))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"model": ""}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [USER, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": 5}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": 1}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "y"}}, "stream_options"),
        ({"n": 0}, "n"),
        ({"n": 5}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"best_of": 9}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "7"}, "max_tokens"),
        ({"max_tokens": 801}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": True}, "top_p"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stop": "a" * 4097}, "stop"),
        ({"stop": ["a", 1]}, "stop"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"bad_words": ["a"] * 1025}, "bad_words"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
        ({"allowed_token_ids": [1] * 1025}, "allowed_token_ids"),
        ({"logprob_token_ids": [1] * 1025}, "logprob_token_ids"),
        ({"repetition_penalty": "x"}, "repetition_penalty"),
        ({"min_tokens": 801}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"best_of": "2"}, "best_of"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"prompt_logprobs": 99}, "prompt_logprobs"),
        ({"tools": {}}, "tools"),
        ({"return_token_ids": 1}, "return_token_ids"),
        ({"messages": [{"role": "user", "content": "x" * 16_001}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 4_000}], "max_tokens": 760}, "messages"),
    ],
)
def test_wrong_chat_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        chat(**fields)
    assert refusal.value.status == 400
    assert refusal.value.param == param
    assert refusal.value.message.startswith(param.split("[")[0])


@pytest.mark.parametrize(
    "prompt", [None, "", [], [[]], ["a", "b"], [["a"]], {"a": 1}, 5, [1, -1], [1, True], [1, 2**31], [1] * 1000]
)
def test_wrong_prompts_are_named(prompt: object) -> None:
    with pytest.raises(ApiError) as refusal:
        text(prompt=prompt)
    assert (refusal.value.status, refusal.value.param) == (400, "prompt")


def test_least_tokens_alone_must_fit_the_context_too() -> None:
    limits = LimitsConfig.model_validate({"maxOutputTokens": 5000})
    body: dict[str, object] = {"model": "m", "messages": [USER], "min_tokens": 1001}
    with pytest.raises(ApiError) as refusal:
        check_request("/v1/chat/completions", body, RequestLimits(MODEL, limits))
    assert refusal.value.param == "min_tokens"


@pytest.mark.parametrize("fields", [{"max_tokens": 900}, {"max_completion_tokens": 900}])
def test_an_answer_longer_than_the_context_is_refused(fields: dict[str, Any]) -> None:
    limits = LimitsConfig.model_validate({"maxOutputTokens": 5000})
    small = ModelConfig.model_validate({"name": "m", "maxModelLen": 800})
    with pytest.raises(ApiError) as refusal:
        check_request(
            "/v1/chat/completions", {"model": "m", "messages": [USER], **fields}, RequestLimits(small, limits)
        )
    assert (refusal.value.param, refusal.value.code) == (next(iter(fields)), "context_length_exceeded")


def test_media_parts_pass_and_only_text_is_counted() -> None:
    parts = [{"type": "text", "text": "abc"}, {"type": "image_url", "image_url": {"url": "data:" + "x" * 20_000}}]
    found = chat(messages=[{"role": "user", "content": parts}])
    assert found.chars == 3
    assert found.body["messages"] == [{"role": "user", "content": parts}]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
names = st.sampled_from(
    ["seed", "vendor", 'q"', "é", "max_tokens", "stream", "n", "stream_options", "kv_transfer_params"]
)


@settings(max_examples=200)
@of_any(
    st.dictionaries(names, values, max_size=6), st.dictionaries(names, values, max_size=4), st.frozensets(names),
)  # fmt: skip
def test_a_legs_body_is_the_clients_with_its_own_fields_and_each_key_once(
    client: dict[str, Any], fields: dict[str, Any], without: frozenset[str]
) -> None:
    given = replace(chat(), body={"model": "m", **client})
    before = orjson.dumps(given.body)
    pairs = json.loads(given.encoded(fields, without=without), object_pairs_hook=list)
    assert len(dict(pairs)) == len(pairs)
    kept = {name: value for name, value in given.body.items() if name not in without}
    assert orjson.loads(given.encoded(fields, without=without)) == {**kept, **fields}
    assert orjson.dumps(given.body) == before == given.whole()


def test_an_unknown_model_is_404_and_a_long_name_is_cut() -> None:
    with pytest.raises(NotFoundError) as refusal:
        chat(model="x" * 10_000)
    assert refusal.value.code == "model_not_found"
    assert len(refusal.value.message) < 300


def test_what_the_engine_judges_passes() -> None:
    found = chat(
        stream=True, stream_options={"include_usage": True}, seed=1, logit_bias={"1": 2}, n=4, stop=["a"],
        structured_outputs={"x": [1]}, tools=[{"type": "function"}], max_tokens=10, max_completion_tokens=20,
        return_token_ids=True,
    )  # fmt: skip
    assert (found.stream, found.wants_usage, found.wants_ids, found.n, found.max_tokens) == (True, True, True, 4, 10)
    assert found.chars == len("hello") + len('[{"type":"function"}]')


@pytest.mark.parametrize("prompt", ["hello", ["hello"], [1, 2, 3], [[1, 2, 3]]])
def test_prompts_come_in_four_forms(prompt: object) -> None:
    found = text(prompt=prompt)
    assert found.prompt == ("hello" if "hello" in str(prompt) else [1, 2, 3])
    assert found.exact_tokens == (None if found.prompt == "hello" else 3)


@pytest.mark.parametrize(
    "fields", [{"n": 2}, {"best_of": 2}, {"echo": True}, {"prompt_logprobs": 0}, {"use_beam_search": True}]
)
def test_kv_of_these_does_not_travel(fields: dict[str, Any]) -> None:
    assert text().transferable
    assert not text(**fields).transferable


def test_long_prompts_that_may_fit_are_left_to_the_engine() -> None:
    assert chat(messages=[{"role": "user", "content": "x" * 15_900}]).chars == 15_900
