"""Which KV blocks an engine keeps, and in which tiers: an index of bounded size over what the engine's events say.

A block has two numbers of 64 bits. Events name it by the engine's own hash, of which nothing else is assumed. Prompts
find it by a key that follows from its tokens and all tokens before it (``weft_core.kv_block_keys``).

Blocks form chains: each has the one before it as its parent. A prompt can use a block only if the engine keeps all
blocks before it, too. Engines drop the ends of chains first, so almost always a block is kept only while its parent
is. The index counts the exceptions (``holes``): while there is none, the end of a prompt's cached prefix is found by
bisection, else block by block.

Everything is in arrays: objects for a million blocks would take ten times the memory.
"""

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

LIMIT: Final = 1_000_000
"""Blocks of an index, about 50 bytes each."""
TIERS: Final = ("gpu", "cpu", "disk", "remote")
"""Places of KV by number, fastest first."""
_GPU: Final = 1
_ANY: Final = 15
_FASTEST: Final = bytes(max(0, (mask & -mask).bit_length() - 1) for mask in range(1 << len(TIERS)))
"""The fastest tier of a set of tiers."""
_ROOT: Final = 0
"""The slot before the first block of every chain; it counts as kept everywhere."""
_STEP: Final = 4096
"""Slots that are made at a time, at least."""


class CachedPrefix(NamedTuple):
    """How many blocks at the beginning of a prompt are kept: in GPU memory, and in tiers of any kind."""

    gpu: int
    kept: int


def _zeros(kind: str, count: int) -> "array[int]":
    return array(kind, bytes(array(kind).itemsize * count))


class BlockIndex:
    """The blocks of one engine, or of one of its data-parallel ranks."""

    def __init__(self, *, limit: int = LIMIT) -> None:
        """Index at most ``limit`` blocks; those beyond are refused until others are dropped.

        Raises:
            ValueError: the limit is out of range.
        """
        if not 1 <= limit < 2**31:
            raise ValueError(f"limit: {limit} blocks; choose 1 to {2**31 - 1}")
        self.limit = limit
        self._mask = (1 << max(4, (limit - 1).bit_length())) - 1
        self.clear()

    def clear(self) -> None:
        """Drop all blocks."""
        # A slot is a block; the tables hold the first slot of each bucket, ``_next_*`` the others.
        self._hash_table = _zeros("I", self._mask + 1)
        self._key_table = _zeros("I", self._mask + 1)
        self._hash, self._key = _zeros("Q", 1), _zeros("Q", 1)
        self._parent, self._next_hash, self._next_key = _zeros("I", 1), _zeros("I", 1), _zeros("I", 1)
        self._tiers = bytearray([255])
        self._children = _zeros("I", 1)
        """Blocks that have this one as their parent; while there are any, its slot stays."""
        self._children_gpu, self._children_kept = _zeros("I", 1), _zeros("I", 1)
        """Those of them that are in GPU memory, and in any tier."""
        self._used = 1
        self._free = 0
        self._count = 0
        self.holes_gpu = 0
        """Blocks in GPU memory whose parent is not."""
        self.holes = 0
        """Blocks that are kept, and whose parent is not."""
        self.blocks = [0] * len(TIERS)
        """Blocks by tier."""

    def __len__(self) -> int:
        """Return how many blocks take a slot: all that are kept, and dropped ones before kept ones."""
        return self._count

    @property
    def nbytes(self) -> int:
        """Return the size of all arrays in bytes."""
        arrays = (
            self._hash_table, self._key_table, self._hash, self._key, self._parent, self._next_hash, self._next_key,
            self._children, self._children_gpu, self._children_kept,
        )  # fmt: skip
        return sum(one.itemsize * len(one) for one in arrays) + len(self._tiers)

    def key_of(self, block_hash: int) -> int | None:
        """Return the key of a block; None if it is unknown."""
        slot = self._find(block_hash)
        return self._key[slot] if slot else None

    def store(self, tier: int, hashes: Sequence[int], keys: Sequence[int], parent: int | None) -> int:
        """Add blocks that follow one another after ``parent`` (None: from the beginning); return how many were added.

        Blocks after an unknown parent are refused, and so are all from the first that has no room, or whose key another
        block has.
        """
        before = _ROOT
        if parent is not None:
            before = self._find(parent)
            if not before:
                return 0
        bit, tiers, mask = 1 << tier, self._tiers, self._mask
        # As _find and _find_key do, without their calls: an engine stores thousands of blocks a second.
        hash_table, known_hashes, next_hash = self._hash_table, self._hash, self._next_hash
        key_table, known_keys, next_key = self._key_table, self._key, self._next_key
        added = 0
        for block_hash, key in zip(hashes, keys, strict=True):
            slot = hash_table[block_hash & mask]
            while slot and known_hashes[slot] != block_hash:
                slot = next_hash[slot]
            if not slot:
                other = key_table[key & mask]
                while other and known_keys[other] != key:
                    other = next_key[other]
                if other or self._count >= self.limit:
                    break
                slot = self._add(block_hash, key, before)
            if not tiers[slot] & bit:
                self.blocks[tier] += 1
                self._change(slot, tiers[slot] | bit)
            before = slot
            added += 1
        return added

    def mark(self, tier: int, hashes: Sequence[int]) -> int:
        """Add known blocks to a further tier; return how many were known."""
        bit, tiers = 1 << tier, self._tiers
        known = 0
        for block_hash in hashes:
            slot = self._find(block_hash)
            if slot:
                known += 1
                if not tiers[slot] & bit:
                    self.blocks[tier] += 1
                    self._change(slot, tiers[slot] | bit)
        return known

    def remove(self, tier: int, hashes: Sequence[int]) -> int:
        """Take blocks out of a tier; return how many were in it."""
        bit, tiers = 1 << tier, self._tiers
        removed = 0
        for block_hash in hashes:
            slot = self._find(block_hash)
            if slot and tiers[slot] & bit:
                removed += 1
                self.blocks[tier] -= 1
                self._change(slot, tiers[slot] & ~bit)
                self._release(slot)
        return removed

    @property
    def slots(self) -> int:
        """Return how many slots there are to look at in ``hashes_in``."""
        return self._used

    def hashes_in(self, tier: int, first: int, end: int) -> list[int]:
        """Return the hashes of the blocks that a tier has, of those in some slots."""
        bit, tiers = 1 << tier, self._tiers
        return [self._hash[slot] for slot in range(max(1, first), min(end, self._used)) if tiers[slot] & bit]

    def prefix(self, keys: Sequence[int]) -> CachedPrefix:
        """Return how much of a prompt with these block keys is kept."""
        gpu = self._run(keys, 0, _GPU, self.holes_gpu)
        return CachedPrefix(gpu, self._run(keys, gpu, _ANY, self.holes))

    def places(self, keys: Sequence[int]) -> list[int]:
        """Return how many blocks of a prompt, or of a part of it, are in each tier, counted in the fastest that has it.

        Those beyond the sum are nowhere. A block behind one that is nowhere counts, too, though no prompt can use it.
        """
        counts = [0] * len(TIERS)
        tiers, find = self._tiers, self._find_key
        counts[0] = self._run(keys, 0, _GPU, self.holes_gpu)
        for at in range(counts[0], len(keys)):
            slot = find(keys[at])
            if not slot:
                break  # a block has its slot as long as one behind it has one
            if tiers[slot]:
                counts[_FASTEST[tiers[slot]]] += 1
        return counts

    def tier_of(self, key: int) -> int:
        """Return the fastest tier that has a block; that of the GPUs if none has."""
        return _FASTEST[self._tiers[slot]] if (slot := self._find_key(key)) else 0

    def below(self, key: int) -> int:
        """Return the fastest tier below the GPUs' that has a block; 0 if none has."""
        return _FASTEST[self._tiers[slot] & ~_GPU] if (slot := self._find_key(key)) else 0

    def reach(self, key: int) -> CachedPrefix:
        """Return how much is kept of the prompt that ends with a block, as 0 (not all of it) or 1."""
        slot = self._find_key(key)
        return CachedPrefix(
            int(self._whole(slot, _GPU, self.holes_gpu)), int(self._whole(slot, _ANY, self.holes))
        )  # fmt: skip

    def _run(self, keys: Sequence[int], low: int, mask: int, holes: int) -> int:
        """Return how many blocks from the first on are kept in the tiers of a mask; the first ``low`` are."""
        tiers, find = self._tiers, self._find_key
        high = len(keys)
        if holes:
            while low < high and (slot := find(keys[low])) and tiers[slot] & mask:
                low += 1
            return low
        while low < high:
            middle = (low + high) // 2
            slot = find(keys[middle])
            if slot and tiers[slot] & mask:
                low = middle + 1
            else:
                high = middle
        return low

    def _whole(self, slot: int, mask: int, holes: int) -> bool:
        if not slot or not self._tiers[slot] & mask:
            return False
        while holes and slot:
            slot = self._parent[slot]
            if not self._tiers[slot] & mask:
                return False
        return True

    def _find(self, block_hash: int) -> int:
        slot, hashes, following = self._hash_table[block_hash & self._mask], self._hash, self._next_hash
        while slot and hashes[slot] != block_hash:
            slot = following[slot]
        return slot

    def _find_key(self, key: int) -> int:
        slot, keys, following = self._key_table[key & self._mask], self._key, self._next_key
        while slot and keys[slot] != key:
            slot = following[slot]
        return slot

    def _add(self, block_hash: int, key: int, parent: int) -> int:
        slot = self._free
        if slot:
            self._free = self._next_hash[slot]
        else:
            if self._used == len(self._tiers):
                self._grow()
            slot = self._used
            self._used += 1
        mask = self._mask
        self._hash[slot], self._key[slot], self._parent[slot] = block_hash, key, parent
        self._next_hash[slot] = self._hash_table[block_hash & mask]
        self._hash_table[block_hash & mask] = slot
        self._next_key[slot] = self._key_table[key & mask]
        self._key_table[key & mask] = slot
        self._children[parent] += 1
        self._count += 1
        return slot

    def _grow(self) -> None:
        more = min(max(_STEP, len(self._tiers) // 2), self.limit + 1 - len(self._tiers))
        for one in (self._hash, self._key):
            one.extend(_zeros("Q", more))
        for one in (
            self._parent, self._next_hash, self._next_key, self._children, self._children_gpu, self._children_kept,
        ):  # fmt: skip
            one.extend(_zeros("I", more))
        self._tiers.extend(bytes(more))

    def _change(self, slot: int, new: int) -> None:
        """Set a block's tiers, and count which blocks that makes or ends as holes."""
        tiers, parent = self._tiers, self._parent[slot]
        old = tiers[slot]
        tiers[slot] = new
        if (old ^ new) & _GPU:
            sign = 1 if new & _GPU else -1
            self._children_gpu[parent] += sign
            self.holes_gpu -= sign * self._children_gpu[slot]
            if not tiers[parent] & _GPU:
                self.holes_gpu += sign
        if bool(old) != bool(new):
            sign = 1 if new else -1
            self._children_kept[parent] += sign
            self.holes -= sign * self._children_kept[slot]
            if not tiers[parent]:
                self.holes += sign

    def _release(self, slot: int) -> None:
        """Free the slot of a block that is in no tier and before none, and those before it for which that holds then.

        A dropped block before a kept one keeps its slot: if it is stored again, its children count again.
        """
        tiers, children = self._tiers, self._children
        while not tiers[slot] and not children[slot]:
            parent = self._parent[slot]
            self._unlink(self._hash_table, self._next_hash, self._hash[slot] & self._mask, slot)
            self._unlink(self._key_table, self._next_key, self._key[slot] & self._mask, slot)
            self._next_hash[slot] = self._free
            self._free = slot
            self._count -= 1
            children[parent] -= 1
            slot = parent

    @staticmethod
    def _unlink(table: "array[int]", following: "array[int]", bucket: int, slot: int) -> None:
        at = table[bucket]
        if at == slot:
            table[bucket] = following[slot]
            return
        while following[at] != slot:
            at = following[at]
        following[at] = following[slot]
