"""When sessions begin, in units of the mean distance between two: after time 0 and before it.

Positions do not depend on the rate. Dividing them by it gives the same arrivals at every rate, closer or wider.
"""

from dataclasses import dataclass

import numpy as np

from weft_planner.workload.distributions import Floats

_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class RenewalArrivals:
    """Independent distances, Gamma distributed with this coefficient of variation; 1 is a Poisson process."""

    variation: float = 1.0

    def positions(self, *key: int, back: float, ahead: float) -> tuple[Floats, Floats]:
        """Return (distances into the past up to ``back``, positions below ``ahead``), both rising from time 0.

        Time 0 is a random moment of a process that has always run. The same ``key`` gives the same arrivals,
        whatever the extents.
        """
        age, residual = self._around_zero(np.random.default_rng([*key, 0]))
        past = self._walk(np.random.default_rng([*key, 1]), age, back)
        return past, self._walk(np.random.default_rng([*key, 2]), residual, ahead)

    def _walk(self, rng: np.random.Generator, first: float, extent: float) -> Floats:
        blocks = [np.array([first])]
        while blocks[-1][-1] < extent:
            blocks.append(blocks[-1][-1] + np.cumsum(self._distances(rng, _BLOCK)))
        found: Floats = np.concatenate(blocks)
        return found[found < extent]

    def _distances(self, rng: np.random.Generator, size: int) -> Floats:
        if self.variation == 0:
            return np.ones(size)
        shape = self.variation**-2
        return rng.gamma(shape, 1 / shape, size)

    def _around_zero(self, rng: np.random.Generator) -> tuple[float, float]:
        """Return how long before and after a random moment the next arrivals are: long distances hold more moments."""
        part = float(rng.random())
        whole = 1.0
        if self.variation > 0:
            shape = self.variation**-2
            whole = float(rng.gamma(shape + 1, 1 / shape))
        return part * whole, (1 - part) * whole


@dataclass(frozen=True, slots=True)
class ReplayedArrivals:
    """Recorded moments in seconds, rising; time 0 is the first, and the record repeats when it ends."""

    timestamps: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Return the recorded arrivals per second; the turn of the record takes one mean distance."""
        span = self.timestamps[-1] - self.timestamps[0]
        return (len(self.timestamps) - 1) / span

    def positions(self, *key: int, back: float, ahead: float) -> tuple[Floats, Floats]:
        """Return (distances into the past up to ``back``, positions below ``ahead``); ``key`` changes nothing."""
        del key
        count = len(self.timestamps)
        cycle = (np.array(self.timestamps) - self.timestamps[0]) * self.rate
        turns = np.arange(int(ahead // count) + 1)
        found = (turns[:, None] * count + cycle[None, :]).ravel()
        turns_back = np.arange(1, int(back // count) + 2)
        past = (turns_back[:, None] * count - cycle[None, ::-1]).ravel()
        return past[past <= back], found[found < ahead]


Arrivals = RenewalArrivals | ReplayedArrivals
