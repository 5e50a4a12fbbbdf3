from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_mock.kv_params import (
    KvProtocolError,
    RemoteBlocks,
    Role,
    handle_json,
    parse_kv_params,
    remote_of_rejected,
)
from weft_mock_tests.engines import EXPORT

REMOTE = RemoteBlocks(
    engine_id="p",
    request_id="x",
    host="10.0.0.1",
    port=5600,
    block_ids=(3, 4),
    tokens=30,
    degree=2,
    expiry=None,
    cached_tokens=16,
)
TO_DECODE = handle_json(REMOTE, holder="prefill")
TO_PREFILL = handle_json(REMOTE, holder="decode")


def refusal(value: object, *, role: Role = "both", bidirectional: bool = True, n: int = 1) -> tuple[str, str]:
    with pytest.raises(KvProtocolError) as caught:
        parse_kv_params(value, role=role, bidirectional=bidirectional, n=n)
    assert str(caught.value)
    return caught.value.reason, caught.value.consequence


@pytest.mark.parametrize("value", [None, {}])
def test_no_parameters_ask_for_nothing(value: object) -> None:
    assert parse_kv_params(value, role="both", bidirectional=True, n=4) is None


def test_exact_ids_alone_ask_for_nothing() -> None:
    assert parse_kv_params({"prompt_token_ids": [1]}, role="decode", bidirectional=True, n=1) is None


def test_the_three_forms() -> None:
    export = parse_kv_params(EXPORT, role="prefill", bidirectional=False, n=1)
    assert export is not None
    assert (export.form, export.remote) == ("export", None)
    assert parse_kv_params({"do_remote_decode": True}, role="decode", bidirectional=True, n=1) == export
    back = parse_kv_params(TO_PREFILL, role="prefill", bidirectional=True, n=1)
    assert back is not None
    assert (back.form, back.remote) == ("export", REMOTE)
    import_ = parse_kv_params(TO_DECODE, role="decode", bidirectional=False, n=1)
    assert import_ is not None
    assert (import_.form, import_.remote) == ("import", REMOTE)


def test_what_kills_vllm_is_refused_and_named() -> None:
    assert refusal({"do_remote_prefill": True}) == ("incomplete_handle", "would_crash")
    assert refusal({"do_remote_prefill": True, "do_remote_decode": True}) == ("both_directions", "would_crash")


def test_what_leaks_in_vllm_is_refused_and_named() -> None:
    assert refusal({"a": 1}) == ("no_direction", "would_leak")
    assert refusal({"do_remote_prefill": False, "do_remote_decode": False}) == ("no_direction", "would_leak")
    assert refusal({"a": 1}, bidirectional=False) == ("no_direction", "would_ignore")


@pytest.mark.parametrize(
    "name",
    ["remote_block_ids", "remote_engine_id", "remote_host", "remote_num_tokens", "remote_port", "remote_request_id"],
)
def test_a_handle_with_a_field_missing_is_refused(name: str) -> None:
    reason, consequence = refusal({**TO_DECODE, name: None})
    assert reason in ("incomplete_handle", "wrong_type")
    assert consequence == "would_crash"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("remote_block_ids", [3, 4]),
        ("remote_block_ids", [[]]),
        ("remote_block_ids", [[1], [2]]),
        ("remote_block_ids", [[True]]),
        ("remote_block_ids", [[-1]]),
        ("remote_block_ids", "1"),
        ("remote_port", 0),
        ("remote_port", "5600"),
        ("remote_num_tokens", 0),
        ("remote_num_tokens", 1.5),
        ("remote_host", ""),
        ("remote_engine_id", 7),
        ("tp_size", "2"),
        ("remote_blocks_expiry_time", "soon"),
        ("remote_blocks_expiry_time", float("nan")),
        ("transfer_mode", "push"),
    ],
)
def test_a_handle_with_a_wrong_value_is_refused(name: str, value: object) -> None:
    assert refusal({**TO_DECODE, name: value}) == ("wrong_type", "would_crash")


def test_roles_and_flags_must_fit() -> None:
    assert refusal(TO_DECODE, role="prefill")[0] == "wrong_role"
    assert refusal(TO_PREFILL, bidirectional=False)[0] == "not_bidirectional"
    assert refusal({**EXPORT, "remote_hosts": "x"})[0] == "unknown_field"
    assert refusal({**EXPORT, "do_remote_decode": "yes"})[0] == "wrong_type"
    assert refusal(EXPORT, n=2) == ("several_answers", "would_leak")
    assert refusal([1])[0] == "not_an_object"
    assert refusal("x")[0] == "not_an_object"


def test_a_rejected_import_names_the_blocks_to_give_back() -> None:
    assert remote_of_rejected(TO_DECODE) == REMOTE
    for value in (None, {}, EXPORT, TO_PREFILL, {"do_remote_prefill": True}, 5):
        assert remote_of_rejected(value) is None


KEYS = st.sampled_from([*TO_DECODE, "prompt_token_ids", "extra"])
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 9), st.text(max_size=3), st.just([[1]]), st.just([]), st.floats()
)


@settings(max_examples=200)
@given(
    st.dictionaries(KEYS, VALUES, max_size=14),
    st.sampled_from([{}, TO_DECODE, TO_PREFILL, EXPORT]),
    st.sampled_from(["prefill", "decode", "both"]),
    st.booleans(),
)
def test_any_object_is_read_or_refused(
    changes: dict[str, object], base: Mapping[str, object], role: Role, bidirectional: bool
) -> None:
    value = {**base, **changes}
    try:
        request = parse_kv_params(value, role=role, bidirectional=bidirectional, n=1)
    except KvProtocolError:
        assert value, "an object without anything is read"
        return
    if request is None:
        assert set(value) <= {"prompt_token_ids"}
    elif request.form == "import":
        assert request.remote is not None
        assert role != "prefill"
    elif request.remote is not None:
        assert bidirectional
