"""Keep each worker's queue of prefill tasks, and choose the task that runs next by the service's queue order."""

from weft_core.timing import chunked_queue_seconds, chunked_seconds, pause_between_chunks
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.lists import append, list_of, prepend, remove
from weft_planner.simulation.records import QUEUE, Book, Numbers
from weft_planner.simulation.tables import ask, vector


@jitable
def mark(book: Book, worker: int) -> None:
    """Note that a worker may have something to begin, once this event is dealt with."""
    w = book.workers[worker]
    if w.dirty == 0:
        w.dirty = 1
        book.dirty[book.totals[0].dirty] = worker
        book.totals[0].dirty += 1


@jitable
def work_left(history: float, tokens: float, done: float) -> float:
    """Return the tokens still to compute times what their sequence will hold on average while they are."""
    rest = tokens - done
    return rest * (history + done + rest / 2)


@jitable
def clock_queue(book: Book, worker: int, now: float) -> None:
    """Add to the integral of the queue's length over the observed window; call before the length changes."""
    w = book.workers[worker]
    rules = book.rules[0]
    start = max(w.queue_since, rules.begin)
    end = min(now, rules.finish)
    if end > start:
        w.queue_area += (end - start) * book.ends[list_of(book, QUEUE, worker), 2]
    w.queue_since = now


@jitable
def enqueue(book: Book, row: int, worker: int, now: float) -> None:
    """Add a prefill task, whose figures stand in its row, to a worker's queue."""
    clock_queue(book, worker, now)
    r = book.rows[row]
    w = book.workers[worker]
    append(book, QUEUE, list_of(book, QUEUE, worker), row)
    w.queue_s += r.seconds
    w.queue_tokens += r.task_tokens
    w.queue_work += work_left(r.task_history, r.task_tokens, 0.0)
    mark(book, worker)


@jitable
def dequeue(book: Book, row: int, worker: int, now: float) -> None:
    """Take a finished task out of a worker's queue."""
    clock_queue(book, worker, now)
    r = book.rows[row]
    w = book.workers[worker]
    which = list_of(book, QUEUE, worker)
    remove(book, QUEUE, which, row)
    w.queue_s -= r.seconds
    w.queue_tokens -= r.task_tokens - r.done
    w.queue_work -= work_left(r.task_history, r.task_tokens, r.done)
    if book.ends[which, 2] == 0:  # no rounding error outlives an empty queue
        w.queue_s = 0.0
        w.queue_tokens = 0.0
        w.queue_work = 0.0


@jitable
def advance(book: Book, row: int, worker: int, tokens: float) -> None:
    """Count a slice of a task as computed."""
    r = book.rows[row]
    w = book.workers[worker]
    before = work_left(r.task_history, r.task_tokens, r.done)
    r.done += tokens
    w.queue_tokens -= tokens
    w.queue_work += work_left(r.task_history, r.task_tokens, r.done) - before


@jitable
def chunk_seconds_limit(book: Book, worker: int) -> float:
    """Return how long a step with a slice may take: the share of the strictest ITL SLO among those decoding here.

    A router that sends the slices sends all that is left at once when nobody would wait.
    """
    rules = book.rules[0]
    w = book.workers[worker]
    if w.batch == 0 and rules.slice_turn > 0:
        return float("inf")
    if w.batch == 0 or rules.classes == 1:
        return rules.chunk_fraction * rules.itl_least
    least = -1.0
    for c in range(rules.classes):
        if book.per_class[worker, c].active > 0:
            itl = book.classes[c].itl_slo
            if least < 0 or itl < least:
                least = itl
    return rules.chunk_fraction * least


@jitable
def prefill_pieces(book: Book, worker: int) -> Numbers:
    """Return a worker's flat figures of T_pre."""
    return vector(book.prefill, worker, book.rules[0].prefill_figures)


@jitable
def step_pieces(book: Book, worker: int) -> Numbers:
    """Return a worker's flat figures of an engine step."""
    return vector(book.step, worker, book.rules[0].step_figures)


@jitable
def least_chunk(book: Book) -> int:
    """Return the fewest tokens of a slice as far as predictions go: a router that sends slices has a floor."""
    return book.rules[0].chunk_floor if book.rules[0].slice_turn > 0 else 1


@jitable
def chunked(book: Book, worker: int, history: float, tokens: float) -> float:
    """Return the seconds of computing tokens on a worker in slices beside what it decodes now."""
    rules = book.rules[0]
    w = book.workers[worker]
    pieces = step_pieces(book, worker)
    batch = float(w.batch)
    pause = pause_between_chunks(pieces, batch, w.context, rules.slice_turn)
    limit = chunk_seconds_limit(book, worker)
    return chunked_seconds(
        pieces, batch, w.context, history, tokens, limit, rules.chunk_limit, least_chunk(book), pause
    )


@jitable
def chunked_queue(book: Book, worker: int) -> float:
    """Return the seconds until a worker's queue is done when all of it is run in slices."""
    rules = book.rules[0]
    w = book.workers[worker]
    pieces = step_pieces(book, worker)
    batch = float(w.batch)
    pause = pause_between_chunks(pieces, batch, w.context, rules.slice_turn)
    limit = chunk_seconds_limit(book, worker)
    return chunked_queue_seconds(
        pieces, batch, w.context, w.queue_tokens, w.queue_work, limit, rules.chunk_limit, least_chunk(book), pause
    )


@jitable
def choose(book: Book, worker: int) -> int:
    """Return the task that a worker shall run next, -1 when none is ready: its history may still be on its way.

    Algorithm 2 reorders the head of the queue; a task without its history then stands behind those that have it.
    """
    rules = book.rules[0]
    which = list_of(book, QUEUE, worker)
    count = 0
    row = book.ends[which, 0]
    while row >= 0:
        r = book.rows[row]
        if r.ready == 1:
            book.seconds[count] = r.seconds
            book.enqueued[count] = r.arrival
            book.ttft_slo[count] = book.classes[book.sessions[r.session].kind].ttft_slo
            book.postponed[count] = r.postponed
            book.lost[count] = book.sessions[r.session].missed
            book.queued[count] = row
            count += 1
        row = book.after[QUEUE, row]
    if count == 0:
        return -1
    if count == 1:
        return book.queued[0]
    book.totals[0].asked = count
    place = ask(rules.choose, book)
    for i in range(count):
        book.rows[book.queued[i]].postponed = book.postponed[i]
    if rules.rearranges == 1:
        size = min(rules.window, count)
        for k in range(size):
            remove(book, QUEUE, which, book.queued[k])
        for k in range(size):
            prepend(book, QUEUE, which, book.queued[book.head[size - 1 - k]])
    return book.queued[place]
