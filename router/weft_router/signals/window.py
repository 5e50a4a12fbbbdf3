"""Keep the mean of what happened within the last seconds (AMPD's windowed TTFT and ITL, 10 s by default)."""

from collections import deque

BUCKETS = 20
"""The window moves in steps of a twentieth, so a 10 s window forgets half a second at a time."""


class Window:
    """A sliding mean over buckets; the clock is the caller's."""

    def __init__(self, seconds: float) -> None:
        self._width = seconds / BUCKETS
        self._buckets: deque[list[float]] = deque()

    def add(self, now: float, total: float, count: int = 1) -> None:
        """Record ``count`` samples that sum up to ``total``."""
        index = now // self._width
        if self._buckets and self._buckets[-1][0] == index:
            self._buckets[-1][1] += total
            self._buckets[-1][2] += count
        else:
            self._buckets.append([index, total, count])
        self._forget(now)

    def mean(self, now: float) -> float | None:
        """Return the mean of the samples in the window, None when there is none."""
        self._forget(now)
        count = sum(bucket[2] for bucket in self._buckets)
        return sum(bucket[1] for bucket in self._buckets) / count if count else None

    def rate(self, now: float) -> float:
        """Return the samples per second over the window."""
        self._forget(now)
        return sum(bucket[2] for bucket in self._buckets) / (self._width * BUCKETS)

    def _forget(self, now: float) -> None:
        oldest = now // self._width - BUCKETS
        while self._buckets and self._buckets[0][0] <= oldest:
            self._buckets.popleft()
