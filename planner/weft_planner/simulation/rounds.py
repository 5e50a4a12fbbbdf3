"""Follow rounds from their arrival to their last token, and sessions from their first round to their last."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.gaps import TTFT_RINGS, largest_gap, note_window, over_now
from weft_planner.simulation.lists import UNBOUND, append, list_of, push, remove
from weft_planner.simulation.memory import (
    attach,
    bind_session,
    detach,
    free_kv,
    keep,
    leave_batch,
    make_room,
    unkeep,
    use_kv,
    wait,
    wait_unbound,
)
from weft_planner.simulation.queues import dequeue, mark
from weft_planner.simulation.records import ARRIVE, BACK_END, DECODE, JOINING, MOVED, PULL, WAITING, Book
from weft_planner.simulation.transfers import send

SERVED = 1
TOO_LONG = 2


@jitable
def arrive(book: Book, row: int, now: float) -> None:
    """Take in a round; the first of a session brings up the next session's arrival."""
    totals = book.totals[0]
    r = book.rows[row]
    session = book.sessions[r.session]
    if row == session.first and r.session + 1 < book.rules[0].sessions:
        following = book.sessions[r.session + 1]
        push(book, following.arrival, ARRIVE, following.first)
    if now - totals.rate_from > book.rules[0].window_s:
        totals.arrivals_before = totals.arrivals
        totals.arrivals = 0
        totals.rate_from = now
    totals.arrivals += 1
    r.arrival = now
    context = r.history + r.increment + r.left + 1
    if book.rules[0].oracle == 1:
        context = session.reserve
    largest = 0.0
    for i in range(book.rules[0].workers):
        w = book.workers[i]
        if (w.role == DECODE or w.target == DECODE) and (session.bound < 0 or session.bound == i):
            largest = max(largest, w.kv_capacity)
    if 0 < largest < context:  # without any decode worker it waits for one
        r.state = TOO_LONG
        if session.bound >= 0 and session.moving == 0:
            detach(book, row)
        return
    if session.bound >= 0 and session.moving == 0 and book.workers[session.bound].draining == 1:
        detach(book, row)
    if session.moving == 1:
        session.parked = 1
    elif session.bound >= 0:
        wait(book, row, session.bound)
    else:
        wait_unbound(book, row)


@jitable
def bind_waiting(book: Book) -> None:
    """Bind the sessions that wait for a worker, in order of arrival, as far as there is room."""
    row = book.ends[UNBOUND, 0]
    while row >= 0:
        worker = bind_session(book, row)
        if worker < 0:
            return
        remove(book, WAITING, UNBOUND, row)
        attach(book, row, worker)
        wait(book, row, worker)
        row = book.ends[UNBOUND, 0]


@jitable
def end_prefill(book: Book, row: int, worker: int, now: float) -> None:
    """Finish a prefill: on the session's own worker it decodes now, elsewhere the KV has to be sent there."""
    r = book.rows[row]
    session = book.sessions[r.session]
    dequeue(book, row, worker, now)
    if row == session.first:
        book.per_class[worker, session.kind].cached = 1
    if book.rules[0].want_windows == 1 and r.resumed == 0:
        note_window(book, worker, TTFT_RINGS, now, now - r.arrival, 1.0)
    if worker == session.bound:
        first_token(book, row, now)
    else:
        book.totals[0].back += r.back
        if book.rules[0].pull == 1:
            append(book, PULL, list_of(book, PULL, session.bound), row)
            mark(book, session.bound)
            return
        send(book, row, BACK_END, worker, session.bound, r.back, r.back_sends, now)


@jitable
def end_back(book: Book, row: int, now: float) -> None:
    """Take in the KV of a remote prefill."""
    r = book.rows[row]
    if r.scratch > 0:
        free_kv(book, r.where, r.scratch)
        r.scratch = 0.0
    if book.rules[0].pull == 0:
        first_token(book, row, now)
        return
    session = book.sessions[r.session]
    r.starts = 1
    append(book, JOINING, list_of(book, JOINING, session.bound), row)
    mark(book, session.bound)


@jitable
def first_token(book: Book, row: int, now: float) -> None:
    """Hand out a round's first token, or go on with a preempted one, and let it decode from the next step on."""
    r = book.rows[row]
    session = book.sessions[r.session]
    begin_answer(book, row, now)
    if r.left == 0:
        finish(book, row, now)
        return
    append(book, JOINING, list_of(book, JOINING, session.bound), row)
    mark(book, session.bound)


@jitable
def begin_answer(book: Book, row: int, now: float) -> None:
    """Write the figures of a round's first token, unless it was handed out before a preemption."""
    r = book.rows[row]
    session = book.sessions[r.session]
    if row == session.first:
        book.per_class[session.bound, session.kind].cached = 1
    if r.resumed == 0:
        r.first = now
        r.since = now
        r.ttft = now - r.arrival
        if r.ttft > book.classes[session.kind].ttft_slo:
            session.missed = 1


@jitable
def leave(book: Book, row: int, worker: int, now: float) -> None:
    """Take a finished round out of its batch and write its figures."""
    r = book.rows[row]
    session = book.sessions[r.session]
    r.over = over_now(book, row, worker)
    r.max_gap = max(r.max_gap, largest_gap(book, worker, r.join_step + 2))
    leave_batch(book, row, worker)
    r.gaps = r.generated + r.left
    session.gap_s += now - r.first
    session.gaps += r.gaps
    session.over += r.over
    finish(book, row, now)


@jitable
def finish(book: Book, row: int, now: float) -> None:
    """End a round: its session comes back after its gap, or is over."""
    r = book.rows[row]
    session = book.sessions[r.session]
    r.finished = now
    r.state = SERVED
    session.held = r.history + r.increment + 1 + r.generated + r.left
    if row + 1 == session.first + session.rounds:
        detach(book, row)
        return
    push(book, now + r.gap, ARRIVE, row + 1)
    if book.workers[session.bound].draining == 1:
        move(book, row + 1, now)
    else:
        keep(book, row + 1, session.bound)
        mark(book, session.bound)


@jitable
def move(book: Book, row: int, now: float) -> None:
    """Give a session between rounds, or before its next prefill, to another worker; its KV is sent or given up."""
    r = book.rows[row]
    session = book.sessions[r.session]
    home = session.bound
    held = session.held
    to = bind_session(book, row) if book.workers[home].keep == 1 and held > 0 else -1
    if to < 0 or not make_room(book, to, held):
        detach(book, row)
        return
    unkeep(book, row, home)
    book.workers[home].sessions -= 1
    attach(book, row, to)
    if book.rules[0].oracle == 0:
        use_kv(book, to, held)
    session.moving = 1
    r.where = home
    book.totals[0].moved += held
    send(book, row, MOVED, home, to, held, 1, now)


@jitable
def end_move(book: Book, row: int, now: float) -> None:
    """Finish a session's move; a round that came meanwhile goes on."""
    r = book.rows[row]
    session = book.sessions[r.session]
    session.moving = 0
    free_kv(book, r.where, session.reserve if book.rules[0].oracle == 1 else session.held)
    if r.state == TOO_LONG:
        detach(book, row)
    elif session.parked == 1:
        session.parked = 0
        wait(book, row, session.bound)
    elif book.workers[session.bound].draining == 1:
        move(book, row, now)
    else:
        keep(book, row, session.bound)
        mark(book, session.bound)
