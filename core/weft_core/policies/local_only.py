"""Keep low-priority tasks off busy prefill workers: they prefill on their decode worker, slower, for the others' sake.

Hand-worked example (test_policy_qos.py): two prefill workers with 5 and 3 tasks queued, limit 4 each: 8 >= 8, so a
task below the protected priority stays local.
"""

from collections.abc import Sequence

from weft_core.policies.features import TASK_PRIORITY
from weft_core.policies.parameter import Parameter, defaults
from weft_core.policies.threshold import queued_tasks

SOURCE = "AI systems performance engineering, chapter 17, graceful degradation of disaggregation"
BUSY = 0
PROTECTED = 1
PARAMETERS = (
    Parameter("busy", 4.0, 0.0, 1e6, "tasks per worker", "queued from which prefill workers are busy"),
    Parameter("protected", 1.0, 0.0, 1e6, "priority", "from which tasks may always go remote"),
)
PARAMS = defaults(PARAMETERS)


def keep_local(task: Sequence[float], remote: Sequence[float], workers: int, params: Sequence[float]) -> bool:
    """Tell whether a task has to stay on its decode worker, whatever the routing rule says (reason ``degraded``)."""
    if task[TASK_PRIORITY] >= params[PROTECTED] or workers == 0:
        return False
    return queued_tasks(remote, workers) >= params[BUSY] * workers
