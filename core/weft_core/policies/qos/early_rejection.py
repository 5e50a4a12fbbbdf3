"""Reject a task at once when its predicted TTFT would miss the SLO and its class is not protected.

The book's ``QoSController.admit_request`` estimates TTFT from queue lengths; here the predicted finish of the best
option stands for it, which counts lengths, transfers and the time already waited. Unknown predictions admit.
Hand-worked example (test_policy_qos.py): waited 0.5 s, best finish 1.8 s, SLO 2 s: 2.3 s > 2 s, rejected at priority
0, admitted at 1.
"""

import math

from weft_core.policies.finish import overlapped_finish
from weft_core.policies.inputs import RoutingInputs
from weft_core.policies.policy import Parameter, QosRule

TOLERANCE = Parameter("tolerance", 1.0, 0.1, 100.0, "x the TTFT SLO", "a predicted TTFT above this is rejected")
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


POLICY = QosRule(
    "early-rejection", "no to ordinary tasks that would miss their TTFT",
    "AI systems performance engineering, chapter 17, QoSController.admit_request", (TOLERANCE, PROTECTED),
)  # fmt: skip
