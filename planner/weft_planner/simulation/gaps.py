"""Measure inter-token gaps by counters per worker, so that a finished round's figures cost nothing per token.

All sequences of a running batch see the same gap at every step but their first. So a worker counts, per class, the
steps whose gap was over the class's ITL SLO, and keeps the largest gaps as a stack that falls with time; a round's
figures are differences between its first and its last step.
"""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.records import Book

TTFT_RINGS = 1
ITL_RINGS = 0


@jitable
def over_now(book: Book, row: int, worker: int) -> int:
    """Return how many gaps of a decoding round were over its class's ITL SLO so far."""
    r = book.rows[row]
    if book.workers[worker].steps <= r.join_step:
        return r.over_so_far
    return r.over_so_far + book.per_class[worker, book.sessions[r.session].kind].over - r.over_base


@jitable
def note_gap(book: Book, worker: int, gap: float) -> None:
    """Count the gap that all sequences saw at a worker's latest step; call after the step was counted."""
    w = book.workers[worker]
    for c in range(book.rules[0].classes):
        if gap > book.classes[c].itl_slo:
            book.per_class[worker, c].over += 1
    at = w.peak_to
    while at > 0 and book.peaks[worker, at - 1].gap <= gap:
        at -= 1
    if at == book.rules[0].peaks:  # full: the oldest two become one, which holds the larger gap a little too long
        for i in range(1, at - 1):
            book.peaks[worker, i].gap = book.peaks[worker, i + 1].gap
            book.peaks[worker, i].step = book.peaks[worker, i + 1].step
        book.peaks[worker, 0].step = book.peaks[worker, 1].step
        at -= 1
    book.peaks[worker, at].gap = gap
    book.peaks[worker, at].step = w.steps
    w.peak_to = at + 1


@jitable
def forget_gaps(book: Book, worker: int) -> None:
    """Drop the stack of largest gaps: nobody decodes who saw them."""
    book.workers[worker].peak_to = 0


@jitable
def largest_gap(book: Book, worker: int, first_step: int) -> float:
    """Return the largest gap that all sequences saw since a step, it included; 0 when there was none."""
    low = 0
    high = book.workers[worker].peak_to
    while low < high:
        middle = (low + high) // 2
        if book.peaks[worker, middle].step < first_step:
            low = middle + 1
        else:
            high = middle
    return book.peaks[worker, low].gap if low < book.workers[worker].peak_to else 0.0


@jitable
def note_window(book: Book, worker: int, kind: int, now: float, total: float, count: float) -> None:
    """Add a sample to the statistics window of a worker's TTFT or ITL."""
    rules = book.rules[0]
    w = book.workers[worker]
    which = 2 * worker + kind
    if kind == TTFT_RINGS:
        at = w.ttft_to
        w.ttft_to = at + 1
        if w.ttft_to - w.ttft_from > rules.ring:
            w.ttft_from += 1
    else:
        at = w.ring_to
        w.ring_to = at + 1
        if w.ring_to - w.ring_from > rules.ring:
            w.ring_from += 1
    sample = book.rings[which, at % rules.ring]
    sample.time = now
    sample.total = total
    sample.count = count


@jitable
def window_mean(book: Book, worker: int, kind: int, now: float) -> float:
    """Return the mean of a worker's statistics window, NaN without a sample."""
    rules = book.rules[0]
    w = book.workers[worker]
    which = 2 * worker + kind
    start = w.ttft_from if kind == TTFT_RINGS else w.ring_from
    end = w.ttft_to if kind == TTFT_RINGS else w.ring_to
    while start < end and book.rings[which, start % rules.ring].time < now - rules.window_s:
        start += 1
    if kind == TTFT_RINGS:
        w.ttft_from = start
    else:
        w.ring_from = start
    total = 0.0
    count = 0.0
    for at in range(start, end):
        total += book.rings[which, at % rules.ring].total
        count += book.rings[which, at % rules.ring].count
    return total / count if count > 0 else float("nan")
