"""Decide where a prefill runs, by the code of a routing rule: the one door for the router and the simulator."""

import math
from collections.abc import MutableSequence, Sequence

from weft_core.policies.always import route_always_local, route_always_remote, route_colocated
from weft_core.policies.ampd import route_ampd
from weft_core.policies.codes import (
    ALWAYS_LOCAL,
    ALWAYS_REMOTE,
    AMPD,
    COLOCATED,
    FIXED_X,
    LATENCY_COST,
    PPD,
    REMOTE_JSQ,
    THRESHOLD,
    WEFT,
    WEIGHTED_SCORE,
)
from weft_core.policies.fixed_x import route_fixed_x
from weft_core.policies.latency_cost import route_latency_cost
from weft_core.policies.ppd import route_ppd
from weft_core.policies.remote_jsq import route_remote_jsq
from weft_core.policies.threshold import route_threshold
from weft_core.policies.weft import route_weft
from weft_core.policies.weighted_score import route_weighted_score


def decide(
    code: int,
    task: Sequence[float],
    local: Sequence[float],
    remote: Sequence[float],
    workers: int,
    order: Sequence[int],
    params: tuple[float, ...],
    gap_sums: list[float],
    gap_counts: list[float],
    costs: MutableSequence[float],
) -> tuple[int, int]:
    """Return (choice, reason): LOCAL (-1) or a prefill worker's place, and a number of ``reasons``.

    ``task``, ``local`` and ``remote`` are laid out by ``features``; ``order`` is a random permutation of the workers;
    ``gap_sums`` and ``gap_counts`` describe the sessions that decode on the local worker (``weft`` says how).
    ``costs`` is written: the rule's own cost of local at 0 and of worker i at 1 + i, NaN where it was not estimated.
    """
    for i in range(workers + 1):
        costs[i] = math.nan
    if code == WEFT:
        return route_weft(task, local, remote, workers, params, gap_sums, gap_counts, costs)
    if code == AMPD:
        return route_ampd(task, local, remote, workers, order, params, costs)
    if code == REMOTE_JSQ:
        return route_remote_jsq(remote, workers, costs)
    if code == PPD:
        return route_ppd(task, remote, workers, params, costs)
    if code == FIXED_X:
        return route_fixed_x(task, remote, workers, params, costs)
    if code == ALWAYS_REMOTE:
        return route_always_remote(workers, order)
    if code == ALWAYS_LOCAL:
        return route_always_local()
    if code == COLOCATED:
        return route_colocated()
    if code == THRESHOLD:
        return route_threshold(task, local, remote, workers, params, costs)
    if code == WEIGHTED_SCORE:
        return route_weighted_score(task, local, remote, workers, params, costs)
    if code == LATENCY_COST:
        return route_latency_cost(task, local, remote, workers, params, costs)
    return route_remote_jsq(remote, workers, costs)
