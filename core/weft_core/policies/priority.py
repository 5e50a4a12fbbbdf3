"""Serve the highest priority class that waits, by the queue's own order within it, and let nobody starve.

The oldest task of the whole queue counts how often it was passed over, as in ``moore_hodgson``; at ``cap`` it runs
next, whatever its class. ``ampd-window`` reorders the queue itself and knows no classes, so it is left as printed.
Hand-worked example (test_policy_qos.py): priorities 0, 1, 1 in order of arrival, fcfs: the second; after ``cap`` times
the first.
"""

from collections.abc import MutableSequence, Sequence

from weft_core.policies.codes import AMPD_WINDOW
from weft_core.policies.decide_order import next_task
from weft_core.policies.moore_hodgson import oldest_task

SOURCE = "AI systems performance engineering, chapter 17, QoS: prioritisation; ageing ours"


def next_by_priority(
    code: int,
    now: float,
    seconds: Sequence[float],
    enqueued: Sequence[float],
    ttft_slo: Sequence[float],
    postponed: MutableSequence[int],
    lost: Sequence[int],
    priority: Sequence[float],
    window: int,
    cap: int,
    order: MutableSequence[int],
) -> int:
    """Return the place of the task to run next; the vectors are ``next_task``'s, ``priority`` one figure per task."""
    tasks = len(seconds)
    highest = priority[0]
    lowest = priority[0]
    for i in range(1, tasks):
        highest = max(highest, priority[i])
        lowest = min(lowest, priority[i])
    if highest == lowest or code == AMPD_WINDOW:
        return next_task(code, now, seconds, enqueued, ttft_slo, postponed, lost, window, cap, order)
    oldest = oldest_task(enqueued)
    if postponed[oldest] >= cap:
        return oldest
    places = [i for i in range(tasks) if priority[i] == highest]
    counts = [postponed[i] for i in places]
    chosen = places[
        next_task(
            code,
            now,
            [seconds[i] for i in places],
            [enqueued[i] for i in places],
            [ttft_slo[i] for i in places],
            counts,
            [lost[i] for i in places],
            window,
            cap,
            order,
        )
    ]
    for k in range(len(places)):
        postponed[places[k]] = counts[k]
    if chosen != oldest and priority[oldest] < highest:
        postponed[oldest] += 1
    return chosen
