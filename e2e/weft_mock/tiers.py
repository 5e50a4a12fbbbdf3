"""Keep KV blocks in tiers below the GPU's memory: what each holds, and when a load from it ends. No clock of its own.

As vLLM's OffloadingConnector: a block is written as soon as it is full, and found by its prefix-cache key. A tier that
has no room drops its least recently used blocks into the next one; a request uses all blocks of its prompt. Writing
takes no time here; loads from one tier come one after the other. A load that fails takes its time, and its tokens are
computed.

With ``writes="eviction"``, as TensorRT-LLM's host cache, a block is written when the GPUs lose it, and leaves its tier
when it is loaded.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weft_core.kv_tiers import KVTier, KVWrites
from weft_mock.faults import Faults


@dataclass(slots=True)
class _Held:
    tier: KVTier
    room: int
    """Blocks."""
    states: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """The model's state at a block's end by its key, least recently used first."""
    free_at: float = 0.0
    """When the last load from it ends."""


class Tiers:
    """The blocks of one engine below its GPUs, fastest tier first."""

    def __init__(
        self, tiers: Sequence[KVTier], *, block_size: int, kv_bytes_per_token: float, writes: KVWrites = "through"
    ) -> None:
        """Start empty.

        Raises:
            ValueError: a tier holds less than one block.
        """
        self.bytes_per_token = kv_bytes_per_token
        self.writes = writes
        self._block_bytes = block_size * kv_bytes_per_token
        self._block_size = block_size
        self._tiers = [_Held(tier, int(tier.capacity_bytes // self._block_bytes)) for tier in tiers]
        self.dropped = 0
        """Blocks that the last tier had no room for."""
        self.loaded: Counter[str] = Counter()
        """Tokens that were loaded, by tier."""
        self.stored: Counter[str] = Counter()
        """Tokens that were written, by tier."""
        self.faults = Faults()
        """What goes wrong from now on: ``full_tiers``, ``fail_loads`` and ``slow_loads`` count here."""
        self.on_change: Callable[[str, int, bool], None] = lambda _tier, _key, _kept: None
        """Called with a tier and the key of each block that it has from now on, or has not any more."""
        for one in self._tiers:
            if one.room < 1:
                raise ValueError(f"{one.tier.name}: a block has {self._block_bytes:g} bytes, and this tier fewer")

    def blocks(self) -> dict[str, int]:
        """Return how many blocks each tier holds."""
        return {one.tier.name: len(one.states) for one in self._tiers}

    def sealed(self, key: int, state: int) -> None:
        """Write a block that became full on the GPUs through; or drop it, where a tier has only what they lost."""
        if self.writes == "through":
            self.put(key, state)
        else:
            self.take([key])

    def put(self, key: int, state: int) -> None:
        """Write a block; a tier that takes no more goes on with those that it has."""
        if self.faults.full_tiers:
            return
        moved = (key, state)
        for one in self._tiers:
            if moved[0] not in one.states:
                self.stored[one.tier.name] += self._block_size
                self.on_change(one.tier.name, moved[0], True)
            one.states[moved[0]] = moved[1]
            one.states.move_to_end(moved[0])
            if len(one.states) <= one.room:
                return
            moved = one.states.popitem(last=False)
            self.on_change(one.tier.name, moved[0], False)
        self.dropped += bool(self._tiers)

    def take(self, keys: Sequence[int]) -> None:
        """Drop blocks that the GPUs are about to have again, where a tier has only what they lost."""
        if self.writes == "through":
            return
        for one in self._tiers:
            for key in keys:
                if one.states.pop(key, None) is not None:
                    self.on_change(one.tier.name, key, False)

    def prefix(self, keys: Sequence[int]) -> list[int]:
        """Return the tier, by its place, of each block of the longest run that starts with the first of these keys."""
        found: list[int] = []
        for key in keys:
            place = next((place for place, one in enumerate(self._tiers) if key in one.states), None)
            if place is None:
                break
            found.append(place)
        return found

    def touch(self, keys: Sequence[int]) -> None:
        """Note that a request uses these blocks, also those that the GPUs have: a prompt's end is dropped first."""
        for one in self._tiers:
            for key in reversed(keys):
                if key in one.states:
                    one.states.move_to_end(key)

    def load(self, places: Sequence[int], at: float, *, scale: float) -> float:
        """Read blocks, as ``prefix`` found them, and return when all are there; times are ``scale`` x the tier's."""
        ends = at
        for place, count in Counter(places).items():
            one = self._tiers[place]
            seconds = scale * one.tier.t_load(count * self._block_size, self._block_bytes / self._block_size)
            one.free_at = max(one.free_at, at) + seconds * self.faults.slow_loads
            ends = max(ends, one.free_at)
            if not self.faults.fail_loads:
                self.loaded[one.tier.name] += count * self._block_size
        return ends
