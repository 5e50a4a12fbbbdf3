"""Take the worker with the lowest composite cost: KV occupancy, requests, cache match, bandwidth, recency (book, 17).

cost = 3 x occupancy + 1 x active requests - 10 x cache match + 0.5 x bandwidth - 1 x recent use (Table 17-3), with
occupancy and bandwidth as shares of 1. Candidates are the bound decode worker and every prefill worker; the decode
worker's match is the session's own history. Bandwidth is what would be in the way: for a prefill worker the share by
which its link to the decode worker is slower than the fastest (as measured where KV paths are proven, else by the
profile), for the decode worker the share of the ITL SLO that its memory-bound step takes. Recent means chosen within
``recent_window``.
Among equals local goes first, then the first worker.

Hand-worked example (test_policy_threshold.py): local 3 x 0.5 + 4 - 10 + 0.5 x 0.4 - 1 = -5.3; an idle prefill
worker 0: local. Without history local is 5.7: remote.
"""

from collections.abc import Sequence

from weft_core.policies.inputs import LOCAL, LocalFigures, RemoteFigures, RoutingInputs, TaskFigures
from weft_core.policies.policy import Parameter, RoutingPolicy
from weft_core.policies.reasons import LEAST_COST

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


def known(figure: float) -> float:
    """Return a figure, 0 when it is not known."""
    return 0.0 if figure != figure else figure


def local_cost(task: TaskFigures, local: LocalFigures, params: Sequence[float]) -> float:
    """Return the decode worker's cost."""
    held = known(local.context)
    room = held + max(0.0, known(local.kv_free))
    cost = params[OCCUPANCY] * (held / room if room > 0 else 1.0)
    cost += params[ACTIVE] * (local.batch + local.queued)
    cost += params[BANDWIDTH] * min(1.0, known(local.step_s) / task.itl_slo)
    if task.history > 0:
        cost += params[MATCH] + params[RECENT]
    return cost


def remote_cost(worker: RemoteFigures, now: float, fastest: float, params: Sequence[float]) -> float:
    """Return a prefill worker's cost; ``fastest`` is the rate of the fastest link."""
    cost = params[OCCUPANCY] * known(worker.kv_use) + params[ACTIVE] * worker.queued
    if fastest > 0:
        cost += params[BANDWIDTH] * (1.0 - known(worker.link_rate) / fastest)
    if worker.cached > 0:
        cost += params[MATCH]
        if now - worker.used_at <= params[RECENT_WINDOW]:
            cost += params[RECENT]
    return cost


def route_latency_cost(inputs: RoutingInputs) -> tuple[int, int]:
    """Decide by the lowest cost."""
    task, remote, params = inputs.task, inputs.remote, inputs.params
    best = LOCAL
    least = local_cost(task, inputs.local, params)
    inputs.costs[0] = least
    fastest = 0.0
    for i in range(len(remote)):
        fastest = max(fastest, known(remote[i].link_rate))
    for i in range(len(remote)):
        cost = remote_cost(remote[i], task.now, fastest, params)
        inputs.costs[1 + i] = cost
        if cost < least:
            best = i
            least = cost
    return best, LEAST_COST


POLICY = RoutingPolicy(
    "latency-cost", "the lowest composite cost of all workers",
    "AI systems performance engineering, chapter 17, Table 17-3", route_latency_cost, PARAMETERS,
)  # fmt: skip
