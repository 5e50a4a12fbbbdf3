"""A lease term: writes are allowed only while the Lease is held."""

import threading
import time
from collections.abc import Callable

from weft_operator.errors import NotLeaderError


def steady_clock() -> float:
    """Return seconds of a clock that advances while the process is stopped or the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class LeaseTerm:
    """Checked by every write just before its bytes are sent, from any thread.

    A replica that was stopped, or could not renew, ends its term by the clock alone. A later leadership of the same
    process is another term, so work that was started under this one stays refused.
    """

    def __init__(self, until: float, *, clock: Callable[[], float] = steady_clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until = until
        self._over = False

    def extend(self, until: float) -> None:
        """Extend the term to a time of the clock.

        Raises:
            NotLeaderError: it is over already.
        """
        self.check()
        with self._lock:
            self._until = max(self._until, until)

    def end(self) -> None:
        """End the term for good."""
        with self._lock:
            self._over = True

    @property
    def holds(self) -> bool:
        """Return whether the term still lasts."""
        with self._lock:
            self._over = self._over or self._clock() >= self._until
            return not self._over

    def check(self) -> None:
        """Allow a write.

        Raises:
            NotLeaderError: the term is over.
        """
        if not self.holds:
            raise NotLeaderError("this replica does not lead any more; nothing is written")
