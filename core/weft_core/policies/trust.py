"""Tell whether predicted TTFTs are near enough to the observed ones to decide by them, and change one's mind slowly.

An error is |log(observed / predicted)|, both with a grain of the TTFT SLO added, so that being off by milliseconds
where seconds are allowed is none. Each kind of option (local, remote) has a window of its own, and its error is the
median: one slow worker or one hiccup does not count, a profile of another machine does. Trust is lost when a kind with
enough samples is off by more than ``bound`` and comes back, after ``hold_s`` at least, when every kind is within
``back``. A kind that is not chosen any more is forgotten with its window, so it gets another try.

Hand-worked example (test_policy_trust.py): SLO 2 s, grain 0.1 s: predicted 0.1 s, observed 0.5 s is off by a factor of
0.6 / 0.2 = 3.
"""

import math
from collections import deque

GRAIN = 0.05
"""Of the TTFT SLO: what a prediction may be off without any consequence for who meets it."""
LOST_EVERY = 4
"""Medians are worked out for every so many samples: a sort of a hundred figures is as dear as a decision."""


class Trust:
    """The record of one rule's predictions; times are the caller's, in seconds."""

    def __init__(
        self,
        *,
        ttft_slo: float,
        bound: float = 2.0,
        back: float = 1.5,
        window_s: float = 60.0,
        hold_s: float = 30.0,
        least: int = 20,
        most: int = 128,
    ) -> None:
        """Trust at first; ``least`` samples of a kind are needed for a judgement, its last ``most`` are kept."""
        self._grain = GRAIN * ttft_slo
        self._bound = math.log(bound)
        self._back = math.log(back)
        self._window_s = window_s
        self._hold_s = hold_s
        self._least = least
        self._most = most
        self._seen: dict[str, deque[tuple[float, float]]] = {}
        self._count = 0
        self._since = -math.inf
        self._look_at = -math.inf
        self._trusted = True

    def note(self, kind: str, *, predicted: float, observed: float, now: float) -> None:
        """Add one round's first token; a prediction that was not made says nothing."""
        if not (math.isfinite(predicted) and math.isfinite(observed)):
            return
        ratio = (max(0.0, observed) + self._grain) / (max(0.0, predicted) + self._grain)
        samples = self._seen.get(kind)
        if samples is None:
            samples = self._seen[kind] = deque(maxlen=self._most)
        samples.append((now, abs(math.log(ratio))))
        self._count += 1
        if self._count % LOST_EVERY == 0:
            self._judge(now)

    def trusted(self, now: float) -> bool:
        """Return whether to decide by predictions now."""
        if not self._trusted and now >= self._look_at:
            self._judge(now)
        return self._trusted

    def error(self, kind: str, now: float) -> float:
        """Return how many times off a kind's predictions are (1: not at all), NaN without enough samples."""
        found = self._error(kind, now)
        return math.exp(found) if found == found else math.nan

    def _error(self, kind: str, now: float) -> float:
        samples = self._seen.get(kind, deque())
        while samples and samples[0][0] < now - self._window_s:
            samples.popleft()
        if len(samples) < self._least:
            return math.nan
        errors = sorted(error for _, error in samples)
        return errors[len(errors) // 2]

    def _judge(self, now: float) -> None:
        self._look_at = now + 1.0
        errors = [self._error(kind, now) for kind in self._seen]
        if self._trusted:
            if any(error > self._bound for error in errors):
                self._trusted, self._since = False, now
        elif now - self._since >= self._hold_s and not any(error > self._back for error in errors):
            self._trusted = True
            self._seen.clear()
