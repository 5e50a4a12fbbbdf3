"""Keep the pool of KV blocks: reference counts, the prefix cache, eviction in order of last use.

Every block is either free (no references; it may still hold cached content until it is taken for
something else) or used. Used blocks belong to running sequences, to pins of finished ones, or both.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass


class OutOfBlocksError(Exception):
    """Report that the pool has fewer free blocks than asked for."""


@dataclass(slots=True, eq=False)
class Block:
    """One KV block; ``state`` is the model's state at its end once it is full, ``key`` its prefix-cache key."""

    index: int
    refs: int = 0
    state: int | None = None
    key: int | None = None


class BlockPool:
    """Hand out, share, take back and evict the KV blocks of one engine."""

    def __init__(self, total: int, *, block_size: int) -> None:
        """Make a pool of ``total`` free blocks; ids start at 1, so that 0 is never a valid one."""
        if total < 1:
            raise ValueError(f"total: a pool of {total} blocks holds nothing; raise --kv-capacity")
        self.total = total
        self.block_size = block_size
        self.evictions = 0
        # Least recently used first. Blocks without content come before cached ones.
        self._free: OrderedDict[int, Block] = OrderedDict()
        # Blocks are made when first used: a large GPU's cache has 100,000 of them, most runs touch few.
        self._made = 0
        self._cached: dict[int, Block] = {}
        self.on_evict: Callable[[int], None] = lambda _key: None
        """Called with the key of each cached block that is taken for something else."""
        self.on_spill: Callable[[int, int], None] = lambda _key, _state: None
        """Called before with its key and its state."""

    @property
    def free(self) -> int:
        """Return how many blocks can be allocated now."""
        return len(self._free) + self.total - self._made

    @property
    def used(self) -> int:
        """Return how many blocks are referenced."""
        return self._made - len(self._free)

    @property
    def cached(self) -> int:
        """Return how many blocks the prefix cache can serve."""
        return len(self._cached)

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks hold this many tokens."""
        return -(-tokens // self.block_size)

    def cached_prefix(self, keys: Sequence[int]) -> list[Block]:
        """Return the longest run of cached blocks that starts a context with these block keys."""
        found: list[Block] = []
        for key in keys:
            block = self._cached.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Sequence[Block]) -> int:
        """Return how many of these blocks count as free now and would stop doing so when shared."""
        return sum(1 for block in blocks if block.refs == 0)

    def share(self, blocks: Sequence[Block]) -> None:
        """Take one more reference on each block."""
        for block in blocks:
            if block.refs == 0:
                del self._free[block.index]
            block.refs += 1

    def allocate(self, count: int) -> list[Block]:
        """Take ``count`` free blocks, the least recently used first, and forget what they held.

        Raises:
            OutOfBlocksError: fewer are free; nothing is taken.
        """
        if count > self.free:
            raise OutOfBlocksError(f"{count} KV blocks are needed, {self.free} of {self.total} are free")
        taken: list[Block] = []
        for _ in range(count):
            if self._made < self.total:
                self._made += 1
                taken.append(Block(self._made, refs=1))
                continue
            _, block = self._free.popitem(last=False)
            if block.key is not None:
                del self._cached[block.key]
                self.evictions += 1
                if block.state is not None:
                    self.on_spill(block.key, block.state)
                self.on_evict(block.key)
            block.key = block.state = None
            block.refs = 1
            taken.append(block)
        return taken

    def seal(self, block: Block, *, key: int, state: int) -> bool:
        """Mark a block as full with the model's state at its end; return whether it is new to the prefix cache."""
        block.state = state
        if key in self._cached:
            return False
        block.key = key
        self._cached[key] = block
        return True

    def release(self, blocks: Sequence[Block]) -> None:
        """Give back one reference on each block.

        Raises:
            ValueError: a block has no reference to give back: it was released twice.
        """
        # The tail goes first: it is the least likely to start another prompt, so it is evicted first.
        for block in reversed(blocks):
            if block.refs < 1:
                raise ValueError(f"block {block.index} was released twice")
            block.refs -= 1
            if block.refs == 0:
                self._free[block.index] = block
                if block.key is None:
                    block.state = None
                    self._free.move_to_end(block.index, last=False)

    def check(self) -> None:
        """Verify the pool's books.

        Raises:
            AssertionError: a block is lost, counted twice or cached under another's key.
        """
        for index, block in self._free.items():
            if block.refs or block.index != index:
                raise AssertionError(f"block {index} is free with {block.refs} references")
        for key, block in self._cached.items():
            if block.key != key or block.state is None:
                raise AssertionError(f"block {block.index} is cached under the key of another")
