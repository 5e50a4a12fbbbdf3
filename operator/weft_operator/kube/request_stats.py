"""Statistics of requests to the API server: counts by result, how long it has been failing, missing rights, pauses."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from weft_operator.errors import Right

MISSING_RIGHT_S = 180.0
"""How long a right counts as missing after a refused request: a failing pass is repeated every minute."""

log = logging.getLogger(__name__)


class RequestStats:
    """Statistics of the requests of one connection; thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._paused_until = float("-inf")
        self._failing_since: float | None = None
        self._writes_in_flight = 0
        self._missing: dict[Right, float] = {}

    @property
    def writes_in_flight(self) -> int:
        """Return how many writes are in flight."""
        with self._lock:
            return self._writes_in_flight

    @contextmanager
    def in_flight(self, method: str) -> Iterator[None]:
        """Count a request as in flight if it is a write."""
        one = int(method != "GET")
        with self._lock:
            self._writes_in_flight += one
        try:
            yield
        finally:
            with self._lock:
                self._writes_in_flight -= one

    @property
    def requests(self) -> Mapping[tuple[str, str, int], int]:
        """Return how many requests were made, by (method, resource, HTTP status; 0 without an answer)."""
        with self._lock:
            return dict(self._requests)

    @property
    def failing_s(self) -> float:
        """Return for how many seconds all requests have failed with 429, 5xx or no answer; 0 after any other result."""
        with self._lock:
            return 0.0 if self._failing_since is None else self._clock() - self._failing_since

    def count(self, method: str, resource: str, status: int) -> None:
        """Count a request by its status."""
        with self._lock:
            self._requests[method, resource, status] += 1
            if status not in (0, 429) and status < 500:
                self._failing_since = None
            elif self._failing_since is None:
                self._failing_since = self._clock()
        log.debug("api_request", extra={"method": method, "resource": resource, "status": status})

    @property
    def missing_rights(self) -> frozenset[Right]:
        """Return the rights whose lack made a recent request fail."""
        with self._lock:
            since = self._clock() - MISSING_RIGHT_S
            return frozenset(right for right, at in self._missing.items() if at > since)

    def record_missing(self, right: Right) -> None:
        """Record that a request was refused because this right is missing."""
        with self._lock:
            self._missing[right] = self._clock()

    def ignore_missing(self, right: Right | None) -> None:
        """Stop reporting a right that the operator can do without, or that was granted."""
        with self._lock:
            if right is not None:
                self._missing.pop(right, None)

    def pause(self, seconds: float) -> None:
        """Send no request for some seconds."""
        with self._lock:
            self._paused_until = max(self._paused_until, self._clock() + seconds)

    def pause_left_s(self) -> float:
        """Return for how many seconds no request may be sent; 0 or less when requests may be sent."""
        with self._lock:
            return self._paused_until - self._clock()
