"""Give and take KV memory: binding of sessions, admission of rounds, eviction of idle sessions, preemption."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.gaps import largest_gap, over_now
from weft_planner.simulation.lists import UNBOUND, append, list_of, prepend, remove, slot_of
from weft_planner.simulation.queues import mark
from weft_planner.simulation.records import (
    ACTIVE,
    DECODE,
    FRESH,
    JOINING,
    KEPT,
    QUEUE,
    SLOT,
    WAITING,
    Book,
)
from weft_planner.simulation.tables import ask

NO_ROOM = -1e300
"""Free tokens of a worker that cannot take a session: no prefix hit makes up for it."""


@jitable
def use_kv(book: Book, worker: int, tokens: float) -> None:
    """Take KV memory of a worker."""
    w = book.workers[worker]
    w.kv_used += tokens
    w.kv_peak = max(w.kv_peak, w.kv_used)


@jitable
def free_kv(book: Book, worker: int, tokens: float) -> None:
    """Give KV memory of a worker back, and have those who wait for it looked at."""
    book.workers[worker].kv_used -= tokens
    book.totals[0].room = 1
    mark(book, worker)


@jitable
def keep(book: Book, row: int, worker: int) -> None:
    """Let the KV of a session between rounds be evicted from now on; ``row`` is its next round."""
    r = book.rows[row]
    held = book.sessions[r.session].held
    r.idle = 1
    append(book, KEPT, list_of(book, KEPT, worker), row)
    book.workers[worker].idle_held += held


@jitable
def unkeep(book: Book, row: int, worker: int) -> None:
    """Protect a session's KV again, or take it out of the books before it is freed."""
    r = book.rows[row]
    if r.idle == 1:
        r.idle = 0
        remove(book, KEPT, list_of(book, KEPT, worker), row)
        book.workers[worker].idle_held -= book.sessions[r.session].held


@jitable
def evict_one(book: Book, worker: int, spared: int) -> bool:
    """Drop the KV of the session that has been idle longest, not that of row ``spared``; False when there is none."""
    row = book.ends[list_of(book, KEPT, worker), 0]
    if row == spared and row >= 0:
        row = book.after[KEPT, row]
    if row < 0:
        return False
    unkeep(book, row, worker)
    session = book.sessions[book.rows[row].session]
    book.workers[worker].kv_used -= session.held
    session.held = 0.0
    book.totals[0].evictions += 1
    return True


@jitable
def make_room(book: Book, worker: int, tokens: float) -> bool:
    """Evict idle sessions until there is room for some tokens; always True where memory was reserved beforehand."""
    w = book.workers[worker]
    if book.rules[0].oracle == 0:
        while w.kv_used + tokens > w.kv_capacity:
            if not evict_one(book, worker, -1):
                return False
    return True


@jitable
def bind_session(book: Book, row: int) -> int:
    """Return the decode worker that the service's binding chooses for a session, -1 when none has room.

    The prompt must fit now; with known lengths the whole session must. When nothing is free, memory that idle sessions
    would give up counts as free.
    """
    rules = book.rules[0]
    r = book.rows[row]
    session = book.sessions[r.session]
    need = session.reserve if rules.oracle == 1 else r.history + r.increment + 1
    count = 0
    idle = 0.0
    for i in range(rules.workers):
        w = book.workers[i]
        if w.role != DECODE or w.draining == 1:
            continue
        book.places[count] = i
        book.kv_capacity[count] = w.kv_capacity
        book.bound[count] = w.sessions
        book.prefix_hit[count] = session.prefix if book.per_class[i, session.kind].cached == 1 else 0.0
        book.load[count] = w.batch + book.ends[list_of(book, WAITING, i), 2] + book.ends[list_of(book, QUEUE, i), 2]
        idle += w.idle_held
        count += 1
    chosen = -1
    attempts = 0 if count == 0 else (1 if idle == 0 or rules.oracle == 1 else 2)
    for attempt in range(attempts):
        for k in range(count):
            w = book.workers[book.places[k]]
            free = w.kv_capacity - w.kv_used
            if attempt == 1:
                free += w.idle_held
            book.kv_free[k] = free if free >= need else NO_ROOM
        book.totals[0].asked = count
        book.totals[0].need = need
        chosen = ask(rules.place, book)
        if chosen >= 0:
            break
    if chosen < 0:
        return -1
    book.totals[0].cursor = chosen + 1
    return book.places[chosen]


@jitable
def attach(book: Book, row: int, worker: int) -> None:
    """Bind a session to a worker."""
    session = book.sessions[book.rows[row].session]
    session.bound = worker
    book.workers[worker].sessions += 1
    if book.rules[0].oracle == 1:
        use_kv(book, worker, session.reserve)


@jitable
def detach(book: Book, row: int) -> None:
    """End a session's binding and free its memory; ``row`` is its current or next round."""
    session = book.sessions[book.rows[row].session]
    worker = session.bound
    unkeep(book, row, worker)
    free_kv(book, worker, session.reserve if book.rules[0].oracle == 1 else session.held)
    session.held = 0.0
    session.bound = -1
    book.workers[worker].sessions -= 1


@jitable
def wait(book: Book, row: int, worker: int) -> None:
    """Let a round wait for room in its worker's KV cache; it is looked at as soon as this event is dealt with."""
    append(book, WAITING, list_of(book, WAITING, worker), row)
    mark(book, worker)


@jitable
def wait_unbound(book: Book, row: int) -> None:
    """Let a round wait for a worker that has room for its session."""
    append(book, WAITING, UNBOUND, row)
    book.totals[0].room = 1


@jitable
def admit(book: Book, row: int, worker: int) -> bool:
    """Take the memory of a round's prompt and first token, evicting idle sessions; False when there is no room.

    A token of room stays for each other sequence here: without it two could preempt each other for ever, neither of
    them a token further.
    """
    r = book.rows[row]
    session = book.sessions[r.session]
    w = book.workers[worker]
    need = r.history + r.increment + 1 + r.generated
    if book.rules[0].oracle == 0:
        others = w.batch + book.ends[list_of(book, QUEUE, worker), 2] + book.ends[list_of(book, JOINING, worker), 2]
        while w.kv_used + need - session.held + others > w.kv_capacity:
            if not evict_one(book, worker, row):
                return False
    unkeep(book, row, worker)
    if book.rules[0].oracle == 0:
        use_kv(book, worker, need - session.held)
    return True


@jitable
def leave_batch(book: Book, row: int, worker: int) -> None:
    """Take a sequence out of the running batch."""
    r = book.rows[row]
    w = book.workers[worker]
    done = w.steps - r.join_step
    remove(book, ACTIVE, list_of(book, ACTIVE, worker), row)
    remove(book, SLOT, slot_of(book, worker, r.join_step + r.left), row)
    w.batch -= 1
    w.context -= r.history + r.increment + 1 + r.generated + done
    book.per_class[worker, book.sessions[r.session].kind].active -= 1


@jitable
def preempt_one(book: Book, worker: int) -> None:
    """Stop the sequence that joined last and free its memory; it is recomputed, first of those that wait."""
    row = book.ends[list_of(book, ACTIVE, worker), 1]
    r = book.rows[row]
    w = book.workers[worker]
    session = book.sessions[r.session]
    done = w.steps - r.join_step
    if done <= 0:  # no gap was counted yet
        remove(book, FRESH, list_of(book, FRESH, worker), row)
    else:
        r.over_so_far = over_now(book, row, worker)
        r.max_gap = max(r.max_gap, largest_gap(book, worker, r.join_step + 2))
        r.since = w.last_end
    leave_batch(book, row, worker)
    done = max(done, 0)
    w.kv_used -= r.history + r.increment + 1 + r.generated + done
    session.held = 0.0
    r.generated += done
    r.left -= done
    w.starting -= r.starts
    r.resumed = 1 - r.starts
    r.starts = 0
    prepend(book, WAITING, list_of(book, WAITING, worker), row)
    book.totals[0].preemptions += 1


@jitable
def make_room_to_grow(book: Book, worker: int) -> None:
    """Take the memory of one more token of every running sequence; the last to join make way when there is none.

    The first token's memory was taken with the prompt's.
    """
    w = book.workers[worker]
    while w.batch > 0 and w.kv_used + w.batch - w.starting > w.kv_capacity:
        if not evict_one(book, worker, -1):
            preempt_one(book, worker)
    use_kv(book, worker, float(w.batch - w.starting))
