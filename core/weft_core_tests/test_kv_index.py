"""The index of KV blocks says what a plain dict of them says, whatever is stored and dropped in which order."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.kv_block_keys import START, block_keys, extra_bytes, id_bytes, prompt_extras
from weft_core.kv_index import TIERS, BlockIndex, CachedPrefix

GPU, CPU, DISK, REMOTE = range(len(TIERS))


@dataclass
class Entry:
    """A block of the model."""

    key: int
    parent: int | None
    tiers: set[int] = field(default_factory=set)


class Model:
    """What the index is to say, kept without any thought of speed or size."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.entries: dict[int, Entry] = {}

    def store(self, tier: int, hashes: list[int], keys: list[int], parent: int | None) -> int:
        if parent is not None and parent not in self.entries:
            return 0
        for count, (block_hash, key) in enumerate(zip(hashes, keys, strict=True)):
            if block_hash not in self.entries:
                if len(self.entries) >= self.limit or any(one.key == key for one in self.entries.values()):
                    return count
                self.entries[block_hash] = Entry(key, parent)
            self.entries[block_hash].tiers.add(tier)
            parent = block_hash
        return len(hashes)

    def mark(self, tier: int, hashes: list[int]) -> int:
        known = [one for one in hashes if one in self.entries]
        for one in known:
            self.entries[one].tiers.add(tier)
        return len(known)

    def remove(self, tier: int, hashes: list[int]) -> int:
        removed = 0
        for one in hashes:
            if one in self.entries and tier in self.entries[one].tiers:
                self.entries[one].tiers.remove(tier)
                removed += 1
                self.drop()
        return removed

    def drop(self) -> None:
        while True:
            parents = {one.parent for one in self.entries.values()}
            gone = [name for name, one in self.entries.items() if not one.tiers and name not in parents]
            if not gone:
                return
            for name in gone:
                del self.entries[name]

    def places(self, keys: list[int]) -> list[int]:
        by_key = {one.key: one for one in self.entries.values()}
        fastest = [min(by_key[key].tiers) for key in keys if key in by_key and by_key[key].tiers]
        return [fastest.count(tier) for tier in range(len(TIERS))]

    def prefix(self, keys: list[int]) -> CachedPrefix:
        by_key = {one.key: one for one in self.entries.values()}
        gpu = kept = 0
        while gpu < len(keys) and GPU in (by_key[keys[gpu]].tiers if keys[gpu] in by_key else ()):
            gpu += 1
        kept = gpu
        while kept < len(keys) and keys[kept] in by_key and by_key[keys[kept]].tiers:
            kept += 1
        return CachedPrefix(gpu, kept)


def check(index: BlockIndex, model: Model, prompts: list[list[int]]) -> None:
    assert len(index) == len(model.entries)
    for tier in range(len(TIERS)):
        assert index.blocks[tier] == sum(tier in one.tiers for one in model.entries.values())
    for name, one in model.entries.items():
        assert index.key_of(name) == one.key
    for keys in prompts:
        found = index.prefix(keys)
        assert found == model.prefix(keys)
        assert index.places(keys) == model.places(keys)
        assert index.places(keys[1:]) == model.places(keys[1:])
        for count in range(1, len(keys) + 1):
            reached = model.prefix(keys[:count])
            assert index.reach(keys[count - 1]) == (reached.gpu == count, reached.kept == count)


def blocks_of(tokens: list[int]) -> list[int]:
    return block_keys(START, id_bytes(tokens), 1)


def hash_of(key: int) -> int:
    """Return the engine's hash of a block: another one-to-one function of what is before it."""
    return (key * 0x9E3779B97F4A7C15 + 7) % 2**64


prompts = st.lists(st.integers(0, 2), min_size=1, max_size=7)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 3), prompts, st.integers(0, 6)),
        st.tuples(st.just("mark"), st.integers(0, 3), prompts, st.integers(0, 6)),
        st.tuples(st.just("remove"), st.integers(0, 3), prompts, st.integers(0, 6)),
        st.tuples(st.just("clear"), st.just(0), prompts, st.just(0)),
    ),
    max_size=40,
)


@given(steps=steps, limit=st.sampled_from([3, 8, 1000]))
def test_the_index_says_what_the_model_says(steps: list[tuple[str, int, list[int], int]], limit: int) -> None:
    """Any order of events, also ones that no engine sends: parents dropped before children, blocks dropped twice."""
    index, model = BlockIndex(limit=limit), Model(limit)
    for what, tier, tokens, start in steps:
        keys = blocks_of(tokens)
        hashes = [hash_of(key) for key in keys]
        start = min(start, len(keys) - 1)
        parent = hashes[start - 1] if start else None
        if what == "store":
            given_keys, given_hashes = keys[start:], hashes[start:]
            found = index.store(tier, given_hashes, given_keys, parent)
            assert found == model.store(tier, given_hashes, given_keys, parent)
        elif what == "mark":
            assert index.mark(tier, hashes[start:]) == model.mark(tier, hashes[start:])
        elif what == "remove":
            assert index.remove(tier, hashes[start:]) == model.remove(tier, hashes[start:])
        else:
            index.clear()
            model = Model(limit)
        check(index, model, [keys, blocks_of([0] * 7), blocks_of([1, 0, 1, 0, 1])])


def test_a_prompt_worked_by_hand() -> None:
    index = BlockIndex()
    keys = blocks_of([1, 2, 3, 4])
    assert index.store(GPU, [10, 20, 30], keys[:3], None) == 3
    assert index.prefix(keys) == (3, 3)
    assert index.mark(CPU, [10, 20, 99]) == 2, "99 is unknown"
    assert index.remove(GPU, [30, 20]) == 2
    assert index.prefix(keys) == (1, 2)
    assert index.store(GPU, [40], keys[3:], 30) == 0, "30 is dropped"
    assert index.remove(GPU, [10]) == 1
    assert index.prefix(keys) == (0, 2)
    assert index.reach(keys[1]) == (0, 1)
    index.clear()
    assert index.prefix(keys) == (0, 0)
    assert not index


def test_a_block_whose_parent_was_dropped_counts_again_when_the_parent_is_stored_again() -> None:
    index = BlockIndex()
    keys = blocks_of([1, 2, 3])
    index.store(GPU, [10, 20, 30], keys, None)
    index.remove(GPU, [20])
    assert (index.holes_gpu, index.holes) == (1, 1)
    assert index.prefix(keys) == (1, 1)
    assert index.reach(keys[2]) == (0, 0)
    index.store(GPU, [20], keys[1:2], 10)
    assert (index.holes_gpu, index.holes) == (0, 0)
    assert index.prefix(keys) == (3, 3)


def test_blocks_beyond_the_limit_are_refused_until_others_are_dropped() -> None:
    index = BlockIndex(limit=2)
    keys = blocks_of([1, 2, 3])
    assert index.store(GPU, [10, 20, 30], keys, None) == 2
    assert index.prefix(keys) == (2, 2)
    index.remove(GPU, [20])
    other = blocks_of([9])
    assert index.store(GPU, [90], other, None) == 1
    assert len(index) == 2


@pytest.mark.parametrize("limit", [0, -1, 2**31])
def test_a_limit_out_of_range_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        BlockIndex(limit=limit)


def test_keys_follow_from_tokens_and_all_before_them() -> None:
    ids = id_bytes(list(range(40)))
    keys = block_keys(START, ids, 16)
    assert len(keys) == 2, "half a block has no key"
    assert block_keys(keys[0], ids[64:], 16) == keys[1:], "a chain goes on where it was left"
    assert block_keys(START, ids[64:], 16)[0] != keys[1]
    assert len({*keys, *block_keys(START, id_bytes([1, *range(39)]), 16)}) == 4


def test_salts_and_adapters_are_part_of_keys() -> None:
    ids = id_bytes(list(range(32)))
    kinds = [(), prompt_extras(None, "a"), prompt_extras("x", None), prompt_extras("x", "a")]
    found = [block_keys(START, ids, 16, extras) for extras in kinds]
    assert len({key for keys in found for key in keys}) == 8
    # as vLLM reports them: the salt with the first block only, the adapter with each
    reported = [extra_bytes(("x", "a")), extra_bytes(("x",))]
    assert block_keys(START, ids, 16, reported) == found[3]
    later = block_keys(found[3][0], ids[64:], 16, prompt_extras("x", None))
    assert later == found[3][1:], "of a chain that goes on, the salt is in what was before"


def test_extra_keys_of_different_types_differ() -> None:
    kinds: list[tuple[object, ...]] = [("1",), (1,), (b"1",), (("1",),), ("1", ""), (["1", 2],), ("i1:1",)]
    assert len({extra_bytes(one) for one in kinds}) == len(kinds)
    assert extra_bytes(None) == extra_bytes(()) == b""
    with pytest.raises(TypeError, match="float"):
        extra_bytes((1.5,))


def test_token_ids_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OverflowError):
        id_bytes([2**32])
