import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weft_mock.blocks import Block, BlockPool, OutOfBlocksError
from weft_mock.pins import PinTable, ReadRefusedError

TOTAL = 12


class Pool(RuleBasedStateMachine):
    """Drive a pool and its pins as an engine does, in any order, and count every block."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL, block_size=4)
        self.pins = PinTable(self.pool, lease_seconds=10, ttl_seconds=50)
        self.held: list[list[Block]] = []
        self.now = 0.0
        self.named = 0

    @rule(count=st.integers(1, TOTAL + 2))
    def allocate(self, count: int) -> None:
        free = self.pool.free
        if count > free:
            with pytest.raises(OutOfBlocksError):
                self.pool.allocate(count)
            assert self.pool.free == free
        else:
            self.held.append(self.pool.allocate(count))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), key=st.integers(0, 6))
    def seal(self, data: st.DataObject, key: int) -> None:
        blocks = data.draw(st.sampled_from(self.held))
        block = data.draw(st.sampled_from(blocks))
        if block.state is None:
            self.pool.seal(block, key=key, state=key * 10)

    @rule(keys=st.lists(st.integers(0, 6), max_size=4, unique=True))
    def share(self, keys: list[int]) -> None:
        hits = self.pool.cached_prefix(keys)
        assert [hit.state for hit in hits] == [key * 10 for key in keys[: len(hits)]]
        self.pool.share(hits)
        if hits:
            self.held.append(hits)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.held) - 1))
        self.pool.release(self.held.pop(at))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), holder=st.sampled_from(["prefill", "decode"]))
    def pin(self, data: st.DataObject, holder: str) -> None:
        at = data.draw(st.integers(0, len(self.held) - 1))
        self.named += 1
        blocks = self.held.pop(at)
        role = "prefill" if holder == "prefill" else "decode"
        self.pins.add(f"r{self.named}", holder=role, blocks=blocks, ids=range(len(blocks) * 4), now=self.now)  # type: ignore[arg-type]

    @rule(number=st.integers(0, 20), right=st.booleans())
    def read(self, number: int, right: bool) -> None:
        name = f"r{number}"
        try:
            ids = [block.index for block in self.pins.get(name).blocks]
        except KeyError:
            ids = []
        reason = None
        try:
            self.pins.read(name, block_ids=ids if right else [*ids, 99], now=self.now)
        except ReadRefusedError as error:
            reason = error.reason
        assert reason in (None, "unknown_request", "expired", "replayed", "wrong_blocks")
        assert (reason is None) <= right

    @rule(number=st.integers(0, 20))
    def done(self, number: int) -> None:
        self.pins.release(f"r{number}")

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.pins.expire(self.now)

    @invariant()
    def no_block_is_lost(self) -> None:
        references: dict[int, int] = {}
        pinned = [self.pins.get(f"r{n}").blocks for n in range(self.named + 1) if self._is_pinned(n)]
        for blocks in [*self.held, *pinned]:
            for block in blocks:
                references[block.index] = references.get(block.index, 0) + 1
        assert self.pool.used == len(references)
        assert self.pool.free + self.pool.used == TOTAL
        for blocks in [*self.held, *pinned]:
            assert all(block.refs == references[block.index] for block in blocks)
        assert self.pins.blocks == len({block.index for blocks in pinned for block in blocks})
        self.pool.check()

    def _is_pinned(self, number: int) -> bool:
        try:
            self.pins.get(f"r{number}")
        except KeyError:
            return False
        return True


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30)


def test_a_block_released_twice_is_an_error() -> None:
    pool = BlockPool(2, block_size=4)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(ValueError, match="released twice"):
        pool.release(blocks)


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="--kv-capacity"):
        BlockPool(0, block_size=16)


def test_the_least_recently_used_content_is_evicted_first() -> None:
    pool = BlockPool(3, block_size=1)
    blocks = pool.allocate(3)
    for key, block in enumerate(blocks):
        pool.seal(block, key=key, state=key)
    pool.release([blocks[2]])
    pool.release([blocks[0]])
    pool.release([blocks[1]])
    pool.allocate(2)
    assert pool.cached_prefix([1]) == [blocks[1]]
    assert pool.cached_prefix([2]) == []
    assert pool.cached_prefix([0]) == []
    assert pool.evictions == 2


def test_blocks_without_content_are_taken_before_cached_ones() -> None:
    pool = BlockPool(2, block_size=1)
    first, second = pool.allocate(2)
    pool.seal(first, key=5, state=5)
    pool.release([first])
    pool.release([second])
    assert pool.allocate(1) == [second]
    assert pool.cached_prefix([5]) == [first]


def test_block_zero_is_never_a_valid_id() -> None:
    pool = BlockPool(4, block_size=1)
    assert sorted(block.index for block in pool.allocate(4)) == [1, 2, 3, 4]
