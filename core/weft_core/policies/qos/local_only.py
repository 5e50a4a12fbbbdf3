"""Keep low-priority tasks off busy prefill workers: they prefill on their decode worker, slower, for the others' sake.

Hand-worked example (test_policy_qos.py): two prefill workers with 5 and 3 tasks queued, limit 4 each: 8 >= 8, so a
task below the protected priority stays local.
"""

from weft_core.policies.policy import Parameter, QosRule

BUSY = Parameter("busy", 4.0, 0.0, 1e6, "tasks per worker", "queued from which prefill workers are busy")
PROTECTED = Parameter("protected", 1.0, 0.0, 1e6, "priority", "from which tasks may always go remote")


def prefill_workers_busy(queued: float, workers: int, busy: float) -> bool:
    """Return whether so many workers with so many queued tasks are too busy for tasks of low priority."""
    return workers > 0 and queued >= busy * workers


POLICY = QosRule(
    "local-only", "ordinary tasks off busy prefill workers",
    "AI systems performance engineering, chapter 17, graceful degradation of disaggregation", (BUSY, PROTECTED),
)  # fmt: skip
