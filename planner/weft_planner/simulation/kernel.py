"""Run the event loop of one simulation: the compiled function that Python calls."""

from weft_planner.simulation.compiled import entry, jitable
from weft_planner.simulation.engine import begin, end_step, end_whole
from weft_planner.simulation.lists import UNBOUND, list_of, pop, push
from weft_planner.simulation.queues import mark
from weft_planner.simulation.records import (
    ARRIVE,
    BACK_END,
    CHANGE,
    IDLE,
    KEPT,
    KINDS,
    MOVED,
    NET,
    OFF,
    PREFILL_END,
    QUEUE,
    READ_END,
    STEP_END,
    SWITCH,
    TICK,
    Book,
)
from weft_planner.simulation.rounds import admit_waiting, arrive, bind_waiting, end_back, end_move, move
from weft_planner.simulation.transfers import end_shared


@entry
def run(book: Book) -> None:
    """Take events in order of time until none is left."""
    totals = book.totals[0]
    while totals.heap > 0 and totals.error == 0:
        now, what = pop(book)
        totals.now = now
        totals.events += 1
        kind = what % KINDS
        subject = what // KINDS
        if kind == STEP_END:
            end_step(book, subject, now)
            mark(book, subject)
        elif kind == ARRIVE:
            arrive(book, subject, now)
        elif kind == PREFILL_END:
            end_whole(book, subject, now)
            mark(book, subject)
        elif kind == BACK_END:
            end_back(book, subject, now)
        elif kind == READ_END:
            book.rows[subject].ready = 1
            mark(book, book.rows[subject].where)
        elif kind == NET:
            end_shared(book, now)
        elif kind == MOVED:
            end_move(book, subject, now)
        elif kind == TICK:
            record_tick(book, now)
        elif kind == CHANGE:
            begin_change(book, subject, now)
        else:
            end_change(book, subject)
        settle(book, now)


@jitable
def settle(book: Book, now: float) -> None:
    """Let everything go on that this event made possible: unbound sessions, waiting rounds, idle workers."""
    totals = book.totals[0]
    while True:
        if totals.room == 1:
            totals.room = 0
            if book.ends[UNBOUND, 0] >= 0:
                bind_waiting(book)
        if totals.dirty == 0:
            return
        totals.dirty -= 1
        worker = book.dirty[totals.dirty]
        w = book.workers[worker]
        w.dirty = 0
        admit_waiting(book, worker, now)
        begin(book, worker, now)
        if w.draining == 1:
            end_drain(book, worker, now)


@jitable
def begin_change(book: Book, number: int, now: float) -> None:
    """Drain a worker: no new work; sessions between rounds leave it now, the others after their round."""
    change = book.changes[number]
    w = book.workers[change.worker]
    w.draining = 1
    w.target = change.target
    w.keep = change.keep
    w.switch_s = change.delay
    row = book.ends[list_of(book, KEPT, change.worker), 0]
    while row >= 0:
        following = book.next[KEPT, row]
        if book.rows[row].arrival != book.rows[row].arrival:  # NaN: its round does not wait here already
            move(book, row, now)
        row = following
    mark(book, change.worker)


@jitable
def end_drain(book: Book, worker: int, now: float) -> None:
    """See whether a draining worker is empty; then it takes up its new role after the delay."""
    w = book.workers[worker]
    empty = w.sessions == 0 and w.mode == IDLE and w.kv_used == 0
    if empty and book.ends[list_of(book, QUEUE, worker), 2] == 0 and w.role != OFF:
        w.role = OFF
        push(book, now + w.switch_s, SWITCH, worker)


@jitable
def end_change(book: Book, worker: int) -> None:
    """Give a worker its new role."""
    w = book.workers[worker]
    w.role = w.target
    w.draining = 0
    for c in range(book.rules[0].classes):
        book.per_class[worker, c].cached = 0
    book.totals[0].room = 1
    mark(book, worker)


@jitable
def record_tick(book: Book, now: float) -> None:
    """Write down every worker's queue, batch and KV."""
    totals = book.totals[0]
    for i in range(book.rules[0].workers):
        tick = book.ticks[totals.ticks, i]
        tick.queued = book.ends[list_of(book, QUEUE, i), 2]
        tick.batch = book.workers[i].batch
        tick.kv = book.workers[i].kv_used
    totals.ticks += 1
    if totals.ticks < len(book.ticks):
        push(book, now + totals.tick_s, TICK, 0)
