"""Let as many queued prefills as possible meet their TTFT: Moore-Hodgson over the whole queue, with ageing.

Moore's algorithm (1968) is exact for the number of on-time tasks on one worker: take tasks by deadline, and whenever
one would be late drop the longest taken so far. Next runs the kept task with the earliest deadline; when none can be
on time, the oldest. Dropped tasks wait, so the oldest task of the queue counts how often it was passed over, and at
``cap`` it runs next, on time or not: a task behind k older ones waits for at most (k + 1)(cap + 1) others, and no more
than one dispatch in cap + 1 goes to tasks that are late, however long an overload lasts. Tasks whose session has missed
its SLO already (``lost``) can be left to that rule as well; it favours sessions that can still be saved.

Hand-worked example (test_policy_orders.py): SLO 3 s, all just come: 2, 1.5, 1 s: the first two take 3.5 s, so the 2 s
task is dropped; 1.5 and 1 s are met: next is the second.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace

from weft_core.policies.inputs import QueueInputs
from weft_core.policies.policy import Parameter, QueueOrder

AGEING_CAP = Parameter(
    "ageingCap", 16, 1, 1e6, "dispatches", "how often the oldest task is passed over before it runs next"
)
UNSORTED = -2
NOBODY = -1


def oldest_task(enqueued: Sequence[float]) -> int:
    """Return the place of the task that came first, the first of equals."""
    best = 0
    first = enqueued[0]
    for i, at in enumerate(enqueued):
        if at < first:
            best = i
            first = at
    return best


def first_in_time(
    now: float,
    seconds: Sequence[float],
    enqueued: Sequence[float],
    ttft_slo: Sequence[float],
    lost: Sequence[int],
) -> int:
    """Return the kept task that is due first, NOBODY without one, UNSORTED where the queue is not by deadline.

    O(q log q). Nothing is put on a heap before a first task would be late, and then only what replaces a longer one.
    """
    kept = [(0.0, 0)]
    kept.clear()
    head = NOBODY  # the first taken as long as no task had to be dropped
    dropping = False
    work = now
    last = -1e300
    i = -1
    for p, at, slo, gone in zip(seconds, enqueued, ttft_slo, lost):  # noqa: B905 - numba knows no strict
        i += 1
        due = at + slo
        if due < last:
            return UNSORTED
        last = due
        if gone != 0:
            continue
        if work + p <= due:
            work += p
            if dropping:
                heappush(kept, (-p, i))
            elif head == NOBODY:
                head = i
        elif head != NOBODY:
            if not dropping:
                dropping = True
                kept.extend([(-seconds[k], k) for k in range(head, i) if lost[k] == 0])
                heapify(kept)
            longest = -kept[0][0]
            if longest > p:
                work += p - longest
                heapreplace(kept, (-p, i))
    if not dropping:
        return head
    best = kept[0][1]
    for item in kept:
        best = min(best, item[1])
    return best


def by_deadline(enqueued: Sequence[float], ttft_slo: Sequence[float]) -> list[int]:
    """Return the queue's places by deadline, the earlier place first among equals."""
    due = [(enqueued[i] + ttft_slo[i], i) for i in range(len(enqueued))]
    heapify(due)  # the heap is compiled anyway; a sort of pairs takes seconds to compile
    return [heappop(due)[1] for _ in range(len(due))]


def next_moore_hodgson(queue: QueueInputs) -> int:
    """Return the task to run next; count it when the oldest is passed over. A queue kept by deadline is not sorted."""
    seconds, enqueued, ttft_slo, lost = queue.seconds, queue.enqueued, queue.ttft_slo, queue.lost
    oldest = oldest_task(enqueued)
    if queue.postponed[oldest] >= queue.cap:
        return oldest
    chosen = first_in_time(queue.now, seconds, enqueued, ttft_slo, lost)
    if chosen == UNSORTED:
        places = by_deadline(enqueued, ttft_slo)
        chosen = first_in_time(
            queue.now,
            [seconds[i] for i in places],
            [enqueued[i] for i in places],
            [ttft_slo[i] for i in places],
            [lost[i] for i in places],
        )
        if chosen >= 0:
            chosen = places[chosen]
    if chosen in (NOBODY, oldest):
        return oldest
    queue.postponed[oldest] += 1
    return chosen


POLICY = QueueOrder(
    "moore-hodgson", "most tasks on time, with ageing", "Moore 1968 (Moore-Hodgson); ageing ours", next_moore_hodgson,
    by_deadline=True,
)  # fmt: skip
