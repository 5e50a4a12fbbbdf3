"""Token buckets: requests per second and tokens per minute for each key, in bounded memory.

A bucket holds ``rate x burst`` and fills evenly. What costs more than a whole bucket passes when the bucket is full and
leaves a debt; so no tenant is refused forever, and no rate is exceeded for long.
"""

import math
from collections import OrderedDict


class _TokenBucket:
    __slots__ = ("at", "level")

    def __init__(self, level: float, at: float) -> None:
        self.level = level
        self.at = at


class TokenBuckets:
    """Buckets by name, each with its owner's current rate; the least recently used are evicted first.

    An evicted bucket begins full again, so ``limit`` stands well above the number of owners that are busy at once.
    """

    def __init__(self, *, limit: int = 20_000) -> None:
        self._limit = limit
        self._buckets: OrderedDict[str, _TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def wait(self, name: str, amount: float, *, rate: float, burst: float, now: float) -> float:
        """Return in how many seconds ``amount`` may be taken, 0 for now; takes nothing."""
        bucket = self._buckets.get(name)
        if bucket is None:
            return 0.0
        size = rate * burst
        level = min(size, bucket.level + rate * max(0.0, now - bucket.at))
        missing = min(amount, size) - level
        return missing / rate if missing > 1e-9 * size else 0.0

    def take(self, name: str, amount: float, *, rate: float, burst: float, now: float) -> None:
        """Take an amount, into debt if necessary; a negative amount is refunded, up to a full bucket."""
        size = rate * burst
        bucket = self._buckets.get(name)
        if bucket is None:
            self._buckets[name] = _TokenBucket(min(size, size - amount), now)
            if len(self._buckets) > self._limit:
                self._buckets.popitem(last=False)
            return
        self._buckets.move_to_end(name)
        if now > bucket.at:
            bucket.level = min(size, bucket.level + rate * (now - bucket.at))
            bucket.at = now
        bucket.level = min(size, bucket.level - amount)


def whole_seconds(wait: float, *, most: int = 3600) -> int:
    """Return a wait as Retry-After has it: whole seconds, at least 1."""
    return min(most, max(1, math.ceil(wait))) if wait == wait else 1
