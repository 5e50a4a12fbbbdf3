"""What was asked of the API server and how it answered: counts, and how long it has been in trouble."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from weft_operator.errors import Right

LACK_S = 180.0
"""A right counts as missing for so long after a request was refused for it: a failing pass is repeated each minute."""

log = logging.getLogger(__name__)


class RequestStats:
    """Counts the requests of one connection; may be told from several threads."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._hold_until = float("-inf")
        self._failing_since: float | None = None
        self._writing = 0
        self._lacking: dict[Right, float] = {}

    @property
    def writing(self) -> int:
        """Return how many writes are on their way."""
        with self._lock:
            return self._writing

    @contextmanager
    def under_way(self, method: str) -> Iterator[None]:
        """Have a write counted among those on their way."""
        one = int(method != "GET")
        with self._lock:
            self._writing += one
        try:
            yield
        finally:
            with self._lock:
                self._writing -= one

    @property
    def requests(self) -> Mapping[tuple[str, str, int], int]:
        """Return how many requests were made, by (method, resource, HTTP status; 0 without an answer)."""
        with self._lock:
            return dict(self._requests)

    @property
    def failing_s(self) -> float:
        """Return for how many seconds every request got 429, 5xx or no answer; 0 when the last one was served."""
        with self._lock:
            return 0.0 if self._failing_since is None else self._clock() - self._failing_since

    def count(self, method: str, resource: str, status: int) -> None:
        """Count a request by its answer."""
        with self._lock:
            self._requests[method, resource, status] += 1
            if status not in (0, 429) and status < 500:
                self._failing_since = None
            elif self._failing_since is None:
                self._failing_since = self._clock()
        log.debug("api_request", extra={"method": method, "resource": resource, "status": status})

    @property
    def missing_rights(self) -> frozenset[Right]:
        """Return the rights for the lack of which a request was refused a moment ago."""
        with self._lock:
            since = self._clock() - LACK_S
            return frozenset(right for right, at in self._lacking.items() if at > since)

    def record_missing(self, right: Right) -> None:
        """Remember that a request was refused because this right is missing."""
        with self._lock:
            self._lacking[right] = self._clock()

    def ignore_missing(self, right: Right | None) -> None:
        """Forget a right that the operator does without."""
        with self._lock:
            if right is not None:
                self._lacking.pop(right, None)

    def pause(self, seconds: float) -> None:
        """Ask nothing for some seconds."""
        with self._lock:
            self._hold_until = max(self._hold_until, self._clock() + seconds)

    def pause_left_s(self) -> float:
        """Return for how many seconds nothing may be asked; 0 or less when it may."""
        with self._lock:
            return self._hold_until - self._clock()
