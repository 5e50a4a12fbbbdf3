"""Route and reorder prefills as AMPD does: Algorithms 1 and 2, Eq. (1)-(4), exactly as printed (arXiv 2602.14516).

The rules are kept as the paper has them, so that a service can choose the published baseline. What
the paper leaves open is decided here: a worker whose statistics window holds no sample shows no
load and has slack; KV between workers crosses nodes; among equal orderings the earliest in
lexicographic order wins, so a queue without reason to change keeps its order.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, permutations

from weft_core.cost import CostProfile
from weft_core.policies.snapshot import (
    Decision,
    DecodeWorkerView,
    PrefillTask,
    PrefillWorkerView,
    QueuedTask,
    Reordering,
)
from weft_core.slo import Slo

MAX_WINDOW = 6
"""6! = 720 orderings of 6 tasks are about a millisecond; 7! would hold up the queue (the paper uses 2..5)."""


def queue_seconds(queue: Iterable[PrefillTask], *, degree: int, profile: CostProfile) -> float:
    """Return the queuing term of Eq. (1) and (2): sum of T_pre(l_hist_k, l_incr_k; degree) over a prefill queue."""
    return sum(profile.t_pre(history=task.history, increment=task.increment, degree=degree) for task in queue)


def local_seconds(task: PrefillTask, decode: DecodeWorkerView, profile: CostProfile) -> float:
    """Return Eq. (1): t_local = T_pre(l_hist, l_incr; d) + sum over d's prefill queue of T_pre (AMPD section 4.1)."""
    own = profile.t_pre(history=task.history, increment=task.increment, degree=decode.degree)
    return own + queue_seconds(decode.queue, degree=decode.degree, profile=profile)


def remote_seconds(
    task: PrefillTask, decode: DecodeWorkerView, worker: PrefillWorkerView, profile: CostProfile
) -> float:
    """Return Eq. (2): t_remote_i = t_pre_i + t_kv_i + t_queue_i (AMPD section 4.1).

    t_kv_i = T_kv(l_hist; d -> p_i) + T_kv(l_incr; p_i -> d): the history is read, only the increment comes back.
    """
    t_pre = profile.t_pre(history=task.history, increment=task.increment, degree=worker.degree)
    read = profile.t_kv(task.history, source=decode.degree, destination=worker.degree)
    back = profile.t_kv(task.increment, source=worker.degree, destination=decode.degree)
    return t_pre + read + back + queue_seconds(worker.queue, degree=worker.degree, profile=profile)


def route(
    task: PrefillTask,
    *,
    decode: DecodeWorkerView,
    prefill: Sequence[PrefillWorkerView],
    profile: CostProfile,
    slo: Slo,
    alpha: float,
    beta: float,
    order: Sequence[int],
) -> Decision:
    """Decide where a prefill runs (Algorithm 1); ``order`` is a random permutation of the prefill workers' indices.

    Raises:
        ValueError: ``order`` is not a permutation of the prefill workers.
        CostProfileError: an estimate is needed and the profile lacks a worker's degree.
    """
    if sorted(order) != list(range(len(prefill))):
        raise ValueError(f"order: {list(order)} is not a permutation of the {len(prefill)} prefill workers")
    for i in order:  # lines 1-3
        if _has_slack(prefill[i].windowed_ttft, alpha * slo.ttft_s):
            return Decision(remote=prefill[i].worker, reason="ttft-slack")
    if _has_slack(decode.windowed_itl, beta * slo.itl_s):  # lines 4-5
        return Decision(remote=None, reason="itl-slack")
    costs = {"local": local_seconds(task, decode, profile)}  # line 6
    best: str | None = None
    least = costs["local"]
    for worker in prefill:  # lines 7-9
        seconds = remote_seconds(task, decode, worker, profile)
        costs[worker.worker] = seconds
        if seconds < least:
            best, least = worker.worker, seconds
    return Decision(remote=best, reason="least-cost", costs=costs)


def _has_slack(windowed: float | None, threshold: float) -> bool:
    return windowed is None or windowed <= threshold


def completion_seconds(seconds: Sequence[float], ordering: Sequence[int]) -> list[float]:
    """Return Eq. (3): C(pi(k)) = sum over j <= k of t_pre(pi(j)), from now, in the ordering's sequence."""
    return list(accumulate(seconds[i] for i in ordering))


def satisfied(seconds: Sequence[float], waited: Sequence[float], ordering: Sequence[int], *, ttft_slo: float) -> int:
    """Return Eq. (4): S_pi = number of k with (T_now - T_enq(pi(k))) + C(pi(k)) <= TTFT_thres."""
    finish = completion_seconds(seconds, ordering)
    return sum(waited[i] + c <= ttft_slo for i, c in zip(ordering, finish, strict=True))


def postponed_by(ordering: Sequence[int]) -> tuple[int, ...]:
    """Return who an ordering postpones: every task that it puts behind its own place in the queue."""
    return tuple(sorted(task for place, task in enumerate(ordering) if place > task))


def reorder(
    queue: Sequence[QueuedTask],
    *,
    now: float,
    window: int,
    ttft_slo: float,
    seconds: Callable[[QueuedTask], float],
) -> Reordering:
    """Order the head window of a prefill queue so that most tasks meet the TTFT SLO (Algorithm 2).

    ``order`` is a permutation of the window's indices and ``postponed`` names those whose counter
    the caller must increment; a task whose counter reached ``window`` is never postponed again.

    Raises:
        ValueError: ``window`` is not between 1 and MAX_WINDOW.
    """
    if not 1 <= window <= MAX_WINDOW:
        raise ValueError(f"window: {window} is not between 1 and {MAX_WINDOW}; every ordering of it is tried")
    head = queue[:window]
    times = [seconds(task) for task in head]
    waited = [now - task.enqueued_at for task in head]
    capped = {i for i, task in enumerate(head) if task.postponed >= window}
    best: tuple[int, ...] | None = None
    most = -1
    for ordering in permutations(range(len(head))):  # line 2
        if capped and not capped.isdisjoint(postponed_by(ordering)):  # lines 3-4
            continue
        count = satisfied(times, waited, ordering, ttft_slo=ttft_slo)  # line 5
        if best is None or count > most:  # line 6
            best, most = ordering, count
            if count == len(head):
                break  # no ordering satisfies more than all tasks
    chosen = best if best is not None else ()
    return Reordering(order=chosen, postponed=postponed_by(chosen))  # lines 7-8
