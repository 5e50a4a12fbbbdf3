"""Judge whether predicted TTFTs are near enough to the observed ones to decide by them, and correct those that are not.

An error is |log(observed / predicted)|, both with a grain of the TTFT SLO added, so that being off by milliseconds
where seconds are allowed is none. Each kind of option (local, remote) has a window of its own, and its error is the
median: one slow worker or one hiccup does not count, a profile of another machine does. Trust is lost when a kind with
enough samples is off by more than ``bound`` and comes back, after ``hold_s`` at least, when every kind is within
``back``. A kind that is not chosen any more is forgotten with its window, so it gets another try.

Without trust each kind's predictions are multiplied by its median ratio of observed to predicted: a prefill worker that
is later than predicted gets less work, and with it its ratio falls again. To stop predicting instead, and to send all
prefills to the shortest queue, overloads a few prefill workers beyond recovery.

Hand-worked example (test_policy_trust.py): SLO 2 s, grain 0.1 s: predicted 0.1 s, observed 0.5 s is off by a factor of
0.6 / 0.2 = 3.
"""

import math
from collections import deque

LARGEST = 8.0
"""No correction goes further."""
GRAIN = 0.05
"""Of the TTFT SLO: what a prediction may be off without any consequence for who meets it."""


class _Samples:
    """The latest log ratios of one kind of option, and how many of them are above either threshold, up or down.

    A median is above a threshold when half of the samples are, so nothing has to be sorted for a judgement.
    """

    __slots__ = ("_back", "_bound", "_most", "above_back", "above_bound", "seen")

    def __init__(self, *, bound: float, back: float, most: int) -> None:
        self._bound = bound
        self._back = back
        self._most = most
        self.seen: deque[tuple[float, float]] = deque()
        self.above_bound = 0
        self.above_back = 0

    def add(self, now: float, log_ratio: float) -> None:
        """Take a sample; the oldest makes room for it."""
        seen, error = self.seen, abs(log_ratio)
        if len(seen) >= self._most:
            self._drop()
        seen.append((now, log_ratio))
        if error > self._back:
            self.above_back += 1
            if error > self._bound:
                self.above_bound += 1

    def forget(self, oldest: float) -> int:
        """Forget samples from before ``oldest``, and return how many are left."""
        seen = self.seen
        while seen and seen[0][0] < oldest:
            self._drop()
        return len(seen)

    def _drop(self) -> None:
        error = abs(self.seen.popleft()[1])
        if error > self._back:
            self.above_back -= 1
            if error > self._bound:
                self.above_bound -= 1


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
        """Trust at first; ``least`` samples of a kind are needed for a judgement, its last ``most`` are kept.

        ``back`` is the stricter of the two thresholds.
        """
        self._grain = GRAIN * ttft_slo
        self._bound = math.log(bound)
        self._back = math.log(back)
        self._window_s = window_s
        self._hold_s = hold_s
        self._least = least
        self._most = most
        self._kinds: dict[str, _Samples] = {}
        self._since = -math.inf
        self._look_at = -math.inf
        self._trusted = True

    def note(self, kind: str, *, predicted: float, observed: float, now: float) -> None:
        """Add one round's first token; a prediction that was not made says nothing."""
        if not (-math.inf < predicted < math.inf and -math.inf < observed < math.inf):
            return
        grain = self._grain
        ratio = ((observed if observed > 0.0 else 0.0) + grain) / ((predicted if predicted > 0.0 else 0.0) + grain)
        samples = self._kinds.get(kind)
        if samples is None:
            samples = self._kinds[kind] = _Samples(bound=self._bound, back=self._back, most=self._most)
        samples.add(now, math.log(ratio))
        if not self._trusted:
            self._reconsider(now)
        elif samples.above_bound:
            count = samples.forget(now - self._window_s)
            if count >= self._least and 2 * samples.above_bound >= count:
                self._trusted, self._since = False, now

    def trusted(self, now: float) -> bool:
        """Return whether to decide by predictions now."""
        if not self._trusted and now >= self._look_at:
            self._reconsider(now)
        return self._trusted

    def error(self, kind: str, now: float) -> float:
        """Return how many times off a kind's predictions are (1: not at all), NaN without enough samples."""
        samples = self._kinds.get(kind)
        if samples is None or samples.forget(now - self._window_s) < self._least:
            return math.nan
        errors = sorted(abs(log_ratio) for _, log_ratio in samples.seen)
        return math.exp(errors[len(errors) // 2])

    def correction(self, kind: str, now: float) -> float:
        """Return what to multiply a kind's predictions by: 1 while they are trusted, or too few were judged."""
        samples = self._kinds.get(kind)
        if self.trusted(now) or samples is None or samples.forget(now - self._window_s) < self._least:
            return 1.0
        ratios = sorted(log_ratio for _, log_ratio in samples.seen)
        return min(LARGEST, max(1.0 / LARGEST, math.exp(ratios[len(ratios) // 2])))

    def _reconsider(self, now: float) -> None:
        """Trust again when the time is over and no kind with enough samples is off any more."""
        self._look_at = now + 1.0
        if now - self._since < self._hold_s:
            return
        for samples in self._kinds.values():
            count = samples.forget(now - self._window_s)
            if count >= self._least and 2 * samples.above_back >= count:
                return
        self._trusted = True
        self._kinds.clear()
