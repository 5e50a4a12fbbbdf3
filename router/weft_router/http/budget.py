"""Bound what all clients of a process together make it hold: heads and bodies under way, requests, unread answers.

The bounds on one client do not add up to a bound on the process: ten thousand connections that send 64 KB each and no
more are 640 MB. So all bytes are counted in one place. Where there is no room, whoever has held unfinished bytes for
the longest time makes room: a request or an answer that gets on is seldom the oldest.
"""

import sys
from typing import Final

from weft_router.http.exchange import ClientTransport

EACH: Final = 4096
"""What a request takes besides its body, about."""
SMALL: Final = 64
"""A request is small that takes no more than one part of so many: a quarter of the budget is for those alone."""
COPIES: Final = 2
"""Its body is held as what was read from it, and as what is sent on."""


class Budget:
    """The bytes of one process; ``limit`` is how many its clients may make it hold."""

    __slots__ = ("_loose", "_unfinished", "limit", "refused", "shed", "used")

    def __init__(self, limit: int = sys.maxsize) -> None:
        self.limit = limit
        self.used = 0
        self.refused = 0
        """Requests for which there was no room."""
        self.shed = 0
        """Clients that had to make room."""
        self._unfinished: dict[ClientTransport, int] = {}
        """Bytes that may be discarded, by holder, the oldest first."""
        self._loose = 0
        """The sum of that."""

    def _most(self, size: int) -> int:
        """Return the budget for a request of this size: large requests leave a share to small ones."""
        return self.limit if size <= self.limit // SMALL else self.limit // 4 * 3

    def acquire(self, size: int, holder: ClientTransport) -> bool:
        """Reserve bytes; return False, and reserve nothing, where the budget has no room.

        Unfinished bytes of other holders are discarded to make room, those of ``holder`` are not.
        """
        if self.used + size > self._most(size) and not self._make_room(size, holder):
            self.refused += 1
            return False
        self.used += size
        return True

    def record(self, size: int, holder: ClientTransport) -> None:
        """Count bytes that are already held, such as an unread answer; others are asked to make room."""
        if self.used + size > self.limit:
            self._make_room(size, holder)
        self.used += size

    def release(self, size: int) -> None:
        """Count bytes that are held no longer."""
        self.used -= size

    def unfinished(self, size: int, holder: ClientTransport) -> None:
        """Set how many of the counted bytes of a holder may be discarded; 0 for none."""
        self._loose += size - self._unfinished.get(holder, 0)
        if size:
            self._unfinished[holder] = size  # which keeps its place
        else:
            self._unfinished.pop(holder, None)

    def fits(self, body: int) -> bool:
        """Return whether there is room for a request with a body of so many bytes, or can be made."""
        size = EACH + COPIES * body
        return self.used - self._loose + size <= self._most(size)

    @property
    def largest(self) -> int:
        """Return the longest body for which there is ever room."""
        return (self.limit // 4 * 3 - EACH) // COPIES

    def _make_room(self, size: int, holder: ClientTransport) -> bool:
        unfinished, most = self._unfinished, self._most(size)
        if self.used - self._loose + unfinished.get(holder, 0) + size > most:
            return False
        while self.used + size > most:
            oldest = next((other for other in unfinished if other is not holder), None)
            if oldest is None:
                return False
            self.unfinished(0, oldest)
            self.shed += 1
            oldest.shed()
        return True
