"""Decide how long an engine keeps the KV of a session that waits for its next round.

vLLM evicts the least recently used KV (``lru``). Continuum (arXiv 2511.02230, sections 4 and 5) gives it a time to live
(``ttl``): until then it is not evicted, later it is as any other. The time is what is worth its memory: keeping KV for
``t`` seconds costs ``t``, and saves ``benefit_s`` if the session returns by then.

The functions are plain arithmetic on sequences, so that the simulator compiles them.
"""

import math
from collections.abc import MutableSequence, Sequence
from typing import Literal

Retention = Literal["lru", "ttl"]
RETENTIONS: tuple[Retention, ...] = ("lru", "ttl")

GAPS = 256
"""Gaps between rounds that are remembered per class."""


def note_gap(recent: MutableSequence[float], ordered: MutableSequence[float], seen: int, gap_s: float) -> None:
    """Remember a gap: ``recent`` has them as they came, the oldest replaced first, ``ordered`` in ascending order.

    Both have room for the same number of gaps; ``seen`` is how many there were before.
    """
    most = len(recent)
    count = min(seen, most)
    place = count
    if count == most:
        place = 0
        while ordered[place] != recent[seen % most]:
            place += 1
    recent[seen % most] = gap_s
    while place > 0 and ordered[place - 1] > gap_s:
        ordered[place] = ordered[place - 1]
        place -= 1
    while place + 1 < count and ordered[place + 1] < gap_s:
        ordered[place] = ordered[place + 1]
        place += 1
    ordered[place] = gap_s


def return_benefit_s(reload_s: float, wait_s: float, memory: float) -> float:
    """Return the seconds that a session saves when it finds its KV: those to compute it again, and to wait for memory.

    ``wait_s``: mean wait of rounds whose KV was evicted; it counts by ``memory`` (``rounds_memory``).
    """
    return reload_s + memory * wait_s


def time_to_live_s(ordered: Sequence[float], count: int, benefit_s: float) -> float:
    """Return the time to live at which P(gap <= t) x benefit - t is largest, 0 where keeping KV is not worth it.

    ``ordered``: the first ``count`` are the observed gaps in ascending order. Before there is one, gaps count as
    exponential with a mean of a second, which has its maximum at ln(benefit).
    """
    if count == 0:
        return math.log(benefit_s) if benefit_s > 1 else 0.0
    best = 0.0
    most = 0.0
    for place in range(count):
        value = (place + 1) / count * benefit_s - ordered[place]
        if value > most:
            most = value
            best = ordered[place]
    return best


def rounds_memory(
    points: int, done: float, left: float, done_squares: float, left_squares: float, products: float
) -> float:
    """Return how far the rounds that a session had tell how many it still has: -Corr(done, left), between 0 and 1.

    The arguments are sums over the rounds of sessions that ended. 1 where all have the same number of rounds: a wait
    delays all that follow. 0 where the rounds behind say nothing of those ahead, and 1 while nothing is known.
    """
    if points == 0:
        return 1.0
    spread = (done_squares - done * done / points) * (left_squares - left * left / points)
    if spread <= 0:
        return 1.0
    return min(1.0, max(0.0, (done * left / points - products) / math.sqrt(spread)))
