"""Route each prefill to the option with the least expected number of missed SLOs: Weft's own policy.

The cost of an option is P(this task misses its TTFT) + the increase of P(ITL missed), summed over the sessions whose
decoding it would stall (the interference) + a small price on its finish time. P(x above a threshold thr) is
logistic((x / thr - 0.92) / 0.08). A remote prefill reads its history while it queues. Inputs are present queues, not
averages over a window. A remote prefill on a worker that decodes, too, stalls that worker's sessions; nobody else knows
their gaps, so each counts as one of the decode worker's own sessions does on average.

The modes differ in the local prefills that they consider:

* ``ia``, interference-aware: whole local prefills, which stall decoding; the stall is part of the cost.
* ``imd``, interference-aware and mixed with decodes: local prefills in chunks, each in one step with the running
  decodes and small enough for that step to stay within the ITL SLO; so no stall is part of the cost.
* ``whole-or-chunked``: both; the cheaper is chosen.
* ``remote-jsq``: none; the prefill worker that finishes first (join the shortest queue). For engines whose latencies
  the cost profile does not predict.

P(ITL missed) follows the SLO's statistic (``itl_statistic``): the session's mean gap, the share of gaps above the SLO
compared with 5 % (P95), or whether any gap is above it (largest gap). ``gap_sums`` has seconds for the mean and the
number of gaps above the SLO for the other two.

Hand-worked example (test_policy_weft.py): TTFT SLO 1 s, remote finish 0.92 s, chunked local finish 0.6 s: P = 0.5
against logistic(-4) = 0.018, so local.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

from weft_core.policies.finish import first_overlapped, overlapped_finish, shortest_queue
from weft_core.policies.inputs import LOCAL, RoutingInputs
from weft_core.policies.policy import Parameter, RoutingPolicy
from weft_core.policies.reasons import (
    LOCAL_CHUNKED,
    LOCAL_WHOLE,
    NO_PREFILL_WORKER,
    PROFILE_INCOMPLETE,
    SHORTEST_FINISH,
    reason,
)

REMOTE_CHEAPER = reason("remote-cheaper", "a prefill worker, at the least cost")

IMD: Final = 0
WHOLE_OR_CHUNKED: Final = 1
IA: Final = 2
REMOTE_JSQ: Final = 3
ModeName = Literal["imd", "whole-or-chunked", "ia", "remote-jsq"]
MODES: Mapping[str, int] = {name: code for code, name in enumerate(get_args(ModeName))}

MEAN: Final = 0
P95: Final = 1
LARGEST: Final = 2
STATISTICS = ("mean", "p95", "max")
P95_SHARE: Final = 0.05
"""A P95 meets its threshold while at most this share of gaps is over it."""

MODE: Final = 0
ITL_STATISTIC: Final = 1
CENTRE: Final = 2
WIDTH: Final = 3
FINISH_PRICE: Final = 4
INTERFERENCE: Final = 5
PARAMETERS = (
    Parameter("mode", IMD, 0, 3, "code", "imd 0, whole-or-chunked 1, ia 2, remote-jsq 3; set by the service's mode"),
    Parameter("itl_statistic", MEAN, 0, 2, "code", "statistic of the ITL SLO: mean 0, P95 1, largest 2"),
    Parameter("centre", 0.92, 0.1, 2.0, "share of the SLO", "predicted latency at which a miss has probability 0.5"),
    Parameter("width", 0.08, 0.001, 1.0, "share of the SLO", "scatter of latencies about their predictions"),
    Parameter("finish_price", 0.02, 0.0, 1.0, "misses per SLO", "price of the finish time; breaks ties"),
    Parameter("interference", 1.0, 0.0, 10.0, "weight", "of other sessions' ITL against this task's TTFT"),
)


def chance_over(x: float, centre: float, width: float) -> float:
    """Return the probability that a latency predicted at ``x`` times its threshold exceeds the threshold."""
    z = (x - centre) / width
    if z < -40.0:  # 0 to the last bits, and math.exp() would overflow further down
        return 0.0
    return 1.0 / (1.0 + math.exp(-z))


def stall_cost(
    stall: float,
    step: float,
    itl_slo: float,
    params: Sequence[float],
    gap_sums: Sequence[float],
    gap_counts: Sequence[float],
) -> float:
    """Return the increase of the expected number of sessions that miss their ITL when all stall for ``stall`` seconds.

    The stall lengthens the next gap of each session; the first gap of a session is expected to be ``step`` seconds.
    """
    statistic = int(params[ITL_STATISTIC])
    centre = params[CENTRE]
    width = params[WIDTH]
    over = 1.0 if stall + step > itl_slo else 0.0
    total = 0.0
    if statistic == MEAN:
        # ``chance_over`` is inlined: two calls for each of a hundred streams would be most of a decision's time.
        # Sessions without a gap are all alike, so their term is computed once.
        fresh = math.nan
        for seen, count in zip(gap_sums, gap_counts):  # noqa: B905 - numba's zip knows no strict
            if count > 0 or seen > 0:
                x = seen / count if count > 0 else step
                z = (x / itl_slo - centre) / width
                before = 0.0 if z < -40.0 else 1.0 / (1.0 + math.exp(-z))
                z = ((seen + stall + step) / (count + 1.0) / itl_slo - centre) / width
                total += (0.0 if z < -40.0 else 1.0 / (1.0 + math.exp(-z))) - before
            else:
                if fresh != fresh:
                    fresh = chance_over((stall + step) / itl_slo, centre, width)
                    fresh -= chance_over(step / itl_slo, centre, width)
                total += fresh
        return total
    for s in range(len(gap_counts)):
        seen = gap_sums[s]
        count = gap_counts[s]
        if statistic == P95:
            before = seen / count if count > 0 else 0.0
            after = (seen + over) / (count + 1.0)
            total += chance_over(after / P95_SHARE, centre, width) - chance_over(before / P95_SHARE, centre, width)
        elif seen == 0:
            total += chance_over((stall + step) / itl_slo, centre, width) - chance_over(step / itl_slo, centre, width)
    return total


def miss_cost(inputs: RoutingInputs, finish: float) -> float:
    """Return the probability that the task misses its TTFT when it finishes after ``finish`` seconds, plus the price.

    The price separates options whose probabilities are both 0 or both 1 in floating point.
    """
    task, params = inputs.task, inputs.params
    chance = chance_over((task.waited_s + finish) / task.ttft_slo, params[CENTRE], params[WIDTH])
    return chance + params[FINISH_PRICE] / task.ttft_slo * finish


def local_cost(inputs: RoutingInputs) -> tuple[float, int]:
    """Return the least cost of a local prefill, infinite when the mode has none, and the reason code for its form."""
    task, local, params = inputs.task, inputs.local, inputs.params
    mode = int(params[MODE])
    least = math.inf
    how = LOCAL_WHOLE
    finish = local.chunked_queue_s + local.chunked_s
    if mode in (IMD, WHOLE_OR_CHUNKED) and finish < math.inf:
        least = miss_cost(inputs, finish)
        how = LOCAL_CHUNKED
    finish = local.queue_s + local.prefill_s
    if mode in (WHOLE_OR_CHUNKED, IA) and finish < math.inf:
        cost = miss_cost(inputs, finish)
        if params[INTERFERENCE] > 0:
            cost += params[INTERFERENCE] * stall_cost(
                local.prefill_s, local.step_s, task.itl_slo, params, inputs.gap_sums, inputs.gap_counts
            )
        if cost < least:
            least = cost
            how = LOCAL_WHOLE
    return least, how


def session_stall_cost(inputs: RoutingInputs, stall: float) -> float:
    """Return ``stall_cost`` of one session, the mean over those that decode locally; of a fresh one if none does."""
    step, itl_slo, params = inputs.local.step_s, inputs.task.itl_slo, inputs.params
    count = len(inputs.gap_counts)
    if count > 0:
        return stall_cost(stall, step, itl_slo, params, inputs.gap_sums, inputs.gap_counts) / count
    centre = params[CENTRE]
    width = params[WIDTH]
    return chance_over((stall + step) / itl_slo, centre, width) - chance_over(step / itl_slo, centre, width)


def cheapest_remote(inputs: RoutingInputs) -> tuple[int, float]:
    """Return the worker at the least cost, and that cost, where some decode sessions of their own."""
    best = LOCAL
    least = math.inf
    known = math.nan
    each = 0.0
    for i in range(len(inputs.remote)):
        worker = inputs.remote[i]
        finish = overlapped_finish(worker)
        if finish < math.inf:
            cost = miss_cost(inputs, finish)
            if worker.decoding > 0 and inputs.params[INTERFERENCE] > 0:
                if worker.prefill_s != known:  # the same on all workers that are alike and have nothing cached
                    known = worker.prefill_s
                    each = session_stall_cost(inputs, known)
                cost += inputs.params[INTERFERENCE] * worker.decoding * each
            inputs.costs[1 + i] = cost
            if cost < least:
                best = i
                least = cost
    return best, least


def decoding_elsewhere(inputs: RoutingInputs) -> float:
    """Return how many sequences the prefill workers decode themselves."""
    total = 0.0
    for i in range(len(inputs.remote)):
        total += inputs.remote[i].decoding
    return total


def route_weft(inputs: RoutingInputs) -> tuple[int, int]:
    """Return where a prefill runs, and why: the least cost; among equals local first, then the first worker."""
    # Without a stall the cost rises with the finish: only the first to finish can be the cheapest.
    best, finish, missing = first_overlapped(inputs.remote)
    least = math.inf
    why = NO_PREFILL_WORKER
    by_finish = int(inputs.params[MODE]) == REMOTE_JSQ
    if best != LOCAL:
        why = SHORTEST_FINISH if by_finish else REMOTE_CHEAPER
        if not by_finish and decoding_elsewhere(inputs) > 0:
            best, least = cheapest_remote(inputs)
        else:
            least = miss_cost(inputs, finish)
            inputs.costs[1 + best] = least
    here, how = local_cost(inputs)
    if here < math.inf:
        inputs.costs[0] = here
    if best == LOCAL and missing:
        return shortest_queue(inputs.remote), PROFILE_INCOMPLETE
    if here < math.inf and here <= least:
        return LOCAL, how
    return best, why


POLICY = RoutingPolicy(
    "weft", "least expected number of missed SLOs", "Weft; docs/policies.md", route_weft, PARAMETERS,
    order="moore-hodgson", predicts=True,
)  # fmt: skip
