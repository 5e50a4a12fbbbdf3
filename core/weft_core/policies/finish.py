"""Predict when a prefill worker would finish a task, and pick workers by it."""

import math
from collections.abc import MutableSequence, Sequence

from weft_core.policies.inputs import LOCAL, RemoteFigures, RoutingInputs
from weft_core.policies.reasons import NO_PREFILL_WORKER, PROFILE_INCOMPLETE, SHORTEST_FINISH


def remote_work(history: float, total: float, cached: float) -> tuple[float, float, float]:
    """Return (known, to compute, to read) of a prompt of ``total`` tokens on a prefill worker.

    The first ``history`` tokens can be read from the decode worker (0: none can), and the prefill worker has ``cached``
    of them since an earlier round: an engine reads what its own prefix cache lacks, and always computes the last token.
    """
    known = min(max(history, cached), total - 1.0)
    return known, total - known, max(0.0, known - cached)


def hit_worth(hit: float, compute_s: float, load_s: float) -> float:
    """Return how many tokens a prefix of ``hit`` tokens saves a worker that has it, less what its load costs.

    ``compute_s`` is T_pre of these tokens there, ``load_s`` T_load of those that a tier has.
    """
    if not load_s > 0:
        return hit
    return hit * max(0.0, 1.0 - load_s / compute_s) if compute_s > 0 else 0.0


def may_recompute(history: float, increment: float, cached: float) -> bool:
    """Tell whether a prefill worker may compute the history that it cannot read and has not cached.

    Only less than the new tokens: beyond that the decode worker, which has the history, is the better place.
    """
    return history - cached < increment


def printed_finish(worker: RemoteFigures) -> float:
    """Return Eq. (2), t_pre + t_kv + t_queue, in seconds (AMPD section 4.1).

    t_kv = T_kv(l_hist; d -> p) + T_kv(l_incr; p -> d): the history is read, only the increment comes back.
    """
    return worker.prefill_s + worker.read_s + worker.back_s + worker.queue_s


def overlapped_finish(worker: RemoteFigures) -> float:
    """Return the finish in seconds when the history is read while the task waits its turn in the queue."""
    wait = worker.queue_s
    read = worker.read_s
    if not read <= wait and wait == wait:  # max() would lose a NaN
        wait = read
    return wait + worker.prefill_s + worker.back_s


def first_overlapped(remote: Sequence[RemoteFigures]) -> tuple[int, float, bool]:
    """Return the first of the workers with the least ``overlapped_finish``, that finish, and whether any is unknown."""
    best = LOCAL
    first = math.inf
    missing = False
    for i in range(len(remote)):
        finish = overlapped_finish(remote[i])
        if finish < first:
            best = i
            first = finish
        elif finish != finish:
            missing = True
    return best, first, missing


def first_printed(remote: Sequence[RemoteFigures], costs: MutableSequence[float]) -> tuple[int, float, bool]:
    """Return the same by ``printed_finish``, and write it as every worker's cost."""
    best = LOCAL
    first = math.inf
    missing = False
    for i in range(len(remote)):
        finish = printed_finish(remote[i])
        costs[1 + i] = finish
        if finish < first:
            best = i
            first = finish
        elif finish != finish:
            missing = True
    return best, first, missing


def queued_tasks(remote: Sequence[RemoteFigures]) -> float:
    """Return how many tasks all prefill workers hold together."""
    total = 0.0
    for i in range(len(remote)):
        total += remote[i].queued
    return total


def shortest_queue(remote: Sequence[RemoteFigures]) -> int:
    """Return the worker with the fewest queued tasks, the first of equals; LOCAL when there is none."""
    best = LOCAL
    least = math.inf
    for i in range(len(remote)):
        if remote[i].queued < least:
            best = i
            least = remote[i].queued
    return best


def first_to_finish(inputs: RoutingInputs) -> tuple[int, int]:
    """Return the worker with the least Eq. (2) and the reason; by the shortest queue where a prediction is missing."""
    if len(inputs.remote) == 0:
        return LOCAL, NO_PREFILL_WORKER
    best, _, missing = first_printed(inputs.remote, inputs.costs)
    if missing or best == LOCAL:
        return shortest_queue(inputs.remote), PROFILE_INCOMPLETE
    return best, SHORTEST_FINISH


def stay_or_offload(inputs: RoutingInputs, stays: bool, local_reason: int, remote_reason: int) -> tuple[int, int]:
    """Return LOCAL when the task stays, else the worker that should finish first, with a policy's own reasons."""
    if stays and len(inputs.remote) > 0:
        return LOCAL, local_reason
    best, found = first_to_finish(inputs)
    return best, remote_reason if found == SHORTEST_FINISH else found
