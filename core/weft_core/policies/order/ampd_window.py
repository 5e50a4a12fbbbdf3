"""Reorder the head of a prefill queue by AMPD's Algorithm 2 with Eq. (3) and (4), as printed (section 4.2).

Every ordering of the head window is tried; the one that lets most tasks meet the TTFT SLO is taken, the first in
lexicographic order among equals, so that a queue without reason to change keeps its order. A task that was postponed
``window`` times is never postponed again. Hand-worked example (test_policy_orders.py): SLO 2 s; 1.5 s just come, 0.5 s
waiting since 1 s: in order the second finishes at 1 + 2.0 s, too late; the other way round both are met.
"""

from collections.abc import MutableSequence, Sequence

from weft_core.policies.inputs import MAX_WINDOW, QueueInputs
from weft_core.policies.policy import QueueOrder


def satisfied(queue: QueueInputs, ordering: Sequence[int], size: int) -> int:
    """Return Eq. (4): S = number of k with (T_now - T_enq(pi(k))) + C(pi(k)) <= TTFT_thres, C by Eq. (3)."""
    finish = 0.0
    count = 0
    for k in range(size):
        task = ordering[k]
        finish += queue.seconds[task]  # Eq. (3): C(pi(k)) = sum over j <= k of t_pre(pi(j))
        if (queue.now - queue.enqueued[task]) + finish <= queue.ttft_slo[task]:
            count += 1
    return count


def allowed(postponed: Sequence[int], ordering: Sequence[int], size: int, window: int) -> bool:
    """Return whether no task that was postponed ``window`` times is put behind its own place (lines 3-4)."""
    for k in range(size):
        task = ordering[k]
        if k > task and postponed[task] >= window:
            return False
    return True


def advance(ordering: MutableSequence[int], size: int) -> bool:
    """Turn an ordering into the next one in lexicographic order; False when it was the last."""
    k = size - 2
    while k >= 0 and ordering[k] >= ordering[k + 1]:
        k -= 1
    if k < 0:
        return False
    swap = size - 1
    while ordering[swap] <= ordering[k]:
        swap -= 1
    kept = ordering[k]
    ordering[k] = ordering[swap]
    ordering[swap] = kept
    low = k + 1
    high = size - 1
    while low < high:
        kept = ordering[low]
        ordering[low] = ordering[high]
        ordering[high] = kept
        low += 1
        high -= 1
    return True


def next_ampd_window(queue: QueueInputs) -> int:
    """Return the task to run next; write the head's new order and count whom it postpones (Algorithm 2)."""
    postponed, order = queue.postponed, queue.head
    size = min(queue.window, len(queue.seconds), MAX_WINDOW)
    for k in range(size):
        order[k] = k
    most = satisfied(queue, order, size)  # the order as it is postpones no task
    if most < size:
        trial = [k for k in range(size)]  # noqa: C416 - list(range()) has no numba form with a known element type
        while most < size and advance(trial, size):  # line 2; no ordering satisfies more than all tasks
            if not allowed(postponed, trial, size, queue.window):
                continue
            count = satisfied(queue, trial, size)  # line 5
            if count > most:  # line 6
                most = count
                for k in range(size):
                    order[k] = trial[k]
    for k in range(size):  # line 7
        if k > order[k]:
            postponed[order[k]] += 1
    return order[0]  # lines 8-9


POLICY = QueueOrder(
    "ampd-window", "best ordering of the head window", "AMPD, Algorithm 2, Eq. (3) and (4)", next_ampd_window,
    rearranges=True,
)  # fmt: skip
