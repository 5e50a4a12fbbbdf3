"""How much of each session's last round its engine still keeps: exact to STRIDE blocks, never more than there is."""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

MAX_SESSIONS: Final = 10_000
STRIDE: Final = 8
"""Every so many blocks of a session one is remembered: for 32k tokens in blocks of 16, 2 KB."""


class SessionBlocks:
    """The keys of some blocks of each session's last round; bounded, the sessions of longest ago go first."""

    def __init__(self, *, limit: int = MAX_SESSIONS) -> None:
        """Remember at most ``limit`` sessions."""
        self._limit = limit
        self._keys: OrderedDict[str, array[int]] = OrderedDict()

    def record(self, session: str, keys: Sequence[int]) -> None:
        """Remember the blocks of a session's prompt and answer."""
        self._keys[session] = array("Q", keys[STRIDE - 1 :: STRIDE])
        self._keys.move_to_end(session)
        if len(self._keys) > self._limit:
            self._keys.popitem(last=False)

    def kept(self, session: str, whole: Callable[[int], bool]) -> int | None:
        """Return how many blocks are kept; ``whole`` says of a block whether it and all before it are.

        None where nothing is known to be gone: all are kept, or the session is not remembered.
        """
        keys = self._keys.get(session)
        if keys is None or not keys or whole(keys[-1]):
            return None
        low, high = 0, len(keys) - 1
        while low < high:
            middle = (low + high) // 2
            if whole(keys[middle]):
                low = middle + 1
            else:
                high = middle
        return low * STRIDE
