"""Route prefills by AMPD's Algorithm 1 with Eq. (1) and (2), exactly as printed (arXiv 2602.14516, section 4.1).

What the paper leaves open is decided here: a worker whose statistics window holds no sample shows no load and has
slack; among equal costs local goes first, then the first worker. Hand-worked example (test_policy_ampd.py): TTFT SLO
2 s, alpha 0.9, windows 1.9 s and 1.9 s, so no worker has slack; windowed ITL 50 ms > 0.85 x 50 ms; then local costs
1.0 + 0.4 s, worker a 1.5 + 3.0 s, worker b 0.5 + 0.6 + 0.05 = 1.15 s: remote b.
"""

from collections.abc import MutableSequence, Sequence

from weft_core.policies.features import (
    LOCAL,
    LOCAL_PREFILL_S,
    LOCAL_QUEUE_S,
    LOCAL_WINDOWED_ITL,
    REMOTE_SIZE,
    REMOTE_WINDOWED_TTFT,
    TASK_ITL_SLO,
    TASK_TTFT_SLO,
)
from weft_core.policies.finish import printed_finish, shortest_queue
from weft_core.policies.parameter import Parameter, defaults
from weft_core.policies.reasons import ITL_SLACK, LEAST_COST, NO_PREFILL_WORKER, PROFILE_INCOMPLETE, TTFT_SLACK

SOURCE = "AMPD, Algorithm 1, Eq. (1) and (2)"
ALPHA = 0
BETA = 1
PARAMETERS = (
    Parameter("alpha", 0.9, 0.0, 2.0, "share", "of the TTFT SLO that a prefill worker with slack stays within"),
    Parameter("beta", 0.85, 0.0, 2.0, "share", "of the ITL SLO that a decode worker with slack stays within"),
)  # fmt: skip
PARAMS = defaults(PARAMETERS)


def route_ampd(
    task: Sequence[float],
    local: Sequence[float],
    remote: Sequence[float],
    workers: int,
    order: Sequence[int],
    params: Sequence[float],
    costs: MutableSequence[float],
) -> tuple[int, int]:
    """Decide where a prefill runs; ``order`` is a random permutation of the workers (line 1)."""
    limit = params[ALPHA] * task[TASK_TTFT_SLO]
    for k in range(workers):  # lines 1-3
        windowed = remote[order[k] * REMOTE_SIZE + REMOTE_WINDOWED_TTFT]
        if windowed != windowed or windowed <= limit:
            return order[k], TTFT_SLACK
    windowed = local[LOCAL_WINDOWED_ITL]
    if windowed != windowed or windowed <= params[BETA] * task[TASK_ITL_SLO]:  # lines 4-5
        return LOCAL, ITL_SLACK
    least = local[LOCAL_PREFILL_S] + local[LOCAL_QUEUE_S]  # line 6, Eq. (1)
    costs[0] = least
    missing = least != least
    best = LOCAL
    for i in range(workers):  # lines 7-9
        seconds = printed_finish(remote, i * REMOTE_SIZE)
        costs[1 + i] = seconds
        if seconds != seconds:
            missing = True
        elif seconds < least:
            best = i
            least = seconds
    if not missing:
        return best, LEAST_COST
    if workers == 0:
        return LOCAL, NO_PREFILL_WORKER
    return shortest_queue(remote, workers), PROFILE_INCOMPLETE
