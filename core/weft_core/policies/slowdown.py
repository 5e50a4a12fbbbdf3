"""Correct a cost profile by what an engine takes: how many times slower it prefills than its profile says.

Each worker compares the prefills of its own engine with what was predicted for them, and takes the median ratio of the
last minute. Its queue reckons with it, and its heartbeat names it, so that every router corrects its predictions for
this worker: a profile of another machine, a throttled GPU or one slow worker of many is allowed for within a minute.
What is left of the error is what ``weft_core.policies.trust`` judges.

Hand-worked example (test_policy_slowdown.py): predicted 0.1 s each, observed 0.2, 0.21, 0.9, 0.19, 0.2 s: the grain of
10 ms makes the median ratio 0.21 / 0.11.
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
        self._samples: deque[tuple[float, float]] = deque(maxlen=MOST)
        self._factor = 1.0

    def observe(self, *, predicted: float, observed: float, now: float) -> None:
        """Add a prefill that took ``observed`` seconds; ``predicted`` is the profile's figure, without correction."""
        if not (0.0 <= predicted < math.inf and 0.0 <= observed < math.inf):
            return
        self._samples.append((now, (observed + GRAIN_S) / (predicted + GRAIN_S)))
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
        ratios = sorted(ratio for _, ratio in self._samples)
        median = ratios[len(ratios) // 2] if len(ratios) >= LEAST else 1.0
        self._factor = min(LARGEST, max(1.0 / LARGEST, median))
