"""An index that follows events in order: what is missing or wrong never makes a block count that was dropped."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.kv_block_keys import START, block_keys, id_bytes, prompt_extras
from weft_core.kv_index import BlockIndex
from weft_router.kv_events.rank_cache import DISK, SLICE, RankCache
from weft_router.kv_events.wire import MalformedError

Event = dict[str, Any]
SIZE = 4


def payload(*events: Event) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def stored(hashes: list[int], ids: list[int], parent: int | None = None, **fields: object) -> Event:
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": ids,
        "block_size": SIZE, "medium": "GPU", **fields,
    }  # fmt: skip


def removed(hashes: list[int], **fields: object) -> Event:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", **fields}


def take(cache: RankCache, number: int, *events: Event) -> int:
    """Take a batch in; return in how many steps."""
    return sum(1 for _ in cache.take(number, payload(*events)))


def keys(ids: list[int], *, adapter: str | None = None, salt: str | None = None) -> list[int]:
    return block_keys(START, id_bytes(ids), SIZE, prompt_extras(adapter, salt))


IDS = list(range(100, 116))


def test_blocks_are_found_by_the_tokens_of_a_prompt() -> None:
    cache = RankCache(BlockIndex())
    take(cache, 0, stored([1, 2], IDS[:8]), stored([3], IDS[8:12], 2))
    assert cache.block_tokens == SIZE
    assert cache.index.prefix(keys(IDS)) == (3, 3)
    take(cache, 1, stored([1, 2], [], None, medium="CPU", block_size=0), removed([3, 2]))
    assert cache.index.prefix(keys(IDS)) == (1, 2)
    take(cache, 2, {"type": "AllBlocksCleared"})
    assert cache.index.prefix(keys(IDS)) == (0, 0)
    assert cache.outcomes == {"stored": 3, "removed": 1, "cleared": 1}
    assert cache.expected == 3


def test_salts_and_adapters_keep_prompts_apart() -> None:
    cache = RankCache(BlockIndex())
    take(cache, 0, stored([1, 2], IDS[:8], extra_keys=[["a", "salt"], ["a"]], lora_name="a"))
    take(cache, 1, stored([3], IDS[8:12], 2, extra_keys=[["a"]], lora_name="a"))
    assert cache.index.prefix(keys(IDS, adapter="a", salt="salt")) == (3, 3)
    for other in (keys(IDS), keys(IDS, adapter="a"), keys(IDS, salt="salt"), keys(IDS, adapter="a", salt="b")):
        assert cache.index.prefix(other) == (0, 0)


def test_a_long_event_is_taken_in_by_slices() -> None:
    cache = RankCache(BlockIndex())
    count = 3 * SLICE + 1
    ids = list(range(count * SIZE))
    extras = [["salt"], *[None] * (count - 1)]
    assert take(cache, 0, stored(list(range(1, count + 1)), ids, extra_keys=extras)) == 4
    assert cache.index.prefix(keys(ids, salt="salt")) == (count, count)
    assert take(cache, 1, removed(list(range(count, 0, -1)))) == 4
    assert len(cache.index) == 0


@pytest.mark.parametrize("known", [True, False])
def test_files_that_are_deleted_leave_without_an_event(known: bool) -> None:
    cache = RankCache(BlockIndex())
    count = 2 * SLICE
    hashes, ids = list(range(1, count + 1)), list(range(count * SIZE))
    take(cache, 0, stored(hashes, ids), stored(hashes, [], medium="STORAGE", block_size=0))
    take(cache, 1, removed(hashes[:1:-1]))
    assert cache.index.prefix(keys(ids)) == (2, count)
    before = cache.changes
    steps = sum(1 for _ in cache.drop(DISK, hashes[:0:-1] if known else None))
    assert steps in (2, 3)
    assert cache.changes > before, "heartbeats announce the rest"
    assert cache.index.prefix(keys(ids)) == (2, 2)
    assert cache.index.blocks[DISK] == int(known), "of the first block the file is still there"


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (stored([9], IDS[:4], 77), "unknown-parent"),
        (stored([9], IDS[:3]), "unaligned"),
        (stored([9, 10], IDS[:4]), "unaligned"),
        (stored([9], IDS[:4], extra_keys=[None, None]), "unaligned"),
        (stored([9], IDS[:8], block_size=8), "block-size"),
        (stored([9], IDS[:4], group_idx=1), "other-group"),
        (stored([9], IDS[:4], medium="TAPE"), "unknown-tier"),
        (stored([9], [], medium="CPU", block_size=0), "hash-only"),
        (stored([9], IDS[:4], medium="CPU"), "hash-only"),
        (stored([9], [], block_size=0), "hash-only"),
        ({"type": "BlockMoved"}, "unknown-event"),
    ],
)
def test_what_says_nothing_of_prompts_is_counted_and_left_out(event: Event, outcome: str) -> None:
    refused: list[str] = []
    cache = RankCache(BlockIndex(), refused=refused.append)
    take(cache, 0, stored([1], [1, 2, 3, 4]), event)
    assert refused == [outcome]
    assert cache.outcomes[outcome] == 1  # type: ignore[index]
    assert len(cache.index) == 1


def test_a_full_index_refuses_blocks() -> None:
    cache = RankCache(BlockIndex(limit=1))
    take(cache, 0, stored([1, 2], IDS[:8]))
    assert cache.outcomes == {"full": 1}
    assert cache.index.prefix(keys(IDS)) == (1, 1)


def test_the_numbers_of_batches_say_what_is_missing() -> None:
    cache = RankCache(BlockIndex())
    assert cache.place(0) == "next"
    take(cache, 0, stored([1], IDS[:4]))
    assert cache.place(1) == "next"
    take(cache, 1)
    assert cache.place(4) == "gap"
    for number in (2, 3, 4, 5):  # replayed, and one more than was missing
        take(cache, number)
    assert cache.place(5) == "known", "it came both ways"
    assert cache.place(6) == "next"
    take(cache, 6)
    assert cache.place(3) == "restart"
    cache.restart(3)
    assert cache.index.prefix(keys(IDS)) == (0, 0)
    assert cache.expected == 0
    assert cache.place(4) == "gap"


def test_a_batch_that_cannot_be_read_makes_all_be_forgotten() -> None:
    cache = RankCache(BlockIndex())
    take(cache, 0, stored([1], IDS[:4]))
    with pytest.raises(MalformedError):
        list(cache.take(1, b"\xc1"))
    assert cache.index.prefix(keys(IDS)) == (0, 0)
    assert cache.expected == 2
    take(cache, 2, stored([1], IDS[:4]))
    assert cache.index.prefix(keys(IDS)) == (1, 1)


class Engine:
    """A cache of a few blocks that publishes batches, and knows what it holds."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.batches: list[bytes] = []

    def serve(self, ids: list[int]) -> None:
        chain = keys(ids)
        events: list[Event] = []
        for place, key in enumerate(chain):
            if key not in self.held:
                part = ids[place * SIZE : (place + 1) * SIZE]
                events.append(stored([key], part, chain[place - 1] if place else None))
                self.held.add(key)
        self.batches.append(payload(*events))

    def evict(self, ids: list[int]) -> None:
        gone = [key for key in reversed(keys(ids)) if key in self.held]
        self.held.difference_update(gone)
        self.batches.append(payload(removed(gone)))


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=3).map(
    lambda word: [one for one in word for _ in range(SIZE)]
)
steps = st.lists(st.tuples(st.sampled_from(["serve", "evict"]), prompts), min_size=1, max_size=25)


@given(steps=steps, lost=st.sets(st.integers(0, 24)), forgets=st.booleans())
def test_no_block_counts_that_the_engine_does_not_keep(
    steps: list[tuple[str, list[int]]], lost: set[int], forgets: bool
) -> None:
    """Whichever batches are lost, as long as the reader forgets what it knew; without losses it knows all."""
    engine = Engine()
    actions: dict[str, Callable[[list[int]], None]] = {"serve": engine.serve, "evict": engine.evict}
    cache = RankCache(BlockIndex())
    for number, (what, ids) in enumerate(steps):
        actions[what](ids)
        if number in lost and forgets:
            continue
        if cache.place(number) == "gap":
            cache.forget(number)
        for _ in cache.take(number, engine.batches[number]):
            pass
        for prompt in ([0] * SIZE * 3, [1] * SIZE * 3, ids):
            found = cache.index.prefix(keys(prompt)).kept
            true = next((i for i, key in enumerate(keys(prompt)) if key not in engine.held), len(keys(prompt)))
            assert found <= true
            if not (lost and forgets):
                assert found == true
