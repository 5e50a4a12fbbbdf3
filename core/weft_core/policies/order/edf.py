"""Run the prefill whose TTFT deadline comes first, met or missed alike (earliest deadline first).

With one TTFT SLO this is the order of arrival; it differs where classes have SLOs of their own. Hand-worked example
(test_policy_orders.py): enqueued at 0 s with 5 s, at 1 s with 2 s: the second is due first, at 3 s.
"""

from weft_core.policies.inputs import QueueInputs
from weft_core.policies.policy import QueueOrder


def next_edf(queue: QueueInputs) -> int:
    """Return the place with the earliest deadline, the first of equals."""
    enqueued, ttft_slo = queue.enqueued, queue.ttft_slo
    best = 0
    earliest = enqueued[0] + ttft_slo[0]
    for i in range(1, len(enqueued)):
        due = enqueued[i] + ttft_slo[i]
        if due < earliest:
            best = i
            earliest = due
    return best


POLICY = QueueOrder(
    "edf", "earliest deadline first", "Jackson's rule; earliest deadline first", next_edf, by_deadline=True
)
