"""The mock engine's KV events: with them a reader knows exactly what is cached, where, and of which tokens."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.kv_tiers import KVTier
from weft_mock.kv_event_log import KvEventLog
from weft_mock.kv_events import of_rank
from weft_mock.kv_events_config import KvEventsConfig, events_config
from weft_mock.model import START, fold
from weft_mock.tokenizer import chat_ids, filler
from weft_mock_tests.engines import profile
from weft_mock_tests.machine import SIZE, Machine

BLOCK = SIZE * profile().kv_bytes_per_token
TIERS = (KVTier("cpu", 12 * BLOCK, 1e15), KVTier("disk", 8 * BLOCK, 1e15))


class Logged:
    """A machine whose events are collected."""

    def __init__(self, *tiers: KVTier, disk: bool = True) -> None:
        self.machine = Machine(tokens=20 * SIZE, tiers=tiers)
        self.log = KvEventLog(block_size=SIZE, wanted=True, disk=disk)
        self.machine.pool.on_evict = self.log.evicted
        self.machine.scheduler.on_cached = self.log.sealed
        self.machine.scheduler.tiers.on_change = self.log.tier
        self.held: dict[str, set[int]] = {"GPU": set(), "CPU": set(), "STORAGE": set()}

    def serve(self, blocks: int, seed: int, **fields: object) -> list[dict[str, Any]]:
        self.machine.add(chat_ids([{"role": "user", "content": filler(blocks * SIZE - 4, seed)}]), tokens=20, **fields)
        self.machine.run()
        events = self.log.take()
        for event in events:
            held = self.held[event["medium"]]
            if event["type"] == "BlockStored":
                assert event["medium"] == "STORAGE" or not held & set(event["block_hashes"])
                held.update(event["block_hashes"])
            else:
                held.difference_update(event["block_hashes"])
        return events


@given(prompts=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=12))
def test_events_say_what_is_cached(prompts: list[tuple[int, int]]) -> None:
    logged = Logged(*TIERS)
    for blocks, seed in prompts:
        logged.serve(blocks, seed)
        machine = logged.machine
        assert logged.held["GPU"] == set(machine.pool._cached)
        cpu, disk = (set(one.states) for one in machine.scheduler.tiers._tiers)
        assert logged.held["CPU"] == cpu
        assert logged.held["STORAGE"] >= disk, "files are deleted without an event"


def test_events_of_files_are_left_out_where_their_tier_publishes_none() -> None:
    quiet = Logged(*TIERS, disk=False)
    assert all(event["medium"] != "STORAGE" for seed in range(4) for event in quiet.serve(12, seed))
    assert quiet.machine.scheduler.tiers.blocks()["disk"] > 0


def test_blocks_come_with_their_tokens_after_those_before_them() -> None:
    logged = Logged()
    (first,) = logged.serve(5, 0)
    ids, state = first["token_ids"], START
    assert first["parent_block_hash"] is None
    assert len(ids) == SIZE * len(first["block_hashes"])
    for place, block_hash in enumerate(first["block_hashes"]):
        state = fold(state, ids[place * SIZE : (place + 1) * SIZE])
        assert block_hash == state
    assert first["extra_keys"] == [None] * len(first["block_hashes"])
    (longer,) = logged.serve(8, 0)
    assert longer["parent_block_hash"] in first["block_hashes"]


def test_salts_and_adapters_are_named() -> None:
    logged = Logged()
    (event,) = logged.serve(3, 0, salt=5, cache_salt="pepper", adapter="a")
    assert event["lora_name"] == "a"
    assert event["extra_keys"] == [["a", "pepper"], *[["a"]] * (len(event["block_hashes"]) - 1)]


def test_nothing_is_collected_that_nobody_wants() -> None:
    log = KvEventLog(block_size=SIZE, wanted=False)
    log.evicted(1)
    log.tier("cpu", 1, True)
    assert log.take() == []


def test_a_batch_has_its_rank() -> None:
    body = msgspec.msgpack.encode([1.5, []])
    assert msgspec.msgpack.decode(of_rank(body, 3)) == [1.5, [], 3]


GOOD = (
    '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:5400",'
    '"replay_endpoint":"tcp://127.0.0.1:5300"}'
)


def test_the_flag_is_vllms() -> None:
    assert events_config(GOOD) == KvEventsConfig(5400, 5300)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("x", "JSON"),
        ("[]", "object"),
        (GOOD.replace("true", "false"), "enable_kv_cache_events"),
        (GOOD.replace("zmq", "null"), "publisher"),
        (GOOD.replace("127.0.0.1:5400", "*:5400"), "endpoint"),
        (GOOD.replace("tcp://127.0.0.1:5300", "ipc:///tmp/x"), "replay_endpoint"),
        (GOOD.replace("}", ',"buffer_steps":0}'), "buffer_steps"),
        (GOOD.replace("}", ',"brand_new":0}'), "buffer_steps"),
    ],
)
def test_other_flags_are_refused(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=f"--kv-events-config.*{word}"):
        events_config(text)
