"""The KV cache of one engine, or of one of its data-parallel ranks, as its events say, in the order of their numbers.

Whatever is missing or cannot be read makes the index forget all that it knew: a block that was dropped meanwhile would
count for good. What an engine stores afterwards counts again.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

from weft_core.kv_block_keys import ID_BYTES, START, block_keys
from weft_core.kv_index import BlockIndex
from weft_router.kv_events.wire import Cleared, Event, MalformedError, Removed, Stored, decode

GPU: Final = 0
DISK: Final = 2
SLICE: Final = 128
"""Blocks that are stored at a time: streams of tokens wait meanwhile."""
FIRST_GROUP: Final = 0
"""Of a model whose layers are in groups with blocks of their own the first one counts."""

Outcome = Literal[
    "stored", "removed", "cleared", "unknown-event", "other-group", "unknown-tier", "hash-only", "unaligned",
    "block-size", "unknown-parent", "full",
]  # fmt: skip
"""What became of an event."""
Place = Literal["next", "known", "gap", "restart"]
"""Where a batch is among those before it."""


class RankCache:
    """An index of blocks, and which batch of events comes next."""

    def __init__(self, index: BlockIndex, *, refused: Callable[[Outcome], None] = lambda _: None) -> None:
        """Fill an index; ``refused`` is called with each event that could not be indexed."""
        self.index = index
        self.block_tokens = 0
        """Tokens of a block, by the first event with ids; 0 before it."""
        self.outcomes: Counter[Outcome] = Counter()
        self.expected = 0
        """The number of the batch that comes next."""
        self.changes = 0
        """Grows with each batch that is taken in, and whenever all is forgotten."""
        self.breaks = 0
        """How often batches were lost, unreadable or out of order."""
        self._latest = -1
        self._refused = refused

    def place(self, number: int) -> Place:
        """Return where a batch is that comes now; numbers of one engine only grow.

        Batches before ``expected`` were replayed already.
        """
        if number <= self._latest:
            return "restart"
        self._latest = number
        if number < self.expected:
            return "known"
        return "next" if number == self.expected else "gap"

    def restart(self, number: int = -1) -> None:
        """Begin again: the engine is another one, or its batches came in disorder. The latest has this number."""
        self.breaks += number >= 0
        self._clear(0)
        self._latest = number

    def forget(self, expected: int) -> None:
        """Drop all blocks, as events are missing, and go on with this batch."""
        self.breaks += 1
        self._clear(expected)

    def _clear(self, expected: int) -> None:
        self.index.clear()
        self.block_tokens = 0
        self.expected = expected
        self.changes += 1

    def drop(self, tier: int, hashes: Sequence[int] | None) -> Iterator[None]:
        """Take blocks out of a tier without an event; None: all that it has.

        Between two steps other work may be done.
        """
        index, at = self.index, 0
        self.changes += 1
        while at < (index.slots if hashes is None else len(hashes)):
            end = at + SLICE
            index.remove(tier, index.hashes_in(tier, at, end) if hashes is None else hashes[at:end])
            at = end
            yield
        self.changes += 1

    def take(self, number: int, payload: bytes) -> Iterator[None]:
        """Take in the batch that comes next; between two steps other work may be done.

        Raises:
            MalformedError: it cannot be read; all was forgotten.
        """
        self.expected = number + 1
        try:
            batch = decode(payload)
        except MalformedError:
            self.forget(self.expected)
            raise
        self.changes += 1
        for _ in range(batch.unknown):
            self._count("unknown-event")
        for event in batch.events:
            yield from self._apply(event)

    def _apply(self, event: Event) -> Iterator[None]:
        if isinstance(event, Cleared):
            self._clear(self.expected)
            self._count("cleared")
        elif event.tier is None:
            self._count("unknown-tier")
        elif event.group != FIRST_GROUP:
            self._count("other-group")
        elif isinstance(event, Removed):
            for at in range(0, len(event.hashes), SLICE):
                self.index.remove(event.tier, event.hashes[at : at + SLICE])
                yield
            self._count("removed")
        elif event.tier != GPU or not event.ids:
            # What a connector says of prompts is not whole, such as the salt. All KV was in GPU memory before.
            yield from self._mark(event.tier, event.hashes)
        else:
            yield from self._store(event)

    def _mark(self, tier: int, hashes: list[int]) -> Iterator[None]:
        known = 0
        for at in range(0, len(hashes), SLICE):
            known += self.index.mark(tier, hashes[at : at + SLICE])
            yield
        if hashes:
            self._count("stored" if known else "hash-only")

    def _store(self, event: Stored) -> Iterator[None]:
        if event.extras is None or len(event.ids) != len(event.hashes) * event.block_tokens * ID_BYTES:
            self._count("unaligned")
            return
        if event.block_tokens != (self.block_tokens or event.block_tokens):
            self._count("block-size")
            return
        self.block_tokens = event.block_tokens
        index, parent = self.index, event.parent
        before = START if parent is None else index.key_of(parent)
        if before is None:
            self._count("unknown-parent")
            return
        width = event.block_tokens * ID_BYTES
        for at in range(0, len(event.hashes), SLICE):
            end = at + SLICE
            hashes = event.hashes[at:end]
            extras = event.extras[at:end] or event.extras[-1:]
            keys = block_keys(before, event.ids[at * width : end * width], event.block_tokens, extras)
            if index.store(GPU, hashes, keys, parent) < len(hashes):
                self._count("full")
                return
            before, parent = keys[-1], hashes[-1]
            yield
        self._count("stored")

    def _count(self, outcome: Outcome) -> None:
        self.outcomes[outcome] += 1
        if outcome not in ("stored", "removed", "cleared"):
            self._refused(outcome)
