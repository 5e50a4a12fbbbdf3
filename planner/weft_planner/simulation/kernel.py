"""Run the event loop of one simulation: the compiled function that Python calls."""

from weft_planner.simulation.compiled import entry, jitable
from weft_planner.simulation.engine import begin, end_read, end_step, end_whole
from weft_planner.simulation.lists import list_of, pop, push, remove
from weft_planner.simulation.memory import admit
from weft_planner.simulation.queues import choose, mark
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
    SLICE,
    STEP_END,
    SWITCH,
    TICK,
    WAITING,
    Book,
    Numbers,
)
from weft_planner.simulation.rounds import arrive, bind_waiting, end_back, end_move, move
from weft_planner.simulation.routing import route
from weft_planner.simulation.tables import book_at
from weft_planner.simulation.transfers import end_shared


@jitable
def take(book: Book, kind: int, subject: int, now: float) -> None:
    """Let an event happen."""
    if kind == STEP_END:
        end_step(book, subject, now)
    elif kind == ARRIVE:
        arrive(book, subject, now)
    elif kind == PREFILL_END:
        end_whole(book, subject, now)
    elif kind == BACK_END:
        end_back(book, subject, now)
    elif kind == READ_END:
        end_read(book, subject, now)
    elif kind == NET:
        end_shared(book, now)
    elif kind == SLICE:
        book.workers[subject].waking = 0
        mark(book, subject)
    elif kind == MOVED:
        end_move(book, subject, now)
    elif kind == TICK:
        record_tick(book, now)
    elif kind == CHANGE:
        begin_change(book, subject, now)
    else:
        end_change(book, subject)


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
        following = book.after[KEPT, row]
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
    if totals.ticks < book.rules[0].ticks:
        push(book, now + totals.tick_s, TICK, 0)


@entry
def run(addresses: Numbers) -> None:
    """Take events in order of time until none is left or allowed; the argument says where the tables of a ``Book`` are.

    After each event everything goes on that it made possible: unbound sessions, waiting rounds, idle workers.
    """
    book = book_at(addresses)
    state = book.totals[0]
    while state.heap > 0 and state.error == 0 and state.events < state.most:
        now, what = pop(book)
        state.now = now
        state.events += 1
        take(book, what % KINDS, what // KINDS, now)
        while state.room == 1 or state.dirty > 0:
            if state.room == 1:
                state.room = 0
                bind_waiting(book)
                continue
            state.dirty -= 1
            worker = book.dirty[state.dirty]
            w = book.workers[worker]
            w.dirty = 0
            row = book.ends[list_of(book, WAITING, worker), 0]
            while row >= 0 and admit(book, row, worker):
                remove(book, WAITING, list_of(book, WAITING, worker), row)
                route(book, row, worker, now)
                row = book.ends[list_of(book, WAITING, worker), 0]
            if w.mode == IDLE:
                if w.current < 0:
                    w.current = choose(book, worker)
                begin(book, worker, now)
            if w.draining == 1:
                end_drain(book, worker, now)
