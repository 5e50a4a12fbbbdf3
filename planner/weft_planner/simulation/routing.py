"""Ask the routing rule where a round's prefill runs, with every figure that the live router would have."""

from weft_core.policies.decide import decide
from weft_core.policies.features import (
    LOCAL,
    LOCAL_BATCH,
    LOCAL_CHUNKED_QUEUE_S,
    LOCAL_CHUNKED_S,
    LOCAL_CONTEXT,
    LOCAL_KV_FREE,
    LOCAL_PREFILL_S,
    LOCAL_QUEUE_S,
    LOCAL_QUEUED,
    LOCAL_SIZE,
    LOCAL_STEP_S,
    LOCAL_WINDOWED_ITL,
    REMOTE_BACK_S,
    REMOTE_CACHED,
    REMOTE_IDLE_S,
    REMOTE_KV_USE,
    REMOTE_PREFILL_S,
    REMOTE_QUEUE_S,
    REMOTE_QUEUED,
    REMOTE_RATE,
    REMOTE_READ_S,
    REMOTE_SIZE,
    REMOTE_WINDOWED_TTFT,
    TASK_DECODE,
    TASK_HISTORY,
    TASK_INCREMENT,
    TASK_ITL_SLO,
    TASK_PRIORITY,
    TASK_RATE,
    TASK_ROUND,
    TASK_SIZE,
    TASK_TTFT_SLO,
    TASK_UNIFORM,
    TASK_WAITED,
)
from weft_core.policies.reasons import LOCAL_CHUNKED, LOCAL_WHOLE
from weft_core.policies.weft import LARGEST, MEAN
from weft_core.timing import prefill_seconds, step_seconds, transfer_seconds
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.gaps import ITL_RINGS, TTFT_RINGS, over_now, window_mean
from weft_planner.simulation.lists import list_of
from weft_planner.simulation.memory import use_kv
from weft_planner.simulation.queues import chunked, chunked_queue, enqueue
from weft_planner.simulation.records import ACTIVE, DECODE, PREFILL, QUEUE, READ_END, Book
from weft_planner.simulation.transfers import send

# Places of ``Book.floats`` and ``Book.ints`` while a rule is asked.
TASK = 0
LOCAL_WORKER = 1
COSTS = 2
SUMS = 3
COUNTS = 4
ORDER = 0
CANDIDATES = 1

MODULUS = 2147483647
MULTIPLIER = 48271


@jitable
def draw(book: Book) -> float:
    """Return a random number in (0, 1): the minimal standard generator, equal everywhere and enough to shuffle."""
    totals = book.totals[0]
    totals.random = totals.random * MULTIPLIER % MODULUS
    return totals.random / MODULUS


@jitable
def cached_prefix(book: Book, row: int, worker: int) -> float:
    """Return how many tokens of a session's first prompt a worker has in its prefix cache; one is always computed."""
    r = book.rows[row]
    session = book.sessions[r.session]
    if row != session.first or book.per_class[worker, session.kind].cached == 0:
        return 0.0
    return min(session.prefix, r.increment - 1)


@jitable
def prefill_figures(book: Book, row: int, worker: int, present: float, total: float) -> tuple[float, float, float]:
    """Return (cached, to compute, to read first) of a round's prefill on a worker that is not its decode worker.

    ``present`` of its ``total`` tokens are on the decode worker.
    """
    r = book.rows[row]
    if row == book.sessions[r.session].first:
        cached = cached_prefix(book, row, worker)
        return cached, total - cached, 0.0
    if book.rules[0].history_read == 1 and present > 0:
        return present, total - present, present
    return 0.0, total, 0.0


@jitable
def describe_task(book: Book, row: int, present: float, total: float, now: float) -> None:
    """Write what the rule may know of a task."""
    r = book.rows[row]
    session = book.sessions[r.session]
    kind = book.classes[session.kind]
    totals = book.totals[0]
    span = min(book.rules[0].window_s + now - totals.rate_from, max(1.0, now - book.sessions[0].arrival))
    task = book.floats[TASK]
    task[TASK_HISTORY] = present
    task[TASK_INCREMENT] = total - present
    task[TASK_WAITED] = now - r.arrival
    task[TASK_TTFT_SLO] = kind.ttft_slo
    task[TASK_ITL_SLO] = kind.itl_slo
    task[TASK_ROUND] = row - session.first
    task[TASK_DECODE] = kind.decode
    task[TASK_RATE] = (totals.arrivals + totals.arrivals_before) / span
    task[TASK_UNIFORM] = draw(book)
    task[TASK_PRIORITY] = kind.priority


@jitable
def describe_local(book: Book, worker: int, present: float, tokens: float, now: float) -> None:
    """Write the decode worker's figures for a task of ``tokens`` to compute after ``present`` cached ones."""
    rules = book.rules[0]
    w = book.workers[worker]
    local = book.floats[LOCAL_WORKER]
    local[LOCAL_QUEUE_S] = w.queue_s
    local[LOCAL_PREFILL_S] = prefill_seconds(book.prefill[worker], present, tokens)
    if rules.slices == 1:
        local[LOCAL_CHUNKED_QUEUE_S] = chunked_queue(book, worker)
        local[LOCAL_CHUNKED_S] = chunked(book, worker, present, tokens)
    else:
        local[LOCAL_CHUNKED_QUEUE_S] = float("inf")
        local[LOCAL_CHUNKED_S] = float("inf")
    local[LOCAL_WINDOWED_ITL] = window_mean(book, worker, ITL_RINGS, now) if rules.want_windows == 1 else float("nan")
    local[LOCAL_BATCH] = w.batch
    local[LOCAL_CONTEXT] = w.context
    local[LOCAL_STEP_S] = step_seconds(book.step[worker], max(1.0, float(w.batch)), w.context)
    local[LOCAL_KV_FREE] = w.kv_capacity - w.kv_used
    local[LOCAL_QUEUED] = book.ends[list_of(book, QUEUE, worker), 2]


@jitable
def describe_remote(
    book: Book, row: int, at: int, worker: int, home: int, present: float, total: float, now: float
) -> None:
    """Write one candidate's figures; one that decodes too would run the task in slices where slices are run."""
    rules = book.rules[0]
    w = book.workers[worker]
    cached, tokens, read = prefill_figures(book, row, worker, present, total)
    link = book.links[home, worker]
    back = book.links[worker, home]
    figures = book.remote[at * REMOTE_SIZE : (at + 1) * REMOTE_SIZE]
    if w.role == DECODE and rules.slices == 1:
        figures[REMOTE_QUEUE_S] = chunked_queue(book, worker)
        figures[REMOTE_PREFILL_S] = chunked(book, worker, cached, tokens)
    else:
        figures[REMOTE_QUEUE_S] = w.queue_s
        figures[REMOTE_PREFILL_S] = prefill_seconds(book.prefill[worker], cached, tokens)
    figures[REMOTE_READ_S] = transfer_seconds(link.alpha, link.per_token, read)
    figures[REMOTE_BACK_S] = transfer_seconds(back.alpha, back.per_token, back_tokens(book, present, total))
    figures[REMOTE_WINDOWED_TTFT] = (
        window_mean(book, worker, TTFT_RINGS, now) if rules.want_windows == 1 else float("nan")
    )
    figures[REMOTE_QUEUED] = book.ends[list_of(book, QUEUE, worker), 2]
    figures[REMOTE_CACHED] = cached_prefix(book, row, worker)
    figures[REMOTE_KV_USE] = w.kv_used / w.kv_capacity
    figures[REMOTE_IDLE_S] = now - w.last_chosen
    figures[REMOTE_RATE] = back.rate


@jitable
def back_tokens(book: Book, present: float, total: float) -> float:
    """Return how many tokens' KV a remote prefill sends to the decode worker: all of it when it computed all."""
    return total - present if book.rules[0].history_read == 1 else total


@jitable
def describe_batch(book: Book, worker: int) -> int:
    """Write each decoding session's gaps so far, in the SLO's own reading; returns how many sessions there are."""
    rules = book.rules[0]
    w = book.workers[worker]
    count = 0
    row = book.ends[list_of(book, ACTIVE, worker), 0]
    while row >= 0:
        r = book.rows[row]
        session = book.sessions[r.session]
        done = w.steps - r.join_step
        book.floats[COUNTS, count] = session.gaps + r.generated + done
        if rules.itl_statistic == MEAN:
            until = w.last_end if done > 0 else r.since
            book.floats[SUMS, count] = session.gap_s + until - r.first
        elif rules.itl_statistic == LARGEST:
            book.floats[SUMS, count] = session.over + over_now(book, row, worker)
        else:
            book.floats[SUMS, count] = session.over + over_now(book, row, worker)
        count += 1
        row = book.after[ACTIVE, row]
    return count


@jitable
def candidates(book: Book, home: int, total: float) -> int:
    """Write the workers that may prefill for a session of worker ``home``; returns how many there are.

    A symmetric layout's worker must have room for the task's KV beside its own sessions.
    """
    rules = book.rules[0]
    count = 0
    if book.workers[home].colocated == 1:
        return 0
    for i in range(rules.workers):
        w = book.workers[i]
        if i == home or w.draining == 1:
            continue
        helps = rules.symmetric == 1 and w.role == DECODE and w.kv_used + total <= w.kv_capacity
        if helps or (w.role == PREFILL and total <= w.kv_capacity):
            book.ints[CANDIDATES, count] = i
            count += 1
    return count


@jitable
def route(book: Book, row: int, home: int, now: float) -> None:
    """Route a round whose KV memory is taken, and put its prefill into the queue of the worker that was chosen."""
    rules = book.rules[0]
    r = book.rows[row]
    session = book.sessions[r.session]
    first = row == session.first
    present = cached_prefix(book, row, home) if first else min(session.held, r.history)
    total = r.history + r.increment + r.generated
    session.held = r.history + r.increment + 1 + r.generated
    if r.resumed == 1:  # what a preempted sequence had is computed anew, where it decodes
        start_prefill(book, row, home, home, 0.0, total, 0.0, 0.0, rules.slices == 0, now)
        book.totals[0].recomputed += total
        return
    if not first:
        book.totals[0].recomputed += r.history - present
    workers = candidates(book, home, total)
    describe_task(book, row, present, total, now)
    describe_local(book, home, present, total - present, now)
    for k in range(workers):
        describe_remote(book, row, k, book.ints[CANDIDATES, k], home, present, total, now)
        book.ints[ORDER, k] = k
    for k in range(workers - 1, 0, -1):
        other = int(draw(book) * (k + 1))
        kept = book.ints[ORDER, k]
        book.ints[ORDER, k] = book.ints[ORDER, other]
        book.ints[ORDER, other] = kept
    batch = describe_batch(book, home) if rules.want_gaps == 1 else 0
    choice, reason = decide(
        rules.route,
        book.floats[TASK, :TASK_SIZE],
        book.floats[LOCAL_WORKER, :LOCAL_SIZE],
        book.remote[: workers * REMOTE_SIZE],
        workers,
        book.ints[ORDER, :workers],
        book.params,
        book.floats[SUMS, :batch],
        book.floats[COUNTS, :batch],
        book.floats[COSTS],
    )
    r.reason = reason
    r.route = LOCAL
    if choice == LOCAL:
        whole = reason == LOCAL_WHOLE or (reason != LOCAL_CHUNKED and rules.slices == 0)
        start_prefill(book, row, home, home, present, total - present, 0.0, 0.0, whole, now)
    else:
        worker = book.ints[CANDIDATES, choice]
        r.route = worker
        cached, tokens, read = prefill_figures(book, row, worker, present, total)
        if book.rules[0].history_read == 0 and not first:
            book.totals[0].recomputed += present
        back = back_tokens(book, present, total)
        start_prefill(book, row, worker, home, cached, tokens, read, back, rules.slices == 0, now)


@jitable
def start_prefill(
    book: Book,
    row: int,
    worker: int,
    home: int,
    cached: float,
    tokens: float,
    read: float,
    back: float,
    whole: bool,
    now: float,
) -> None:
    """Queue a prefill on a worker and begin to read its history there, while it waits its turn."""
    r = book.rows[row]
    w = book.workers[worker]
    r.where = worker
    r.task_history = cached
    r.task_tokens = tokens
    r.done = 0.0
    r.back = back
    r.whole = 1 if whole or w.role == PREFILL else 0
    r.seconds = prefill_seconds(book.prefill[worker], cached, tokens)
    r.ready = 1
    r.scratch = 0.0
    w.last_chosen = now
    if worker != home and w.role == DECODE:  # a helper holds the KV beside its own sessions'
        r.scratch = cached + tokens
        use_kv(book, worker, r.scratch)
    enqueue(book, row, worker, now)
    if read > 0:
        r.ready = 0
        book.totals[0].read += read
        send(book, row, READ_END, home, worker, read, r.read_sends, now)
