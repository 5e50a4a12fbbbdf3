"""Choose the prefill that runs next, by the code of a queue order: the one door for the router and the simulator."""

from collections.abc import MutableSequence, Sequence

from weft_core.policies.ampd_window import MAX_WINDOW, next_ampd_window
from weft_core.policies.codes import AMPD_WINDOW, EDF, MOORE_HODGSON
from weft_core.policies.edf import next_edf
from weft_core.policies.fcfs import next_fcfs
from weft_core.policies.moore_hodgson import next_moore_hodgson

ORDER_MAX = MAX_WINDOW


def next_task(
    code: int,
    now: float,
    seconds: Sequence[float],
    enqueued: Sequence[float],
    ttft_slo: Sequence[float],
    postponed: MutableSequence[int],
    lost: Sequence[int],
    window: int,
    cap: int,
    order: MutableSequence[int],
) -> int:
    """Return the place of the task to run next in a queue that holds at least one.

    Vectors hold one figure per task, in order of arrival (``ampd-window``: in the order it left): predicted seconds,
    enqueue time, TTFT SLO, times postponed (in and out), whether its session has missed its SLO. ``order``, of length
    ORDER_MAX, is written by ``ampd-window`` alone: the head's new order, by which the caller rearranges its queue.
    """
    if code == MOORE_HODGSON:
        return next_moore_hodgson(now, seconds, enqueued, ttft_slo, postponed, lost, cap)
    if code == AMPD_WINDOW:
        return next_ampd_window(now, seconds, enqueued, ttft_slo, postponed, window, order)
    if code == EDF:
        return next_edf(enqueued, ttft_slo)
    return next_fcfs()
