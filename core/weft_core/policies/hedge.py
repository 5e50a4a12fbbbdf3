"""Race a second prefill for the top class when the first choice may miss its TTFT; the loser is cancelled.

A second option is worth its work only when the first is at risk (its predicted TTFT above ``risk`` x the SLO) and the
second promises to make it. Hand-worked example (test_policy_qos.py): SLO 2 s, chosen worker 1.6 s, another 1.9 s,
local 2.5 s, risk 0.7: 1.6 > 1.4, so race the worker with 1.9 s.
"""

import math
from collections.abc import Sequence

from weft_core.policies.features import (
    LOCAL,
    LOCAL_PREFILL_S,
    LOCAL_QUEUE_S,
    REMOTE_SIZE,
    TASK_PRIORITY,
    TASK_TTFT_SLO,
    TASK_WAITED,
)
from weft_core.policies.finish import overlapped_finish
from weft_core.policies.parameter import Parameter, defaults

SOURCE = "AI systems performance engineering, chapter 17, multipath inference (racing)"
NO_HEDGE = -2
TOP = 0
RISK = 1
PARAMETERS = (
    Parameter("top", 2.0, 0.0, 1e6, "priority", "from which prefills are raced"),
    Parameter("risk", 0.7, 0.0, 10.0, "x the TTFT SLO", "a predicted TTFT above this is at risk"),
)
PARAMS = defaults(PARAMETERS)


def finish_of(choice: int, local: Sequence[float], remote: Sequence[float]) -> float:
    """Return the predicted seconds of one option, local run whole."""
    if choice == LOCAL:
        return local[LOCAL_QUEUE_S] + local[LOCAL_PREFILL_S]
    return overlapped_finish(remote, choice * REMOTE_SIZE)


def hedge(
    choice: int,
    task: Sequence[float],
    local: Sequence[float],
    remote: Sequence[float],
    workers: int,
    params: Sequence[float],
) -> int:
    """Return the option to race against ``choice`` (LOCAL or a worker's place), NO_HEDGE for none."""
    if task[TASK_PRIORITY] < params[TOP]:
        return NO_HEDGE
    left = task[TASK_TTFT_SLO] - task[TASK_WAITED]
    first = finish_of(choice, local, remote)
    if task[TASK_WAITED] + first <= params[RISK] * task[TASK_TTFT_SLO]:
        return NO_HEDGE
    second = NO_HEDGE
    least = math.inf
    for option in range(LOCAL, workers):
        if option == choice:
            continue
        finish = finish_of(option, local, remote)
        if finish <= left and finish < least:
            second = option
            least = finish
    return second
