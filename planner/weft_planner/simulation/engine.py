"""Run a worker: continuous batching with slices of prefill riding along, or whole prefills that pause decoding."""

from weft_core.timing import largest_chunk, prefill_seconds, step_seconds
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.gaps import ITL_RINGS, forget_gaps, note_gap, note_window
from weft_planner.simulation.lists import append, list_of, push, remove, slot_of
from weft_planner.simulation.memory import make_room_to_grow, use_kv
from weft_planner.simulation.queues import advance, chunk_seconds_limit, mark, prefill_pieces, step_pieces
from weft_planner.simulation.records import (
    ACTIVE,
    BACK_END,
    FRESH,
    IDLE,
    JOINING,
    PREFILL,
    PREFILL_END,
    PULL,
    READ_END,
    SLICE,
    SLOT,
    STEP_END,
    STEPPING,
    WHOLE,
    Book,
)
from weft_planner.simulation.rounds import begin_answer, end_prefill, leave
from weft_planner.simulation.transfers import send


@jitable
def begin(book: Book, worker: int, now: float) -> None:
    """Let an idle worker go on: a whole prefill before anything else, else a step of its batch with a slice."""
    w = book.workers[worker]
    if book.rules[0].pull == 1:
        fetch(book, worker, now)
    if w.current >= 0 and book.rows[w.current].whole == 1:
        begin_whole(book, worker, now)
        return
    join(book, worker)
    if book.rules[0].oracle == 0 and w.batch > 0:
        make_room_to_grow(book, worker)
    if w.batch == 0 and w.current < 0:
        return
    w.chunk = 0
    history = 0.0
    if w.current >= 0 and now < w.slice_from and w.batch == 0:
        if w.waking == 0:
            w.waking = 1
            push(book, w.slice_from, SLICE, worker)
        return
    if w.current >= 0 and now >= w.slice_from:
        r = book.rows[w.current]
        history = r.task_history + r.done
        w.chunk = slice_of(book, worker, history, r.task_tokens - r.done)
    seconds = step_seconds(step_pieces(book, worker), float(w.batch), w.context, float(w.chunk), history)
    if w.chunk > 0:
        noise = book.rows[w.current].chunk_noise
        if noise != 1.0:
            alone = step_seconds(step_pieces(book, worker), float(w.batch), w.context) if w.batch > 0 else 0.0
            seconds = alone + (seconds - alone) * noise
    w.mode = STEPPING
    w.began = now
    push(book, now + seconds, STEP_END, worker)


@jitable
def fetch(book: Book, worker: int, now: float) -> None:
    """Begin to fetch the KV of the prefills that ended elsewhere since the last step."""
    which = list_of(book, PULL, worker)
    row = book.ends[which, 0]
    while row >= 0:
        remove(book, PULL, which, row)
        r = book.rows[row]
        send(book, row, BACK_END, r.where, worker, r.back, r.back_sends, now)
        row = book.ends[which, 0]


@jitable
def slice_of(book: Book, worker: int, history: float, rest: float) -> int:
    """Return the tokens of a task that ride along with the next step: what the ITL SLO allows, the floor at least."""
    rules = book.rules[0]
    w = book.workers[worker]
    most = int(min(float(rules.chunk_limit), rest))
    limit = chunk_seconds_limit(book, worker)
    tokens = largest_chunk(step_pieces(book, worker), float(w.batch), w.context, history, limit, most)
    return max(tokens, min(rules.chunk_floor, most))


@jitable
def begin_whole(book: Book, worker: int, now: float) -> None:
    """Run a prefill in one piece; a prefill worker holds its KV until that was sent away."""
    w = book.workers[worker]
    r = book.rows[w.current]
    if w.role == PREFILL and r.scratch == 0:
        tokens = r.task_history + r.task_tokens
        if w.kv_used + tokens > w.kv_capacity:
            w.current = -1  # until a transfer has made room
            return
        r.scratch = tokens
        use_kv(book, worker, tokens)
    w.mode = WHOLE
    if r.read > 0:
        send(book, w.current, READ_END, book.sessions[r.session].bound, worker, r.read, r.read_sends, now)
        r.read = 0.0
        return
    compute_whole(book, worker, now)


@jitable
def compute_whole(book: Book, worker: int, now: float) -> None:
    """Compute a prefill in one piece; all that it needs is there."""
    w = book.workers[worker]
    r = book.rows[w.current]
    w.began = now
    push(
        book,
        now + prefill_seconds(prefill_pieces(book, worker), r.task_history, r.task_tokens) * r.noise,
        PREFILL_END,
        worker,
    )


@jitable
def end_read(book: Book, row: int, now: float) -> None:
    """Let a prefill go on whose history was read: it has its turn already, or may have it from now on."""
    r = book.rows[row]
    if r.ready == 1:
        compute_whole(book, r.where, now)
        return
    r.ready = 1
    mark(book, r.where)


@jitable
def join(book: Book, worker: int) -> None:
    """Put the sequences that became ready into the running batch."""
    w = book.workers[worker]
    joining = list_of(book, JOINING, worker)
    fresh = list_of(book, FRESH, worker)
    row = book.ends[joining, 0]
    while row >= 0:
        remove(book, JOINING, joining, row)
        r = book.rows[row]
        r.join_step = w.steps + r.starts
        w.starting += r.starts
        append(book, FRESH, fresh, row)
        append(book, ACTIVE, list_of(book, ACTIVE, worker), row)
        append(book, SLOT, slot_of(book, worker, r.join_step + r.left), row)
        w.batch += 1
        w.context += r.history + r.increment + 1 + r.generated - r.starts
        book.per_class[worker, book.sessions[r.session].kind].active += 1
        row = book.ends[joining, 0]


@jitable
def count_busy(book: Book, worker: int, now: float) -> None:
    """Add the time since a worker began to its busy time, as far as it lies in the observed window."""
    w = book.workers[worker]
    rules = book.rules[0]
    start = max(w.began, rules.begin)
    end = min(now, rules.finish)
    if end > start:
        w.busy += end - start


@jitable
def end_whole(book: Book, worker: int, now: float) -> None:
    """Finish a prefill that ran in one piece."""
    w = book.workers[worker]
    count_busy(book, worker, now)
    mark(book, worker)
    row = w.current
    w.mode = IDLE
    w.current = -1
    advance(book, row, worker, book.rows[row].task_tokens)
    end_prefill(book, row, worker, now)


@jitable
def end_step(book: Book, worker: int, now: float) -> None:
    """Finish a step: every sequence of the batch has one more token, and a slice of a prefill is done."""
    w = book.workers[worker]
    count_busy(book, worker, now)
    w.mode = IDLE
    mark(book, worker)
    if w.batch > 0:
        count_tokens(book, worker, now)
    if w.chunk > 0:
        row = w.current
        advance(book, row, worker, float(w.chunk))
        w.chunk = 0
        w.slice_from = now + book.rules[0].slice_turn
        if book.rows[row].done >= book.rows[row].task_tokens:
            w.current = -1
            end_prefill(book, row, worker, now)


@jitable
def count_tokens(book: Book, worker: int, now: float) -> None:
    """Count a step's tokens and gaps, and let go the sequences that are done."""
    rules = book.rules[0]
    w = book.workers[worker]
    w.steps += 1
    w.context += w.batch
    fresh = list_of(book, FRESH, worker)
    joined = book.ends[fresh, 2]
    seen = w.batch - w.starting
    gap = now - w.last_end
    total = 0.0
    if w.batch > joined:
        note_gap(book, worker, gap)
        total = gap * (w.batch - joined)
    else:
        forget_gaps(book, worker)
    w.last_end = now
    row = book.ends[fresh, 0]
    while row >= 0:
        following = book.after[FRESH, row]
        r = book.rows[row]
        if r.starts == 1:  # its first token: the gap after it will be the first one
            r.starts = 0
            w.starting -= 1
            begin_answer(book, row, now)
            if r.left == 0:
                remove(book, FRESH, fresh, row)
            row = following
            continue
        remove(book, FRESH, fresh, row)
        kind = book.sessions[r.session].kind
        first_gap = now - r.since
        r.max_gap = max(r.max_gap, first_gap)
        r.over_base = book.per_class[worker, kind].over
        if first_gap > book.classes[kind].itl_slo:
            r.over_base -= 1
        total += first_gap
        row = following
    if rules.want_windows == 1 and seen > 0:
        note_window(book, worker, ITL_RINGS, now, total, float(seen))
    done = slot_of(book, worker, w.steps)
    row = book.ends[done, 0]
    while row >= 0:
        leave(book, row, worker, now)
        row = book.ends[done, 0]
