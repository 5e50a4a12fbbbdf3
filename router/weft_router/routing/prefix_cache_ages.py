"""Tell since when the prompts that a prefill worker computed must still be in its engine's prefix cache.

An engine gives up what was used least recently once its KV memory is full. Each worker's heartbeat counts the tokens
that its prefills put there; so a prompt lasts until as many tokens came after it as the memory holds beside running
requests. With a new instance id the count, and the cache, begin again.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Final

from weft_core.heartbeat import WorkerRecord
from weft_router.sessions.session import CachedPrompt

SAMPLES: Final = 32
"""The count is noted this often while it grows by what the memory holds."""


class _Cache:
    """One worker's: when its count was how high, oldest first; the first is the oldest that the memory still holds."""

    __slots__ = ("instance_id", "samples")

    def __init__(self, instance_id: str) -> None:
        self.instance_id = instance_id
        self.samples: deque[tuple[float, int]] = deque()


class PrefixCacheAges:
    """What one decode worker knows of the ages of all prefill workers' prefix caches."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._caches: dict[str, _Cache] = {}

    def observe(self, records: Sequence[WorkerRecord]) -> None:
        """Take in the latest heartbeats of all workers; those of others are forgotten."""
        now, before = self._clock(), self._caches
        self._caches = {}
        for record in records:
            cache = before.get(record.worker)
            if cache is None or cache.instance_id != record.instance_id:
                cache = _Cache(record.instance_id)
            self._caches[record.worker] = cache
            samples, taken = cache.samples, record.kv_intake
            room = max(0, record.capacity - record.kv_used) if record.capacity > 0 else math.inf
            if not samples or taken - samples[-1][1] > room / SAMPLES:
                samples.append((now, taken))
            while len(samples) > 1 and taken - samples[0][1] > room:
                samples.popleft()

    def cached(self, prompts: Mapping[str, CachedPrompt]) -> dict[str, int]:
        """Return the tokens of a session's prompts that prefill workers must still have, by worker."""
        found: dict[str, int] = {}
        for worker, prompt in prompts.items():
            cache = self._caches.get(worker)
            if cache is not None and prompt.at >= cache.samples[0][0]:
                found[worker] = prompt.tokens
        return found
