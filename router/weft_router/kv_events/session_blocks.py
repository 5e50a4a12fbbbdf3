"""The KV blocks of each session's last round: how much of it the engine still keeps, and where each block is.

Every block of the latest sessions is remembered, as many as MAX_KEYS allow; of older sessions every eighth.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

MAX_SESSIONS: Final = 10_000
MAX_KEYS: Final = 2_000_000
"""Blocks of sessions of which all are remembered, 8 bytes each: twice those of an index, as sessions share blocks."""
STRIDE: Final = 8
"""Every so many blocks of an older session one is remembered: for 32k tokens in blocks of 16, 2 KB."""


class SessionBlocks:
    """The keys of the blocks of each session's last round; bounded, the sessions of longest ago go first."""

    def __init__(self, *, limit: int = MAX_SESSIONS, keys: int = MAX_KEYS) -> None:
        """Remember at most ``limit`` sessions, and all blocks of the latest ones up to so many ``keys``."""
        self._limit = limit
        self._most_keys = keys
        self._all: OrderedDict[str, array[int]] = OrderedDict()
        self._some: OrderedDict[str, array[int]] = OrderedDict()
        """Every STRIDE-th key of sessions that are older than all others."""
        self._count = 0
        """Keys in ``_all``."""

    def record(self, session: str, keys: Sequence[int]) -> None:
        """Remember the blocks of a session's prompt and answer."""
        self._some.pop(session, None)
        self._count += len(keys) - len(self._all.pop(session, ()))
        self._all[session] = array("Q", keys)
        while self._count > self._most_keys:
            older, found = self._all.popitem(last=False)
            self._count -= len(found)
            self._some[older] = found[STRIDE - 1 :: STRIDE]
        if len(self._all) + len(self._some) > self._limit:
            if self._some:
                self._some.popitem(last=False)
            else:
                self._count -= len(self._all.popitem(last=False)[1])

    def keys(self, session: str) -> Sequence[int] | None:
        """Return the keys of all blocks of a session; None where not all are remembered."""
        return self._all.get(session)

    def some_keys(self, session: str) -> Sequence[int]:
        """Return the key of every STRIDE-th block of a session, none where it is not remembered."""
        found = self._all.get(session)
        return self._some.get(session, ()) if found is None else found[STRIDE - 1 :: STRIDE]

    def kept(self, session: str, whole: Callable[[int], bool]) -> int | None:
        """Return how many blocks are kept; ``whole``: whether a block and all before it are.

        Of older sessions it is a multiple of STRIDE. None where nothing is known to be gone: all are kept, or the
        session is not remembered. The last few blocks do not count: their events may still be under way.
        """
        keys = self.some_keys(session)
        if not keys or whole(keys[-1]):
            return None
        found = self._all.get(session)
        keys, step = (keys, STRIDE) if found is None else (found, 1)
        low, high = 0, len(keys) - 1
        while low < high:
            middle = (low + high) // 2
            if whole(keys[middle]):
                low = middle + 1
            else:
                high = middle
        return low * step
