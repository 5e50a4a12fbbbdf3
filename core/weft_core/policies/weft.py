"""Route prefills by what they would cost in missed SLOs: Weft's own rule, interference-aware with SLO-sized chunks.

The cost of an option is P(this task misses its TTFT) + the rise of P(ITL missed) over the sessions whose decoding it
would stall + a small price on its finish time; P(x over thr) = logistic((x / thr - 0.92) / 0.08). A remote finish
overlaps queue and history read. Modes say which local prefills are on offer: ``imd`` in chunks sized by the ITL SLO,
whose own stall is 0 because of that size; ``ia`` whole, with the stall charged; ``whole-or-chunked`` both;
``remote-jsq`` none, for engines that predictions do not fit. Instantaneous queues decide, no window.

The ITL's probability follows the SLO's own reading (``itl_statistic``): the session mean, the share of gaps over the
SLO held against 5 % (P95), or whether any is over (largest gap). ``gap_sums`` hold seconds for the first and the number
of gaps over the SLO for the other two.

Hand-worked example (test_policy_weft.py): TTFT SLO 1 s, remote finish 0.92 s, chunked local finish 0.6 s: P = 0.5
against logistic(-4) = 0.018, so local.
"""

import math
from collections.abc import MutableSequence, Sequence
from typing import Final

from weft_core.policies.features import (
    LOCAL,
    LOCAL_CHUNKED_QUEUE_S,
    LOCAL_CHUNKED_S,
    LOCAL_PREFILL_S,
    LOCAL_QUEUE_S,
    LOCAL_STEP_S,
    TASK_ITL_SLO,
    TASK_TTFT_SLO,
    TASK_WAITED,
)
from weft_core.policies.finish import first_overlapped, shortest_queue
from weft_core.policies.parameter import Parameter, defaults
from weft_core.policies.reasons import (
    LOCAL_CHUNKED,
    LOCAL_WHOLE,
    NO_PREFILL_WORKER,
    PROFILE_INCOMPLETE,
    REMOTE_CHEAPER,
    SHORTEST_FINISH,
)

SOURCE = "Weft; docs/policies.md"

IMD: Final = 0
WHOLE_OR_CHUNKED: Final = 1
IA: Final = 2
REMOTE_JSQ: Final = 3
MODES = ("imd", "whole-or-chunked", "ia", "remote-jsq")

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
    Parameter("itl_statistic", MEAN, 0, 2, "code", "the SLO's reading of ITL: mean 0, P95 1, largest 2"),
    Parameter("centre", 0.92, 0.1, 2.0, "share of the SLO", "where a miss is as likely as not"),
    Parameter("width", 0.08, 0.001, 1.0, "share of the SLO", "how far predictions scatter about the truth"),
    Parameter("finish_price", 0.02, 0.0, 1.0, "misses per SLO", "price of the finish time, so that equals differ"),
    Parameter("interference", 1.0, 0.0, 10.0, "weight", "of other sessions' ITL against this task's TTFT"),
)
PARAMS = defaults(PARAMETERS)


def chance_over(x: float, centre: float, width: float) -> float:
    """Return the probability that a figure predicted at ``x`` times its threshold ends above it."""
    z = (x - centre) / width
    if z > 40.0:
        return 1.0
    if z < -40.0:
        return 0.0
    return 1.0 / (1.0 + math.exp(-z))


def stall_cost(
    stall: float,
    step: float,
    itl_slo: float,
    params: tuple[float, ...],
    gap_sums: list[float],
    gap_counts: list[float],
) -> float:
    """Return by how much the expected number of sessions that miss their ITL rises when all pause ``stall`` seconds.

    The pause lengthens the next gap of each; a session without a gap yet is expected to see ``step``.
    """
    statistic = int(params[ITL_STATISTIC])
    centre = params[CENTRE]
    width = params[WIDTH]
    over = 1.0 if stall + step > itl_slo else 0.0
    total = 0.0
    if statistic == MEAN:
        # ``chance_over`` is written out: two calls for each of a hundred streams would be most of a decision. Sessions
        # that have shown nothing yet are all alike, so theirs is worked out once.
        fresh = math.nan
        for seen, count in zip(gap_sums, gap_counts):  # noqa: B905 - numba's zip knows no strict
            if count > 0 or seen > 0:
                x = seen / count if count > 0 else step
                z = (x / itl_slo - centre) / width
                before = 1.0 if z > 40.0 else 0.0 if z < -40.0 else 1.0 / (1.0 + math.exp(-z))
                z = ((seen + stall + step) / (count + 1.0) / itl_slo - centre) / width
                total += (1.0 if z > 40.0 else 0.0 if z < -40.0 else 1.0 / (1.0 + math.exp(-z))) - before
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


def weigh(
    best: int,
    finish: float,
    unknown: bool,
    waited: float,
    ttft: float,
    itl_slo: float,
    chunked: float,
    queue: float,
    whole: float,
    step: float,
    params: tuple[float, ...],
    gap_sums: list[float],
    gap_counts: list[float],
) -> tuple[int, int, float, float]:
    """Return the choice, its reason, the cost of the first to finish elsewhere and that of local; infinite: none.

    ``best`` would be the first prefill worker to ``finish``, LOCAL where there is none; ``unknown`` says that there was
    no prediction to choose it by. Locally the prefill would be done after ``chunked`` seconds in slices, infinite where
    there are none, or ``whole`` seconds after its ``queue``, with a decode ``step`` beside it.
    """
    mode = int(params[MODE])
    centre = params[CENTRE]
    width = params[WIDTH]
    price = params[FINISH_PRICE] / ttft

    reason = NO_PREFILL_WORKER
    least = math.inf
    if unknown:
        reason = PROFILE_INCOMPLETE
    elif best != LOCAL:
        least = chance_over((waited + finish) / ttft, centre, width) + price * finish
        reason = SHORTEST_FINISH if mode == REMOTE_JSQ else REMOTE_CHEAPER
    cheapest = math.inf
    if mode == REMOTE_JSQ:
        return best, reason, least, cheapest

    how = LOCAL_WHOLE
    if mode != IA and chunked < math.inf:
        cheapest = chance_over((waited + chunked) / ttft, centre, width) + price * chunked
        how = LOCAL_CHUNKED
    if mode != IMD:
        finish = queue + whole
        if finish < math.inf:
            cost = chance_over((waited + finish) / ttft, centre, width) + price * finish
            if params[INTERFERENCE] > 0:
                cost += params[INTERFERENCE] * stall_cost(whole, step, itl_slo, params, gap_sums, gap_counts)
            if cost < cheapest:
                cheapest = cost
                how = LOCAL_WHOLE
    if cheapest < math.inf and cheapest <= least and not unknown:
        return LOCAL, how, least, cheapest
    return best, reason, least, cheapest


def route_weft(
    task: Sequence[float],
    local: Sequence[float],
    remote: Sequence[float],
    workers: int,
    params: tuple[float, ...],
    gap_sums: list[float],
    gap_counts: list[float],
    costs: MutableSequence[float],
) -> tuple[int, int]:
    """Decide where a prefill runs: the least cost, local before remote and the first worker among equals."""
    # The cost rises with the finish, so only the first to finish can be the cheapest; the finish's price breaks ties
    # where the chance is 0 or 1 to the last bit.
    best, finish, missing = first_overlapped(remote, workers)
    unknown = best == LOCAL and missing
    if unknown:
        best = shortest_queue(remote, workers)
    place, reason, there, here = weigh(
        best, finish, unknown, task[TASK_WAITED], task[TASK_TTFT_SLO], task[TASK_ITL_SLO],
        local[LOCAL_CHUNKED_QUEUE_S] + local[LOCAL_CHUNKED_S], local[LOCAL_QUEUE_S], local[LOCAL_PREFILL_S],
        local[LOCAL_STEP_S], params, gap_sums, gap_counts,
    )  # fmt: skip
    if there < math.inf:
        costs[1 + best] = there
    if here < math.inf:
        costs[0] = here
    return place, reason
