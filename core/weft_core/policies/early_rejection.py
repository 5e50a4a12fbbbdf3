"""Reject a task at once when its predicted TTFT would miss the SLO and its class is not protected.

The book's ``QoSController.admit_request`` estimates TTFT from queue lengths; here the predicted finish of the best
option stands for it, which counts lengths, transfers and the time already waited. Unknown predictions admit.
Hand-worked example (test_policy_qos.py): waited 0.5 s, best finish 1.8 s, SLO 2 s: 2.3 s > 2 s, rejected at priority
0, admitted at 1.
"""

import math
from collections.abc import Sequence

from weft_core.policies.features import (
    LOCAL_CHUNKED_QUEUE_S,
    LOCAL_CHUNKED_S,
    LOCAL_PREFILL_S,
    LOCAL_QUEUE_S,
    REMOTE_SIZE,
    TASK_PRIORITY,
    TASK_TTFT_SLO,
    TASK_WAITED,
)
from weft_core.policies.finish import overlapped_finish
from weft_core.policies.parameter import Parameter, defaults

SOURCE = "AI systems performance engineering, chapter 17, QoSController.admit_request"
TOLERANCE = 0
PROTECTED = 1
PARAMETERS = (
    Parameter("tolerance", 1.0, 0.1, 100.0, "x the TTFT SLO", "a predicted TTFT above this is rejected"),
    Parameter("protected", 1.0, 0.0, 1e6, "priority", "from which nothing is rejected"),
)
PARAMS = defaults(PARAMETERS)


def predicted_ttft(task: Sequence[float], local: Sequence[float], remote: Sequence[float], workers: int) -> float:
    """Return the least TTFT that any option promises, the time waited included; infinite when nothing is known."""
    best = math.inf
    whole = local[LOCAL_QUEUE_S] + local[LOCAL_PREFILL_S]
    if whole < best:
        best = whole
    chunked = local[LOCAL_CHUNKED_QUEUE_S] + local[LOCAL_CHUNKED_S]
    if chunked < best:
        best = chunked
    for i in range(workers):
        finish = overlapped_finish(remote, i * REMOTE_SIZE)
        if finish < best:
            best = finish
    return task[TASK_WAITED] + best


def reject(
    task: Sequence[float], local: Sequence[float], remote: Sequence[float], workers: int, params: Sequence[float]
) -> bool:
    """Tell whether to answer "busy, try later" now."""
    if task[TASK_PRIORITY] >= params[PROTECTED]:
        return False
    expected = predicted_ttft(task, local, remote, workers)
    return expected < math.inf and expected > params[TOLERANCE] * task[TASK_TTFT_SLO]
