"""Batches of KV events are read in both encodings, and what cannot be one is refused."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.kv_block_keys import extra_bytes, id_bytes
from weft_router.kv_events.wire import MAX_PAYLOAD, Batch, Cleared, MalformedError, Removed, Stored, decode, number_of

CAPTURED = json.loads(Path(__file__).with_name("vllm_kv_events.json").read_text())
"""Payloads that vLLM 0.32's own classes encoded, by name: see its first entry."""


def batch(*events: object, rank: int | None = None) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events)] if rank is None else [1.5, list(events), rank])


def stored(**fields: object) -> dict[str, Any]:
    return {
        "type": "BlockStored", "block_hashes": [7, 8], "parent_block_hash": None, "token_ids": [1, 2, 3, 4],
        "block_size": 2, "lora_id": None, "medium": "GPU", "lora_name": None, **fields,
    }  # fmt: skip


def captured(name: str) -> Batch:
    return decode(bytes.fromhex(CAPTURED["payloads"][name]))


def test_what_vllm_encodes_is_read() -> None:
    ids = id_bytes([1, 2, 3, 4])
    assert captured("stored") == Batch([Stored(0, [11, 12], 10, ids, 2, (), 0)], 3, 0)
    salted = (extra_bytes(("an-adapter", "a-salt")), extra_bytes(("an-adapter",)))
    assert captured("salted").events == [Stored(0, [11, 12], None, ids, 2, salted, 0)]
    picture = (extra_bytes((["picture", 0],)), b"")
    assert captured("picture").events == [Stored(0, [11, 12], None, ids, 2, picture, 0)]
    assert captured("bytes").events == [
        Stored(0, [2**64 - 2], 1, id_bytes([5, 6]), 2, (), 1), Removed(0, [2**64 - 2], 1),
    ]  # fmt: skip
    assert captured("tiers").events == [
        Stored(1, [11], None, b"", 0, (), 0), Removed(2, [11], 0), Stored(3, [12], None, b"", 0, (), 0),
    ]  # fmt: skip
    assert captured("cleared") == Batch([Cleared()], 0, 0)


def test_arrays_of_older_versions_and_of_sglang_are_read() -> None:
    tokens = [1, 2, 3, 4]
    ids = id_bytes(tokens)
    older = ["BlockStored", [7, 8], 6, tokens, 2, None, "GPU", "an-adapter", None, 2, "full_attention", None]
    adapter = (extra_bytes(("an-adapter",)),)
    assert decode(batch(older)).events == [Stored(0, [7, 8], 6, ids, 2, adapter, 2)]
    oldest = ["BlockStored", [-1, 8], None, tokens, 2, None]
    found = decode(batch(oldest, ["BlockRemoved", [-1]], ["AllBlocksCleared"], rank=1))
    assert found == Batch([Stored(0, [2**64 - 1, 8], None, ids, 2, (), 0), Removed(0, [2**64 - 1], 0), Cleared()], 1, 0)
    salted = ["BlockStored", [7, 8], None, tokens, 2, None, "GPU", {"cache_salt": "s"}]
    assert decode(batch(salted)).events == [Stored(0, [7, 8], None, ids, 2, (extra_bytes(("s",)), b""), 0)]
    other: list[Any] = ["BlockStored", [7, 8], None, tokens, 2, None, "CPU_PINNED", {"component_types": []}]
    assert decode(batch(other)).events == [Stored(1, [7, 8], None, ids, 2, None, 0)]


def test_newer_fields_are_ignored_and_newer_events_counted() -> None:
    found = decode(batch(stored(session_id="s", ownership=None, brand_new=[1]), {"type": "BlockMoved"}, ["Other", 1]))
    assert len(found.events) == 1
    assert found.unknown == 2
    (event,) = decode(batch(stored(medium="TAPE"))).events
    assert isinstance(event, Stored)
    assert event.tier is None


def test_extras_that_are_not_one_for_each_block_say_nothing() -> None:
    (event,) = decode(batch(stored(extra_keys=[["a"]]))).events
    assert isinstance(event, Stored)
    assert event.extras is None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"ts": 1.5, "events": []}),
        msgspec.msgpack.encode([1.5]),
        msgspec.msgpack.encode(["now", []]),
        batch(1),
        batch([]),
        batch(stored(token_ids=[-1])),
        batch(stored(token_ids=[2**32])),
        batch(stored(token_ids=["a"])),
        batch(stored(token_ids=None)),
        batch(stored(block_hashes=[1.5])),
        batch(stored(block_hashes=[2**64 - 1, None])),
        batch(stored(block_size=-1)),
        batch(stored(block_size=2**31)),
        batch(stored(extra_keys=[[1.5], None])),
        batch({"type": "BlockStored"}),
        batch({"type": "BlockRemoved", "block_hashes": "all"}),
        batch(["BlockStored", [7]]),
        batch(stored())[:-3],
        batch(stored()) + b"\x00",
    ],
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(payload)


def test_a_payload_that_is_too_long_is_refused_unread() -> None:
    with pytest.raises(MalformedError, match="bytes"):
        decode(b"\x00" * (MAX_PAYLOAD + 1))


@given(payload=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    with suppress(MalformedError):
        decode(payload)


@given(place=st.integers(0, 200), byte=st.integers(0, 255))
def test_a_batch_with_any_other_byte_is_read_or_refused(place: int, byte: int) -> None:
    raw = bytearray(batch(stored(extra_keys=[["salt"], None]), {"type": "BlockRemoved", "block_hashes": [7]}))
    raw[place % len(raw)] = byte
    with suppress(MalformedError):
        decode(bytes(raw))


def test_numbers_of_batches() -> None:
    assert number_of((5).to_bytes(8, "big")) == 5
    assert number_of((-1).to_bytes(8, "big", signed=True)) == -1
    with pytest.raises(MalformedError, match="8 bytes"):
        number_of(b"5")
