"""Records in Redis: whoever can write there can make none, copy none, and spoil none but the one that is touched."""

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.heartbeat import MAX_QUEUE, QueueEntry, WorkerRecord, read_fields, worker_key
from weft_core.keys import Purpose, derive
from weft_core.parallelism import gpus_of
from weft_core.records import (
    MAX_RECORD_BYTES,
    MAX_SKEW_S,
    MAX_VALUE_BYTES,
    Opened,
    RecordRefusedError,
    mark_holds,
    open_heartbeats,
    open_record,
    open_value,
    seal_mark,
    seal_record,
    seal_value,
)

KEY, OTHER = derive(b"token", "state"), derive(b"another token", "state")
NAME = worker_key("ns", "svc", "d0")
NOW = 1_800_000_000.0
RECORD = WorkerRecord("d0", "decode", "http://10.0.0.7:8080", 2, 1000, instance_id="i", seq=3, ready=True)
SEALED = seal_record(RECORD, key=KEY, name=NAME, now=NOW)


def opened(stored: object, *, key: bytes = KEY, name: str = NAME, worker: str = "d0", now: float = NOW) -> str:
    """Return why a record is refused, nothing where it is not."""
    try:
        assert open_record(stored, key=key, name=name, worker=worker, now=now) == (RECORD, NOW)
    except RecordRefusedError as error:
        return error.reason
    return ""


def sealed(fields: dict[str, Any]) -> bytes:
    """Return what somebody would store who has the key, and another idea of a record."""
    whole = json.loads(SEALED[65:]) | fields
    seal = seal_value.__globals__["_full_mac"]
    body = json.dumps(whole).encode()
    made: bytes = seal(KEY, NAME, body) + b" " + body
    return made


def test_a_record_is_believed_of_who_has_the_key_for_a_minute() -> None:
    assert opened(SEALED) == ""
    assert {opened(SEALED, now=NOW + off) for off in (-MAX_SKEW_S, MAX_SKEW_S)} == {""}
    assert {opened(SEALED, now=NOW + off) for off in (-MAX_SKEW_S - 1, MAX_SKEW_S + 1, 3600.0)} == {"time"}


def test_a_record_of_another_service_or_worker_is_refused() -> None:
    assert opened(json.dumps(RECORD.fields()).encode()) == "mac", "as it was before records were authenticated"
    assert opened(seal_record(RECORD, key=OTHER, name=NAME, now=NOW)) == "mac"
    copied = worker_key("ns", "svc", "d1")
    assert opened(SEALED, name=copied, worker="d1") == "mac"
    assert opened(SEALED, name=worker_key("ns", "other", "d0")) == "mac"
    renamed = seal_record(RECORD, key=KEY, name=copied, now=NOW)
    assert opened(renamed, name=copied, worker="d1") == "name"


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (None, "type"), (17, "type"), ([b"x"], "type"), (b"", "mac"), (b"x" * (MAX_RECORD_BYTES + 1), "size"),
        (b"\xff\xfe\x00", "mac"), (SEALED[:-1], "mac"), (SEALED + b" ", "mac"), (SEALED.upper(), "mac"),
        (SEALED.replace(b"10.0.0.7", b"10.0.0.8"), "mac"), (b"0" * 64 + SEALED[64:], "mac"),
    ],
)  # fmt: skip
def test_junk_is_refused(stored: object, reason: str) -> None:
    assert opened(stored) == reason


@pytest.mark.parametrize(
    "fields",
    [
        {"degree": -1}, {"degree": 0}, {"degree": 1.5}, {"degree": True}, {"degree": "2"}, {"degree": 10**400},
        {"capacity": -1}, {"capacity": float("nan")}, {"kvUsed": float("inf")}, {"windowedTtft": float("nan")},
        {"windowedItl": 1e300}, {"idleSeconds": -1}, {"idleSeconds": 10**400}, {"charsPerToken": "4"},
        {"slowdown": 0}, {"slowdown": 9.0}, {"slowdown": "1"},
        {"url": "gopher://10.0.0.7:8080"}, {"url": "http://"}, {"url": "http://a:b"}, {"url": "http://u:p@10.0.0.7:1"},
        {"url": "http://10.0.0.7:8080#x"}, {"url": "http://10.0.0.7:8080?x"}, {"url": "http://10.0.0.7:8080 x"},
        {"url": "http://10.0.0.7:8080\r\nX: y"}, {"url": "file:///etc/passwd"}, {"url": 1}, {"url": "http://h\u00e9:1"},
        {"url": "http://" + "a" * 300}, {"url": "http://10.0.0.7:99999"}, {"worker": ["d0"]}, {"worker": "d0\x00"},
        {"role": "coordinator"}, {"role": ["decode"]}, {"queue": None}, {"queue": {"a": 1}}, {"queue": [[1, 2]]},
        {"queue": [["1", 2, "x"]]}, {"queue": [[1, 2, 3]]}, {"queue": [[1, 2, "x"]] * (MAX_QUEUE + 1)},
        {"pool": "x" * 254}, {"node": "a\nb"}, {"revision": None}, {"enginePort": 70000}, {"enginePort": -1},
        {"kvFaults": [["p0"]]}, {"kvFaults": [["p0", "x"]] * 65}, {"kvTransports": "tcp"}, {"seq": -1}, {"seq": None},
    ],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
def test_a_field_that_no_worker_writes_spoils_its_record(fields: dict[str, Any]) -> None:
    assert opened(sealed(fields)) == "fields"


@pytest.mark.parametrize("time", [None, "now", True, float("nan"), float("inf"), 10**400, -(10**400), [NOW]])
def test_a_time_that_is_none_is_refused(time: object) -> None:
    assert opened(sealed({"time": time})) == "time"


def test_deep_nesting_is_refused_not_followed() -> None:
    body = b'{"queue":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    seal = seal_value.__globals__["_full_mac"]
    assert opened(seal(KEY, NAME, body) + b" " + body) == "fields"


def test_the_longest_record_of_a_worker_is_within_the_bound() -> None:
    entry = QueueEntry(2**53, 2**53, "\u20ac" * 1000)
    longest = replace(RECORD, queue=(entry,) * 10_000, engine_version="\u20ac\x00" * 5000, kv_used=10**30)
    stored = seal_record(longest, key=KEY, name=NAME, now=NOW)
    found, _ = open_record(stored, key=KEY, name=NAME, worker="d0", now=NOW)
    assert (len(found.queue), found.kv_used) == (MAX_QUEUE, 2**53)
    figures = replace(RECORD, windowed_ttft=float("nan"), kv_bytes_per_s=float("inf"), kv_latency=-1.0)
    assert opened(seal_record(figures, key=KEY, name=NAME, now=NOW)) == "", "a figure that is none is not told"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(sorted(RECORD.fields())), json_values, max_size=4) | json_values)
def test_no_value_of_json_raises(value: object) -> None:
    read_fields(value)
    if isinstance(value, dict):
        found = read_fields({**RECORD.fields(), **value})
        assert value or found == RECORD
        assert found is None or (gpus_of(found.degree) >= 1 and found.url.startswith("http"))


@given(st.binary(max_size=200), st.integers(0, 200))
def test_no_bytes_raise_or_are_believed(junk: bytes, at: int) -> None:
    assert opened(junk) != ""
    if junk:
        assert opened(SEALED[:at] + junk + SEALED[at + len(junk) :]) != "" or SEALED[at : at + len(junk)] == junk
    assert open_value(junk, key=KEY, name=NAME) is None
    assert not mark_holds(junk, key=KEY, name=NAME, now=NOW)


def test_one_bad_record_spoils_no_other() -> None:
    reply = [
        b"set", b"d0", SEALED, b"d1", SEALED, b"d2", -1, b"d3", 10**9, b"\xff", SEALED, b"d4", None, b"x" * 254, -2,
        b"", SEALED, b"d5", b"junk",
    ]  # fmt: skip
    found = open_heartbeats(reply, key=KEY, namespace="ns", service="svc", now=NOW)
    assert found.records == [RECORD]
    assert found.absent == [b"d4"]
    assert found.refused == [
        (b"d1", "mac"), (b"d2", "type"), (b"d3", "size"), (b"\xff", "key"), (b"x" * 254, "key"), (b"", "key"),
        (b"d5", "mac"),
    ]  # fmt: skip
    for empty in ([b"none"], ["string"], [b"set"]):
        assert open_heartbeats(empty, key=KEY, namespace="ns", service="svc", now=NOW).records == []


def test_a_record_that_was_opened_is_not_opened_again_as_long_as_it_is_fresh() -> None:
    opened: Opened = {}
    for now, count in ((NOW, 1), (NOW + 1, 1), (NOW + MAX_SKEW_S + 1, 0), (NOW, 1)):
        found = open_heartbeats([b"set", b"d0", SEALED], key=KEY, namespace="ns", service="svc", now=now, opened=opened)
        assert len(found.records) == len(opened) == count
    other = open_heartbeats(
        [b"set", b"d0", SEALED[:-1]], key=KEY, namespace="ns", service="svc", now=NOW, opened=opened
    )
    assert (other.records, other.refused) == ([], [(b"d0", "mac")])
    assert opened == {}, "nothing is kept of workers that are gone"


def test_short_values_belong_to_their_key() -> None:
    stored = seal_value("d0", key=KEY, name="bind:a").encode()
    assert open_value(stored, key=KEY, name="bind:a") == "d0"
    assert open_value(stored, key=KEY, name="bind:b") is None
    assert open_value(stored, key=OTHER, name="bind:a") is None
    for junk in (None, "d0", b"d0", b" " + stored, stored[:-1], b"d1" + stored[2:], b"x" * (MAX_VALUE_BYTES + 1)):
        assert open_value(junk, key=KEY, name="bind:a") is None
    mark = seal_mark(key=KEY, name="demand", now=NOW).encode()
    assert mark_holds(mark, key=KEY, name="demand", now=NOW + 30)
    assert not mark_holds(mark, key=KEY, name="demand", now=NOW + 90)


def test_keys_of_different_purposes_and_tokens_differ() -> None:
    purposes = get_args(Purpose)
    keys = {derive(token, purpose) for token in (b"a" * 32, b"b" * 32) for purpose in purposes}
    assert len(keys) == 2 * len(purposes)
    proof = derive(bytes(32), "engine proof").hex()
    assert proof.startswith("d4c227a3e32239cb"), "engines and routers of one token agree on it"
