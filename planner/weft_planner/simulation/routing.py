"""Ask the routing rule where a round's prefill runs, with every figure that the live router would have."""

from weft_core.policies.inputs import LOCAL
from weft_core.policies.reasons import LOCAL_CHUNKED, LOCAL_WHOLE
from weft_core.policies.routing.weft import LARGEST, MEAN
from weft_core.timing import prefill_seconds, step_seconds, transfer_seconds
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.gaps import ITL_RINGS, TTFT_RINGS, over_now, window_mean
from weft_planner.simulation.lists import list_of
from weft_planner.simulation.memory import use_kv
from weft_planner.simulation.queues import chunked, chunked_queue, enqueue, prefill_pieces, step_pieces
from weft_planner.simulation.records import ACTIVE, DECODE, PREFILL, QUEUE, READ_END, REASON_BITS, Book
from weft_planner.simulation.tables import ask
from weft_planner.simulation.transfers import send

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
def kept_prompt(book: Book, row: int, worker: int) -> float:
    """Return how many tokens of a session's history a prefill worker has in its own prefix cache.

    It has the prompt of the last round that it prefilled, until what it took in since fills its KV memory: its engine
    gives up what was used least recently.
    """
    w = book.workers[worker]
    first = book.sessions[book.rows[row].session].first
    earlier = row - 1
    while earlier >= first and w.role == PREFILL:
        r = book.rows[earlier]
        if r.route == worker:
            return r.history + r.increment if w.taken - r.taken <= w.kv_capacity else 0.0
        earlier -= 1
    return 0.0


@jitable
def describe_task(book: Book, row: int, present: float, total: float, now: float) -> None:
    """Write what the rule may know of a task."""
    r = book.rows[row]
    session = book.sessions[r.session]
    kind = book.classes[session.kind]
    totals = book.totals[0]
    span = min(book.rules[0].window_s + now - totals.rate_from, max(1.0, now - book.sessions[0].arrival))
    task = book.task[0]
    task.history = present
    task.increment = total - present
    task.waited_s = now - r.arrival
    task.ttft_slo = kind.ttft_slo
    task.itl_slo = kind.itl_slo
    task.round = row - session.first
    task.answer = kind.decode
    task.rate = (totals.arrivals + totals.arrivals_before) / span
    task.uniform = draw(book)
    task.priority = kind.priority
    task.now = now


@jitable
def describe_local(book: Book, worker: int, present: float, tokens: float, now: float) -> None:
    """Write the decode worker's figures for a task of ``tokens`` to compute after ``present`` cached ones."""
    rules = book.rules[0]
    w = book.workers[worker]
    local = book.local[0]
    local.queue_s = w.queue_s
    local.prefill_s = prefill_seconds(prefill_pieces(book, worker), present, tokens)
    local.chunked_queue_s = chunked_queue(book, worker) if rules.slices == 1 else float("inf")
    local.chunked_s = chunked(book, worker, present, tokens) if rules.slices == 1 else float("inf")
    local.windowed_itl = window_mean(book, worker, ITL_RINGS, now) if rules.want_windows == 1 else float("nan")
    local.batch = w.batch
    local.context = w.context
    local.step_s = step_seconds(step_pieces(book, worker), max(1.0, float(w.batch)), w.context)
    local.kv_free = w.kv_capacity - w.kv_used
    local.queued = book.ends[list_of(book, QUEUE, worker), 2]


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
    remote = book.remote[at]
    if w.role == DECODE and rules.slices == 1:
        remote.queue_s = chunked_queue(book, worker)
        remote.prefill_s = chunked(book, worker, cached, tokens)
    else:
        remote.queue_s = w.queue_s
        remote.prefill_s = prefill_seconds(prefill_pieces(book, worker), cached, tokens)
    remote.read_s = transfer_seconds(link.alpha, link.per_token, read)
    remote.back_s = transfer_seconds(back.alpha, back.per_token, back_tokens(book, present, total))
    remote.windowed_ttft = window_mean(book, worker, TTFT_RINGS, now) if rules.want_windows == 1 else float("nan")
    remote.queued = book.ends[list_of(book, QUEUE, worker), 2]
    remote.cached = cached_prefix(book, row, worker)
    remote.kv_use = w.kv_used / w.kv_capacity
    remote.used_at = w.last_chosen
    remote.link_rate = back.rate


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
        if r.starts == 1:  # it has no gap yet that could grow
            row = book.after[ACTIVE, row]
            continue
        session = book.sessions[r.session]
        done = w.steps - r.join_step
        book.gap_counts[count] = session.gaps + r.generated + done
        if rules.itl_statistic == MEAN:
            until = w.last_end if done > 0 else r.since
            book.gap_sums[count] = session.gap_s + until - r.first
        elif rules.itl_statistic == LARGEST:
            book.gap_sums[count] = session.over + over_now(book, row, worker)
        else:
            book.gap_sums[count] = session.over + over_now(book, row, worker)
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
            book.candidates[count] = i
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
        describe_remote(book, row, k, book.candidates[k], home, present, total, now)
        book.order[k] = k
    for k in range(workers - 1, 0, -1):
        other = int(draw(book) * (k + 1))
        kept = book.order[k]
        book.order[k] = book.order[other]
        book.order[other] = kept
    batch = describe_batch(book, home) if rules.want_gaps == 1 else 0
    book.totals[0].asked = workers
    book.totals[0].decoding = batch
    answer = ask(rules.decide, book)
    choice = answer >> REASON_BITS
    reason = answer & ((1 << REASON_BITS) - 1)
    r.reason = reason
    r.route = LOCAL
    if choice == LOCAL:
        whole = reason == LOCAL_WHOLE or (reason != LOCAL_CHUNKED and rules.slices == 0)
        start_prefill(book, row, home, home, present, total - present, 0.0, 0.0, whole, now)
    else:
        worker = book.candidates[choice]
        r.route = worker
        cached, tokens, read = prefill_figures(book, row, worker, present, total)
        if rules.pull == 1 and not first:
            kept = kept_prompt(book, row, worker)
            if read > 0:
                read = max(0.0, read - kept)
            else:
                cached = min(kept, total - 1)
                tokens = total - cached
        if rules.history_read == 0 and not first:
            book.totals[0].recomputed += max(0.0, present - cached)
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
    r.seconds = prefill_seconds(prefill_pieces(book, worker), cached, tokens)
    r.ready = 1
    r.scratch = 0.0
    w.last_chosen = now
    if worker != home and w.role == DECODE:  # a helper holds the KV beside its own sessions'
        r.scratch = cached + tokens
        use_kv(book, worker, r.scratch)
    enqueue(book, row, worker, now)
    w.taken += tokens + read
    r.taken = w.taken
    r.read = 0.0
    if read > 0:
        book.totals[0].read += read
        if book.rules[0].pull == 1 and w.role == PREFILL:
            r.read = read
            return
        r.ready = 0
        send(book, row, READ_END, home, worker, read, r.read_sends, now)
