"""Serve the highest priority class that waits, by the queue's own order within it, and let no task starve.

The oldest task of the whole queue counts how often it was passed over, as in ``moore_hodgson``; at ``cap`` it runs
next, whatever its class. ``ampd-window`` reorders the queue itself and knows no classes, so it is left as printed.
Hand-worked example (test_policy_qos.py): priorities 0, 1, 1 in order of arrival, fcfs: the second; after ``cap`` times
the first.
"""

from collections.abc import Sequence

from weft_core.policies.inputs import QueueInputs
from weft_core.policies.order.moore_hodgson import AGEING_CAP, oldest_task
from weft_core.policies.policy import QosRule, QueueOrder


def next_by_priority(order: QueueOrder, queue: QueueInputs, priority: Sequence[float]) -> int:
    """Return the place of the task to run next; ``priority`` has one figure per task."""
    highest = max(priority)
    if highest == min(priority):
        return order.next_task(queue)
    return next_among(order, queue, [i for i, one in enumerate(priority) if one == highest])


def next_among(order: QueueOrder, queue: QueueInputs, places: Sequence[int]) -> int:
    """Return the place that an order chooses among some, unless the oldest of all was passed over ``cap`` times."""
    if len(places) == len(queue.seconds) or order.rearranges:
        return order.next_task(queue)
    oldest = oldest_task(queue.enqueued)
    if queue.postponed[oldest] >= queue.cap:
        return oldest
    counts = [queue.postponed[i] for i in places]
    chosen = places[
        order.next_task(
            queue._replace(
                seconds=[queue.seconds[i] for i in places],
                enqueued=[queue.enqueued[i] for i in places],
                ttft_slo=[queue.ttft_slo[i] for i in places],
                postponed=counts,
                lost=[queue.lost[i] for i in places],
            )
        )
    ]
    for place, count in zip(places, counts, strict=True):
        queue.postponed[place] = count
    if oldest not in places:
        queue.postponed[oldest] += 1
    return chosen


POLICY = QosRule(
    "priority", "the highest waiting class first, with ageing",
    "AI systems performance engineering, chapter 17, QoS: prioritisation; ageing ours", (AGEING_CAP,),
)  # fmt: skip
