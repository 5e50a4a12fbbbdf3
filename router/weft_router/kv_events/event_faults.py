"""What is wrong with an engine's KV events, for heartbeats: the operator names it in the condition KVCacheTiers."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from weft_core.kv_tiers import EVENTS_BLOCK_SIZE, EVENTS_DIFFER, EVENTS_LOST, EVENTS_MISSING
from weft_router.kv_events.rank_cache import RankCache

TIMES: Final = 3
"""So often within WINDOW_S is a fault: once is what a restarted engine looks like."""
WINDOW_S: Final = 300.0
SPREAD_S: Final = 30.0
"""Prompts that are missing are a fault when the first and the last were served so long apart: events of an engine that
starts come late."""


class Recurrence:
    """Whether something that is counted happened TIMES within WINDOW_S."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._total = 0
        self._times: deque[float] = deque(maxlen=TIMES)

    def update(self, total: int) -> bool:
        """Take the count of all so far."""
        now = self._clock()
        self._times.extend([now] * min(TIMES, max(0, total - self._total)))
        self._total = total
        return len(self._times) == TIMES and now - self._times[0] <= WINDOW_S


class EventFaults:
    """The faults of one engine's events."""

    def __init__(self, ranks: Sequence[RankCache], clock: Callable[[], float]) -> None:
        self._ranks = ranks
        self._breaks, self._sizes = Recurrence(clock), Recurrence(clock)
        self._clock = clock
        self._missing = 0
        self._since = self._latest = 0.0
        """When the first of the missing prompts in a row was looked for, and the last."""
        self._changes = 0

    def prompt(self, *, agrees: bool) -> None:
        """Take whether a served prompt was in the events."""
        if agrees:
            self._missing = 0
            return
        self._latest = self._clock()
        if not self._missing:
            self._since, self._changes = self._latest, self._changed()
        self._missing += 1

    def reset(self) -> None:
        """Begin again with another engine."""
        self._missing = 0

    def found(self) -> tuple[tuple[str, str], ...]:
        """Return the faults by kind, with words."""
        faults = []
        sizes = self._sizes.update(sum(rank.outcomes["block-size"] for rank in self._ranks))
        if self._breaks.update(sum(rank.breaks for rank in self._ranks)):
            faults.append((EVENTS_LOST, ""))
        if sizes:
            faults.append((EVENTS_BLOCK_SIZE, f"{max(rank.block_tokens for rank in self._ranks)} tokens"))
        if self._missing >= TIMES and self._latest - self._since >= SPREAD_S:
            faults.append((EVENTS_MISSING if self._changed() == self._changes else EVENTS_DIFFER, ""))
        return tuple(faults)

    def _changed(self) -> int:
        return sum(rank.changes for rank in self._ranks)
