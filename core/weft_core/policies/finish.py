"""Predict when a prefill worker would finish a task, and pick workers by it."""

import math
from collections.abc import MutableSequence, Sequence

from weft_core.policies.features import (
    LOCAL,
    REMOTE_BACK_S,
    REMOTE_PREFILL_S,
    REMOTE_QUEUE_S,
    REMOTE_QUEUED,
    REMOTE_READ_S,
    REMOTE_SIZE,
)
from weft_core.policies.reasons import NO_PREFILL_WORKER, PROFILE_INCOMPLETE, SHORTEST_FINISH


def printed_finish(remote: Sequence[float], at: int) -> float:
    """Return Eq. (2), t_pre + t_kv + t_queue, seconds, of the worker whose figures begin at ``at`` (AMPD section 4.1).

    t_kv = T_kv(l_hist; d -> p) + T_kv(l_incr; p -> d): the history is read, only the increment comes back.
    """
    return (
        remote[at + REMOTE_PREFILL_S]
        + remote[at + REMOTE_READ_S]
        + remote[at + REMOTE_BACK_S]
        + (remote[at + REMOTE_QUEUE_S])
    )


def overlapped_finish(remote: Sequence[float], at: int) -> float:
    """Return the finish in seconds when the history is read while the task waits its turn in the queue."""
    wait = remote[at + REMOTE_QUEUE_S]
    read = remote[at + REMOTE_READ_S]
    if not read <= wait and wait == wait:  # max() would lose a NaN
        wait = read
    return wait + remote[at + REMOTE_PREFILL_S] + remote[at + REMOTE_BACK_S]


def first_overlapped(remote: Sequence[float], workers: int) -> tuple[int, float, bool]:
    """Return the worker with the least ``overlapped_finish``, the first of equals, that finish, and whether any lacks.

    The finish is written out: a call for each of 64 workers would be half the time of a decision.
    """
    best = LOCAL
    first = math.inf
    missing = False
    for at in range(0, workers * REMOTE_SIZE, REMOTE_SIZE):
        wait = remote[at + REMOTE_QUEUE_S]
        read = remote[at + REMOTE_READ_S]
        if not read <= wait and wait == wait:
            wait = read
        finish = wait + remote[at + REMOTE_PREFILL_S] + remote[at + REMOTE_BACK_S]
        if finish < first:
            best = at // REMOTE_SIZE
            first = finish
        elif finish != finish:
            missing = True
    return best, first, missing


def shortest_queue(remote: Sequence[float], workers: int) -> int:
    """Return the worker with the fewest queued tasks, the first of equals; LOCAL when there is none."""
    best = LOCAL
    least = math.inf
    for i in range(workers):
        queued = remote[i * REMOTE_SIZE + REMOTE_QUEUED]
        if queued < least:
            best = i
            least = queued
    return best


def first_to_finish(remote: Sequence[float], workers: int, costs: MutableSequence[float]) -> tuple[int, int]:
    """Return the worker with the least Eq. (2), the first of equals, and the reason; one missing makes it by count."""
    best = LOCAL
    least = math.inf
    missing = False
    for i in range(workers):
        seconds = printed_finish(remote, i * REMOTE_SIZE)
        costs[1 + i] = seconds
        if seconds != seconds:
            missing = True
        elif seconds < least:
            best = i
            least = seconds
    if workers == 0:
        return LOCAL, NO_PREFILL_WORKER
    if missing or best == LOCAL:
        return shortest_queue(remote, workers), PROFILE_INCOMPLETE
    return best, SHORTEST_FINISH


def offload(remote: Sequence[float], workers: int, costs: MutableSequence[float], reason: int) -> tuple[int, int]:
    """Return the worker that should finish first with a rule's own reason, unless there is no such prediction."""
    best, found = first_to_finish(remote, workers, costs)
    return best, reason if found == SHORTEST_FINISH else found
