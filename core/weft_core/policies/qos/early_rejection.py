"""Reject a task at once when its predicted TTFT or ITL would miss the SLO and its class is not protected.

The book's ``QoSController.admit_request`` estimates TTFT from queue lengths; here the predicted finish of the best
option stands for it, which counts lengths, transfers and the time already waited. ITL (the book's TPOT "if another
decode stream is added") is the decode worker's step with the task's sequence in its batch. Unknown predictions admit.
Hand-worked example (test_policy_qos.py): waited 0.5 s, best finish 1.8 s, SLO 2 s: 2.3 s > 2 s, rejected at priority
0, admitted at 1.
"""

import math

from weft_core.policies.finish import overlapped_finish
from weft_core.policies.inputs import RoutingInputs
from weft_core.policies.policy import Parameter, QosRule

TOLERANCE = Parameter("tolerance", 1.0, 0.1, 100.0, "x the SLO", "a predicted TTFT or ITL above this is rejected")
PROTECTED = Parameter("protected", 1.0, 0.0, 1e6, "priority", "from which nothing is rejected")


def predicted_ttft(inputs: RoutingInputs) -> float:
    """Return the least TTFT that any option promises, the time waited included; infinite when nothing is known."""
    local = inputs.local
    options = [local.queue_s + local.prefill_s, local.chunked_queue_s + local.chunked_s]
    options += [overlapped_finish(worker) for worker in inputs.remote]
    return inputs.task.waited_s + min((finish for finish in options if finish == finish), default=math.inf)


def retry_after(ttft_s: float, limit_s: float) -> float | None:
    """Return after how many seconds to try again when the least predicted TTFT is above the limit, else None."""
    return max(1.0, ttft_s - limit_s) if limit_s < ttft_s < math.inf else None


def retry_after_answers(itl_s: float, limit_s: float, *, answer: float, batch: int) -> float | None:
    """Return after how many seconds to try again when a batch's predicted ITL is above the limit, else None.

    By then one of the batch's answers, of ``answer`` tokens on average, has ended; NaN: unknown. An empty batch admits:
    waiting would not make the task's own steps shorter.
    """
    if batch < 1 or not limit_s < itl_s < math.inf:
        return None
    return max(1.0, itl_s * answer / batch) if answer == answer else 1.0


POLICY = QosRule(
    "early-rejection", "no to ordinary tasks that would miss their TTFT or ITL",
    "AI systems performance engineering, chapter 17, QoSController.admit_request", (TOLERANCE, PROTECTED),
)  # fmt: skip
