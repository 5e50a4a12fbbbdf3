"""Keep the mean of what happened within the last seconds (AMPD's windowed TTFT and ITL, 10 s by default)."""

import math
from collections import deque

BUCKETS = 20
"""The window moves in steps of a twentieth, so a 10 s window forgets half a second at a time."""


class _TimeBucket:
    """The samples of one step; steps are numbered."""

    __slots__ = ("count", "index", "total")

    def __init__(self, index: float) -> None:
        self.index = index
        self.total = 0.0
        self.count = 0.0


class SlidingWindow:
    """A sliding mean over buckets; the clock is the caller's. Each call but those at a step takes constant time."""

    __slots__ = ("_buckets", "_count", "_newest", "_seconds", "_stale_at", "_total", "_until", "_width")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._width = seconds / BUCKETS
        self._buckets: deque[_TimeBucket] = deque()
        self._newest = _TimeBucket(-math.inf)
        self._total = 0.0
        self._count = 0.0
        self._stale_at = math.inf
        self._until = -math.inf
        """When the newest bucket is full of time."""

    def add(self, now: float, total: float, count: float = 1) -> None:
        """Record ``count`` samples that sum up to ``total``."""
        if now >= self._until:
            self._forget(now)
            index = now // self._width
            self._newest = _TimeBucket(index)
            self._buckets.append(self._newest)
            self._stale_at = (self._buckets[0].index + BUCKETS) * self._width
            self._until = (index + 1) * self._width
        newest = self._newest
        newest.total += total
        newest.count += count
        self._total += total
        self._count += count

    def add_run(self, now: float, total: float, count: int) -> None:
        """Record ``count`` equal samples, one after the other, that ended now: the part of them within the window."""
        share = min(1.0, self._seconds / total) if total > 0.0 else 1.0
        self.add(now, total * share, count * share)

    def mean(self, now: float) -> float | None:
        """Return the mean of the samples in the window, None when there is none."""
        if now >= self._stale_at:
            self._forget(now)
        return self._total / self._count if self._count else None

    def rate(self, now: float) -> float:
        """Return the samples per second over the window."""
        if now >= self._stale_at:
            self._forget(now)
        return self._count / self._seconds

    def _forget(self, now: float) -> None:
        """Drop what is too old, and add up the rest anew: differences of large sums would drift."""
        buckets = self._buckets
        oldest = now // self._width - BUCKETS
        while buckets and buckets[0].index <= oldest:
            buckets.popleft()
        if not buckets:
            self._newest = _TimeBucket(-math.inf)
        self._total = math.fsum([bucket.total for bucket in buckets])
        self._count = math.fsum([bucket.count for bucket in buckets])
        self._stale_at = (buckets[0].index + BUCKETS) * self._width if buckets else math.inf
