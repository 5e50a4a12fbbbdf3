"""Take the worker with the lowest composite cost: KV occupancy, requests, cache match, bandwidth, recency (book, 17).

cost = 3 x occupancy + 1 x active requests - 10 x cache match + 0.5 x bandwidth - 1 x recent use (Table 17-3), with
occupancy and bandwidth as shares of 1. Candidates are the bound decode worker and every prefill worker; the decode
worker's match is the session's own history. Bandwidth is what would be in the way: for a prefill worker the share by
which its link to the decode worker is slower than the fastest, for the decode worker the share of the ITL SLO that its
memory-bound step takes. Recent means chosen within ``recent_window``.
Among equals local goes first, then the first worker.

Hand-worked example (test_policy_threshold.py): local 3 x 0.5 + 4 - 10 + 0.5 x 0.4 - 1 = -5.3; an idle prefill
worker 0: local. Without history local is 5.7: remote.
"""

from collections.abc import MutableSequence, Sequence

from weft_core.policies.features import (
    LOCAL,
    LOCAL_BATCH,
    LOCAL_CONTEXT,
    LOCAL_KV_FREE,
    LOCAL_QUEUED,
    LOCAL_STEP_S,
    REMOTE_CACHED,
    REMOTE_IDLE_S,
    REMOTE_KV_USE,
    REMOTE_QUEUED,
    REMOTE_RATE,
    REMOTE_SIZE,
    TASK_HISTORY,
    TASK_ITL_SLO,
)
from weft_core.policies.parameter import Parameter, defaults
from weft_core.policies.reasons import LEAST_COST

SOURCE = "AI systems performance engineering, chapter 17, Table 17-3"
OCCUPANCY = 0
ACTIVE = 1
MATCH = 2
BANDWIDTH = 3
RECENT = 4
RECENT_WINDOW = 5
PARAMETERS = (
    Parameter("occupancy", 3.0, -100.0, 100.0, "cost", "of a full KV cache"),
    Parameter("active", 1.0, -100.0, 100.0, "cost", "of each request running or queued"),
    Parameter("match", -10.0, -100.0, 100.0, "cost", "of KV of this prompt in the worker's cache"),
    Parameter("bandwidth", 0.5, -100.0, 100.0, "cost", "of bandwidth wholly in use"),
    Parameter("recent", -1.0, -100.0, 100.0, "cost", "of a cache used recently"),
    Parameter("recent_window", 60.0, 0.0, 86400.0, "seconds", "how long a use counts as recent"),
)
PARAMS = defaults(PARAMETERS)


def known(figure: float) -> float:
    """Return a figure, 0 when it is not known."""
    return 0.0 if figure != figure else figure


def local_cost(task: Sequence[float], local: Sequence[float], params: Sequence[float]) -> float:
    """Return the decode worker's cost."""
    held = known(local[LOCAL_CONTEXT])
    room = held + max(0.0, known(local[LOCAL_KV_FREE]))
    cost = params[OCCUPANCY] * (held / room if room > 0 else 1.0)
    cost += params[ACTIVE] * (local[LOCAL_BATCH] + local[LOCAL_QUEUED])
    cost += params[BANDWIDTH] * min(1.0, known(local[LOCAL_STEP_S]) / task[TASK_ITL_SLO])
    if task[TASK_HISTORY] > 0:
        cost += params[MATCH] + params[RECENT]
    return cost


def route_latency_cost(
    task: Sequence[float],
    local: Sequence[float],
    remote: Sequence[float],
    workers: int,
    params: Sequence[float],
    costs: MutableSequence[float],
) -> tuple[int, int]:
    """Decide by the lowest cost."""
    best = LOCAL
    least = local_cost(task, local, params)
    costs[0] = least
    fastest = 0.0
    for i in range(workers):
        fastest = max(fastest, known(remote[i * REMOTE_SIZE + REMOTE_RATE]))
    for i in range(workers):
        at = i * REMOTE_SIZE
        cost = params[OCCUPANCY] * known(remote[at + REMOTE_KV_USE]) + params[ACTIVE] * remote[at + REMOTE_QUEUED]
        if fastest > 0:
            cost += params[BANDWIDTH] * (1.0 - known(remote[at + REMOTE_RATE]) / fastest)
        if remote[at + REMOTE_CACHED] > 0:
            cost += params[MATCH]
            if remote[at + REMOTE_IDLE_S] <= params[RECENT_WINDOW]:
                cost += params[RECENT]
        costs[1 + i] = cost
        if cost < least:
            best = i
            least = cost
    return best, LEAST_COST
