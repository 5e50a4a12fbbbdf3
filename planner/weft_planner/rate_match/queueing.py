"""How long prompts wait for the batches of equal servers: Poisson arrivals, first come first served."""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapreplace

import numpy as np

from weft_planner.rate_match.rounds import RoundShape
from weft_planner.workload.distributions import Floats

MOST_BUSY = 0.95
"""Beyond this share of its time a queue takes longer to settle than the sample is long."""
PERCENT = 100


@dataclass(frozen=True, slots=True, eq=False)
class Prefills:
    """Each round's prefill on one server: how long it keeps a batch, and how long its answer takes without waiting."""

    busy: Floats
    answered: Floats
    batches: int

    def rounds_per_s(self, utilisation: float) -> float:
        """Return the rate of one server whose batches are in use for this share of the time."""
        return self.batches * utilisation / float(self.busy.mean())

    def ttft_s(self, utilisation: float, rounds: RoundShape, *, percentile: float, queues: int = 1) -> float:
        """Return a percentile of the TTFT where the next free of ``queues`` batches takes the next prompt."""
        distances = rounds.arrivals * (float(self.busy.mean()) / utilisation / queues)
        return float(np.percentile(waits(self.busy, distances, queues) + self.answered, percentile))

    def most_load(self, most: float, holds: Callable[[float], bool]) -> float | None:
        """Return the highest utilisation in whole percents, up to ``most``, that holds; None where none does."""
        low, high = 0, round(most * PERCENT) + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle / PERCENT) else (low, middle)
        return low / PERCENT if low else None


def waits(busy: Floats, distances: Floats, servers: int) -> Floats:
    """Return the seconds that each arrival waits for the first of ``servers`` that is free (Kiefer and Wolfowitz)."""
    free = [0.0] * servers
    now, found = 0.0, np.empty(len(busy))
    for k, (seconds, distance) in enumerate(zip(busy.tolist(), distances.tolist(), strict=True)):
        now += distance
        start = max(now, free[0])
        heapreplace(free, start + seconds)
        found[k] = start - now
    return found
