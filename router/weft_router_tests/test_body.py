"""Reading client bodies: what is no JSON object is refused, what only the router may write is gone."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_router.errors import InvalidRequestError
from weft_router.openai import body as body_module
from weft_router.openai.body import MAX_DEPTH, parse, sanitise

OWNED = [
    "kv_transfer_params",
    "KV_Transfer_Params",
    "kv-transfer-params",
    "ｋｖ_transfer_params",
    " kv_transfer_params",
    "ec_transfer_params",
    "disaggregated_params",
    "disagg_request_id",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "cache_salt",
    "request_id",
    "rid",
    "data_parallel_rank",
    "do_remote_prefill",
    "remote_host",
    "extra_body",
    "Extra-Body",
    "session_id",
    "prompt_cache_key",
]
CONTAINERS = ["vllm_xargs", "extra_args", "sampling_params", "Custom-Params"]
CONTENT = ["messages", "tools", "response_format", "metadata", "temperature", "vendor_field"]

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5)
owned = st.sampled_from(OWNED)
free = st.sampled_from(CONTENT)


def nested(keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
    )


bodies = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={
        **{key: nested(owned | free) for key in OWNED},
        **{key: nested(owned | free) for key in CONTAINERS},
        **{key: nested(owned | free) for key in CONTENT},
    },
)


@settings(max_examples=100)
@given(bodies)
def test_no_owned_field_survives_and_content_is_untouched(body: dict[str, Any]) -> None:
    before = orjson.loads(orjson.dumps(body))
    sanitise(body)
    assert not set(body) & set(OWNED)
    for key in CONTAINERS:
        if key in body:
            assert not _keys(body[key]) & set(OWNED)
    for key in [*CONTENT, "model"]:
        assert body.get(key) == before.get(key)
    assert sanitise(body) == []


def _keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*(_keys(child) for child in value.values()))
    if isinstance(value, list):
        return set().union(*(_keys(child) for child in value))
    return set()


def test_duplicate_keys_cannot_hide_a_value() -> None:
    body = parse(b'{"model":"a","kv_transfer_params":null,"model":"b","kv_transfer_params":{"remote_host":"x"}}')
    sanitise(body)
    assert orjson.dumps(body) == b'{"model":"b"}'


@pytest.mark.parametrize(
    "raw", [b"", b"  \n", b"{", b"null", b"[]", b'"x"', b"{'a':1}", b'{"a":NaN}', b'{"a":"\xff"}', b'{"a":1}x']
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse(raw)


def test_depth_is_bounded_where_it_can_still_be_written() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    assert orjson.loads(orjson.dumps(parse(orjson.dumps({"a": deep})))) == {"a": deep}
    with pytest.raises(InvalidRequestError, match="nested"):
        parse(orjson.dumps({"a": [deep]}))


def test_what_is_passed_over_is_neither_owned_nor_a_container() -> None:
    for key in body_module.SAFE:
        assert sanitise({key: {"kv_transfer_params": 1}}) == []
        assert not body_module._router_owned(key)
        assert body_module._plain(key) not in body_module._CONTAINERS


@pytest.mark.parametrize("padding", [0, 20_000])
def test_depth_is_found_in_short_and_long_bodies_and_brackets_in_texts_do_not_count(padding: int) -> None:
    fine = {"text": "[" * 100 + "x" * padding, "a": [[{}] for _ in range(100)]}
    assert parse(orjson.dumps(fine)) == fine
    deep: Any = {}
    for _ in range(MAX_DEPTH):
        deep = {"a": deep}
    with pytest.raises(InvalidRequestError, match="nested"):
        parse(orjson.dumps({"pad": "x" * padding, **deep}))
