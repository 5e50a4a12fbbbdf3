"""Decide how long an engine keeps the KV of a session that waits for its next round.

vLLM evicts the least recently used KV (``lru``). Continuum (arXiv 2511.02230, sections 4 and 5) gives it a time to live
(``ttl``): until then it is not evicted, later it is as any other. The time is what is worth its memory: keeping KV for
``t`` seconds costs ``t``, and saves ``benefit_s`` if the session returns by then.

``value`` evicts the KV that is worth least (``kv_value``): what the next round saves if the KV is still there, times
how soon that round is expected (``return_rate``), for each token. What is expected is learned from the gaps of sessions
alike, such as those of a class that wait for the same tool.

The functions are plain arithmetic on sequences, so that the simulator compiles them.
"""

import math
from collections.abc import MutableSequence, Sequence
from typing import Final, Literal

Retention = Literal["lru", "ttl", "value"]
RETENTIONS: tuple[Retention, ...] = ("lru", "ttl", "value")

GAPS = 256
"""Gaps between rounds that are remembered per class."""

SHORTEST_S: Final = 0.25
"""Gaps are counted in buckets from here on; shorter ones count as this long."""
RATIO: Final = math.sqrt(2.0)
"""Each bucket ends at so many times its beginning."""
LOG_RATIO: Final = math.log(2.0) / 2
BUCKETS: Final = 28
"""Buckets up to 4,096 s; one more counts longer gaps, and sessions that did not return."""
LATEST: Final = 512.0
"""Gaps that count: with more, all counts are halved, so that the latest count most."""
GUESS: Final = 0.25
"""What each bucket counts beside the gaps that were seen. Gaps spread so return ever more slowly, so that before any
was seen the longest idle KV is worth least."""
NEVER: Final = 4 * GUESS
"""The same for the last bucket."""
WAITING_RATE: Final = 1000.0
"""Return rate of a session whose round is there and waits for memory: more than any gap gives."""


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


def note_return(returns: MutableSequence[float], gap_s: float) -> None:
    """Count a gap between two rounds in its bucket of ``returns``, ``BUCKETS`` and one; infinite: no round followed."""
    end = SHORTEST_S * RATIO
    place = 0
    while place < BUCKETS and gap_s >= end:
        end *= RATIO
        place += 1
    returns[place] += 1.0
    seen = 0.0
    for at in range(BUCKETS + 1):
        seen += returns[at]
    if seen > LATEST:
        for at in range(BUCKETS + 1):
            returns[at] /= 2


def return_rate(returns: Sequence[float], idle_s: float, within_s: float) -> float:
    """Return how many returns a second of keeping KV brings, of a session that is idle for ``idle_s`` now.

    KV is kept to the best time, of the ends of buckets and ``within_s`` from now: expected returns up to there over the
    expected seconds until the session returns or that time is over. Within a bucket gaps count as spread evenly by
    their logarithm.
    """
    start = max(idle_s, SHORTEST_S)
    last = start + within_s
    left = returns[BUCKETS] + NEVER
    for place in range(BUCKETS):
        left += returns[place] + GUESS
    begin = SHORTEST_S
    came = 0.0
    held = 0.0
    best = 0.0
    for place in range(BUCKETS):
        end = begin * RATIO
        dense = (returns[place] + GUESS) / LOG_RATIO
        if end <= start:
            left -= dense * LOG_RATIO
        else:
            if start > begin:
                left -= dense * math.log(start / begin)
                begin = start
            until = min(end, last)
            if until <= begin:
                break
            count = dense * math.log(until / begin)
            left -= count
            held += (left + count / 2) * (until - begin)
            came += count
            best = max(best, came / held)
            if last <= end:
                break
        begin = end
    return best


def kv_value(rate: float, kept_s: float, lost_s: float, tokens: float) -> float:
    """Return what keeping KV where it is saves, in seconds of work for each token of memory and second of keeping it.

    ``rate``: the session's return rate; ``kept_s``: to have the KV for a round from where it is, 0 on the GPU;
    ``lost_s``: to load it from where it would go, or to compute it again.
    """
    return rate * max(0.0, lost_s - kept_s) / max(tokens, 1.0)
