"""Let as many queued prefills as possible meet their TTFT: Moore-Hodgson over the whole queue, with ageing.

Moore's algorithm (1968) is exact for the number of on-time tasks on one worker: take tasks by deadline, and whenever
one would be late drop the longest taken so far. Next runs the kept task with the earliest deadline; when none can be
on time, the oldest. Dropped tasks wait, so the oldest task of the queue counts how often it was passed over, and at
``cap`` it runs next, on time or not: a task at place k waits for at most (k + 1)(cap + 1) others, and no more than one
dispatch in cap + 1 goes to tasks that are late, however long an overload lasts. Tasks whose session has missed its SLO
already (``lost``) can be left to that rule as well; it favours sessions that can still be saved.

Hand-worked example (test_policy_orders.py): SLO 3 s, all just come: 2, 1.5, 1 s: the first two take 3.5 s, so the 2 s
task is dropped; 1.5 and 1 s are met: next is the second.
"""

from collections.abc import MutableSequence, Sequence
from heapq import heappush, heapreplace

from weft_core.policies.parameter import Parameter

SOURCE = "Moore 1968 (Moore-Hodgson); ageing ours"
CAP = Parameter("ageingCap", 16, 1, 1e6, "dispatches", "how often the oldest task is passed over before it runs next")
UNSORTED = -2
NOBODY = -1


def first_in_time(
    places: Sequence[int],
    now: float,
    seconds: Sequence[float],
    enqueued: Sequence[float],
    ttft_slo: Sequence[float],
    lost: Sequence[int],
) -> int:
    """Return the kept task that is due first, NOBODY without one; ``places`` go by deadline, UNSORTED when they do not.

    O(q log q); a task that is longer than all kept ones and late costs one comparison.
    """
    kept = [(0.0, 0)]
    kept.clear()
    work = now
    last = -1e300
    for i in places:
        due = enqueued[i] + ttft_slo[i]
        if due < last:
            return UNSORTED
        last = due
        p = seconds[i]
        if lost[i] != 0:
            continue
        if work + p <= due:
            work += p
            heappush(kept, (-p, i))
        elif len(kept) > 0 and -kept[0][0] > p:
            work += p + kept[0][0]
            heapreplace(kept, (-p, i))
    best = NOBODY
    earliest = 0.0
    for item in kept:
        i = item[1]
        due = enqueued[i] + ttft_slo[i]
        if best == NOBODY or due < earliest or (due == earliest and i < best):
            best = i
            earliest = due
    return best


def by_deadline(enqueued: Sequence[float], ttft_slo: Sequence[float]) -> list[int]:
    """Return the queue's places by deadline, the earlier place first among equals."""
    due = [(enqueued[i] + ttft_slo[i], i) for i in range(len(enqueued))]
    due.sort()
    return [item[1] for item in due]


def next_moore_hodgson(
    now: float,
    seconds: Sequence[float],
    enqueued: Sequence[float],
    ttft_slo: Sequence[float],
    postponed: MutableSequence[int],
    lost: Sequence[int],
    cap: int,
) -> int:
    """Return the task to run next; count it when the oldest is passed over."""
    if postponed[0] >= cap:
        return 0
    chosen = first_in_time(range(len(seconds)), now, seconds, enqueued, ttft_slo, lost)
    if chosen == UNSORTED:
        chosen = first_in_time(by_deadline(enqueued, ttft_slo), now, seconds, enqueued, ttft_slo, lost)
    if chosen <= 0:
        return 0
    postponed[0] += 1
    return chosen
