"""Run prefills in the order in which they came: the baseline of every other order."""

from weft_core.policies.inputs import QueueInputs
from weft_core.policies.policy import QueueOrder


def next_fcfs(queue: QueueInputs) -> int:  # noqa: ARG001 - every order takes it
    """Return the first place of the queue."""
    return 0


POLICY = QueueOrder("fcfs", "first come, first served", "baseline", next_fcfs)
