"""Race a second prefill for the top class when the first choice may miss its TTFT; the loser is cancelled.

A second option is worth its work only when the first is at risk (its predicted TTFT above ``risk`` x the SLO) and the
second promises to make it. A history that only one worker can be given is raced against a local prefill alone: the
decode worker caches it. Hand-worked example (test_policy_qos.py): SLO 2 s, chosen worker 1.6 s, another 1.9 s,
local 2.5 s, risk 0.7: 1.6 > 1.4, so race the worker with 1.9 s.
"""

import math

from weft_core.policies.finish import overlapped_finish
from weft_core.policies.inputs import LOCAL, RoutingInputs
from weft_core.policies.policy import Parameter, QosRule

NO_HEDGE = -2
TOP = Parameter("top", 2.0, 0.0, 1e6, "priority", "from which prefills are raced")
RISK = Parameter("risk", 0.7, 0.0, 10.0, "x the TTFT SLO", "a predicted TTFT above this is at risk")


def finish_of(choice: int, inputs: RoutingInputs) -> float:
    """Return the predicted seconds of one option, local run whole."""
    if choice == LOCAL:
        return inputs.local.queue_s + inputs.local.prefill_s
    return overlapped_finish(inputs.remote[choice])


def hedge(choice: int, inputs: RoutingInputs, risk: float, *, only_local: bool = False) -> int:
    """Return the option to race against ``choice`` (LOCAL or a worker's place), NO_HEDGE for none.

    ``only_local`` leaves out the workers. Which classes are raced is the caller's to say.
    """
    task = inputs.task
    left = task.ttft_slo - task.waited_s
    if task.waited_s + finish_of(choice, inputs) <= risk * task.ttft_slo:
        return NO_HEDGE
    second = NO_HEDGE
    least = math.inf
    for option in range(LOCAL, LOCAL + 1 if only_local else len(inputs.remote)):
        finish = finish_of(option, inputs)
        if option != choice and finish <= left and finish < least:
            second = option
            least = finish
    return second


POLICY = QosRule(
    "hedge", "a raced second prefill for the top class",
    "AI systems performance engineering, chapter 17, multipath inference (racing)", (TOP, RISK),
)  # fmt: skip
