"""Count whose turn it is in an engine, and tell when the next task goes there: shortly before the last should be done.

A reply and the next request take some milliseconds on their way. An engine that is given one prefill at a time would
idle meanwhile; a decode engine would put a whole decode step in between. So the next task goes to the engine early and
waits for its turn there. Not earlier than needed: who is next is decided then, and a more urgent task may still come.

A task that has history to read goes there one turn earlier still. An engine looks for new requests between its steps,
and a prefill is one long step: what is there when it begins is read while it is computed, what comes later is not.
"""

import math
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from weft_core.heartbeat import QueueEntry

ALWAYS: Final = float("-inf")
NEVER: Final = float("inf")
LEAD_S = 0.05
LEAD_SHARE = 0.25
"""How early: the longer of LEAD_S and this share of the prediction, for an engine may be faster than its profile."""


@dataclass(slots=True, eq=False)
class EngineSlot:
    """A task in the engine, predicted to take ``seconds``; ``began`` is None while it waits there for its turn.

    ``done`` of its tokens were computed in slices so far. ``on_begin`` hears when a turn that was waited for begins.
    ``reads_from`` is when the turn before began, if the task was there by then: since then its history can be read.
    """

    entry: QueueEntry
    seconds: float
    began: float | None = None
    done: int = 0
    on_begin: Callable[[], None] | None = None
    reads_from: float | None = None

    @property
    def due(self) -> float:
        """Return when the next task may go to the engine because of this one."""
        if self.began is None:
            return NEVER
        return self.began + self.seconds - max(LEAD_S, LEAD_SHARE * self.seconds)


class EngineSlots:
    """The tasks sent to one engine: up to ``places`` run, and as many wait in the engine.

    Twice as many wait if the last of them have history to read.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._engine_slots: dict[EngineSlot, None] = {}
        """In the order in which they went to the engine."""
        self._working = 0
        """How many of them run; no prefill waits while there are fewer than places."""

    def __len__(self) -> int:
        """Return how many tasks the engine has."""
        return len(self._engine_slots)

    def __iter__(self) -> Iterator[EngineSlot]:
        """Yield the tasks in the order in which they went to the engine."""
        return iter(self._engine_slots)

    def due(self, *, reads: bool = False) -> float:
        """Return the time from which the engine can take one more task; infinite while it has enough.

        ``reads``: one that has history to read.
        """
        waiting = len(self._engine_slots) - self._working
        if self._working < self._places:
            return ALWAYS
        if waiting >= (2 * self._places if reads else self._places):
            return NEVER
        working = sorted(engine_slot.due for engine_slot in self._engine_slots if engine_slot.began is not None)
        return working[waiting % self._places]

    def ends(self, engine_slot: EngineSlot, *, now: float) -> float:
        """Return when a task should be done by the predictions, the one whose place it takes over included."""
        if engine_slot.began is not None:
            return engine_slot.began + engine_slot.seconds
        free = sorted(max(now, other.began + other.seconds) for other in self._engine_slots if other.began is not None)
        for early in self._engine_slots:
            if early.began is None:
                end = free.pop(0) + early.seconds
                if early is engine_slot:
                    return end
                insort(free, end)
        return math.inf  # it is over

    def add(self, entry: QueueEntry, seconds: float, *, now: float) -> EngineSlot:
        """Note that the engine is given a task; its turn begins at once where a place is free."""
        engine_slot = EngineSlot(entry, seconds)
        if self._working < self._places:
            self._working += 1
            engine_slot.began = now
        self._engine_slots[engine_slot] = None
        return engine_slot

    def end(self, engine_slot: EngineSlot, *, now: float) -> None:
        """Take a task out; the turn of the one that has waited longest begins."""
        del self._engine_slots[engine_slot]
        if engine_slot.began is None:
            return
        if self._working > len(self._engine_slots):  # nobody waits
            self._working -= 1
            return
        following, *others = [other for other in self._engine_slots if other.began is None]
        following.began = now
        for other in others:
            if other.reads_from is None:
                other.reads_from = now
        if following.on_begin is not None:
            following.on_begin()
