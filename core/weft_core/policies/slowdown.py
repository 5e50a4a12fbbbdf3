"""Correct a cost profile by what an engine takes: how many times slower it prefills than its profile says.

Each worker compares the prefills of its own engine in the last minute with what was predicted for them. A prediction
may be a range: beside a batch nobody knows how much of the running step is left. The slowdown is the factor by which
predictions have to be multiplied so that the observed times lie least outside their ranges, summed over all: the median
of the bounds that the samples set for it, and 1 where that is among the best. The worker's queue uses it, and its
heartbeat names it, so that every router corrects its predictions for this worker: a profile of another machine, a
throttled GPU or one slow worker of many is allowed for within a minute. What is left of the error is what
``weft_core.policies.trust`` judges.

Hand-worked examples (test_policy_slowdown.py): predicted 0.1 s each, observed 0.2, 0.21, 0.9, 0.19, 0.2 s: the grain of
10 ms makes the median 0.21 / 0.11. Predicted 0.1 to 0.2 s, observed 0.1, 0.12, 0.15, 0.18, 0.2 s: 1.
"""

import math
from collections import deque
from typing import Final

GRAIN_S: Final = 0.01
"""Added to both sides: a few milliseconds on the way to an engine are no slowdown."""
WINDOW_S: Final = 60.0
LEAST: Final = 5
"""Samples of the window without which the profile is believed as it is."""
MOST: Final = 64
LARGEST: Final = 8.0
"""No correction goes further: what is still wrong then is no matter of speed."""


class Slowdown:
    """The slowdown of one engine; times are the caller's, in seconds."""

    __slots__ = ("_factor", "_samples")

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float, float]] = deque(maxlen=MOST)
        """When, and between which factors the prediction was right."""
        self._factor = 1.0

    def observe(self, *, least: float, most: float, observed: float, now: float) -> None:
        """Add a prefill that took ``observed`` seconds; the profile, without correction, said ``least`` to ``most``."""
        if not (0.0 <= least <= most < math.inf and 0.0 <= observed < math.inf):
            return
        took = observed + GRAIN_S
        self._samples.append((now, took / (most + GRAIN_S), took / (least + GRAIN_S)))
        self._judge()

    def factor(self, now: float) -> float:
        """Return observed over predicted seconds: above 1 the engine is slower than its profile, 1.0 without samples.

        Samples are forgotten after a minute, so a worker that is avoided for its slowness is tried again.
        """
        samples = self._samples
        if samples and samples[0][0] < now - WINDOW_S:
            while samples and samples[0][0] < now - WINDOW_S:
                samples.popleft()
            self._judge()
        return self._factor

    def _judge(self) -> None:
        count, factor = len(self._samples), 1.0
        if count >= LEAST:
            bounds = sorted(bound for _, low, high in self._samples for bound in (low, high))
            factor = min(max(factor, bounds[count - 1]), bounds[count])
        self._factor = min(LARGEST, max(1.0 / LARGEST, factor))
