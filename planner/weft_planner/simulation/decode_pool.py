"""Take the events of a decode pool that is simulated alone, for ``phases.decode``, as machine code.

The batch of a worker changes only when a sequence joins or ends, so all steps between two changes are taken at
once; a sequence that comes in mid-step joins at the next step, as in an engine.
"""

import math
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from weft_core.timing import step_seconds
from weft_planner.simulation.compiled import jitable, on_first_call
from weft_planner.simulation.records import Numbers, Record
from weft_planner.workload.distributions import Floats

Events = list[tuple[float, int]]
NOBODY = -1

ROUND = np.dtype(
    [
        ("session", "i8"),
        ("ready", "f8"),  # when its first token is there, at the sample's pace
        ("ends", "f8"),  # when its last one is
        ("context", "f8"),  # tokens that it holds at its first
        ("need", "f8"),  # tokens that it holds in the end
        ("tokens", "i8"),  # tokens to decode
        ("between", "f8"),  # seconds from its end to the first token of the session's next round
        ("remaining", "i8"),  # tokens to decode from when it joins a batch
        ("started", "f8"),  # when it was ready to join
        ("end_step", "i8"),  # step of its worker at which it ends
        ("left", "i8"),  # below it in the heap of a batch by end_step
        ("right", "i8"),
        ("next", "i8"),  # after it in a list
    ]
)
"""A round of a session that is not over at time 0; the session's rounds follow each other."""
_WORKER = np.dtype(
    [
        ("now", "f8"),
        ("due", "f8"),  # when a sequence of the batch ends; without a batch, never
        ("steps", "i8"),
        ("batch", "i8"),
        ("context", "f8"),  # tokens that the batch holds
        ("free", "f8"),  # KV tokens that no round holds
        ("root", "i8"),  # of the batch's heap
        ("joining", "i8"),  # how many join at the end of the step in progress
    ]
)
_LIST = np.dtype([("first", "i8"), ("last", "i8")])


class _Pool(NamedTuple):
    """The state: ``bound`` is the worker of each session.

    ``lists``: for each worker the rounds that wait for its KV; then for each those that join at the end of its step in
    progress; the last, at NOBODY, has those that wait for KV of any worker, because their session has none yet.
    """

    workers: Numbers
    rounds: Numbers
    lists: Numbers
    bound: Numbers
    figures: Numbers
    sequences: int
    begin: float


@jitable
def _step(pool: _Pool, batch: int, context: float) -> float:
    return step_seconds(pool.figures, float(batch), context)


@jitable
def _steps_seconds(pool: _Pool, w: Record, steps: int) -> float:
    """Return the time of several steps of one batch: the context grows evenly, so the middle step is the mean."""
    return steps * _step(pool, w.batch, w.context + w.batch * (steps - 1) / 2)


@jitable
def _advance(pool: _Pool, w: Record, steps: int) -> None:
    w.now += _steps_seconds(pool, w, steps)
    w.steps += steps
    w.context += w.batch * steps


@jitable
def _steps_left(pool: _Pool, w: Record) -> int:
    """Return the steps until a sequence of the batch ends."""
    return int(pool.rounds[w.root].end_step - w.steps)


@jitable
def _schedule(pool: _Pool, w: Record) -> None:
    w.due = w.now + _steps_seconds(pool, w, _steps_left(pool, w))


@jitable
def _merged(pool: _Pool, a: int, b: int) -> int:
    """Return the root of two skew heaps as one: the sequence that ends first, of equals the earlier round."""
    rounds = pool.rounds
    top = above = NOBODY
    while a != NOBODY and b != NOBODY:
        if (rounds[b].end_step, b) < (rounds[a].end_step, a):
            a, b = b, a
        if above == NOBODY:
            top = a
        else:
            rounds[above].left = a
        above = a
        a = rounds[above].right
        rounds[above].right = rounds[above].left
    rest = b if a == NOBODY else a
    if above == NOBODY:
        return rest
    rounds[above].left = rest
    return top


@jitable
def _append(pool: _Pool, which: int, row: int) -> None:
    """Put a round at a list's end."""
    ends = pool.lists[which]
    pool.rounds[row].next = NOBODY
    if ends.first == NOBODY:
        ends.first = row
    else:
        pool.rounds[ends.last].next = row
    ends.last = row


@jitable
def _enter(pool: _Pool, w: Record, row: int) -> None:
    """Add a round to a batch."""
    r = pool.rounds[row]
    r.end_step = w.steps + r.remaining
    r.left = r.right = NOBODY
    w.root = _merged(pool, w.root, row)
    w.batch += 1
    w.context += r.context + (r.tokens - r.remaining)


@jitable
def _join(pool: _Pool, worker: int, row: int, now: float) -> None:
    w = pool.workers[worker]
    if w.batch == 0:
        w.now = max(now, w.now)
    elif now > w.now:
        steps = math.ceil((now - w.now) / _step(pool, w.batch, w.context))
        if steps >= _steps_left(pool, w):
            w.joining += 1
            _append(pool, len(pool.workers) + worker, row)
            return
        _advance(pool, w, steps)
    _enter(pool, w, row)
    _schedule(pool, w)


@jitable
def _take(pool: _Pool, row: int) -> int:
    """Hold a round's KV on its session's worker, or on the one with most room; NOBODY when there is no room."""
    r = pool.rounds[row]
    worker = pool.bound[r.session]
    if worker == NOBODY:
        worker = 0
        for other in range(1, len(pool.workers)):
            if pool.workers[other].free > pool.workers[worker].free:
                worker = other
    w = pool.workers[worker]
    running = w.batch + w.joining
    if running >= pool.sequences or (w.free < r.need and running > 0):
        return NOBODY  # a worker that is empty takes it whatever it needs: nothing would get free
    w.free -= r.need
    pool.bound[r.session] = worker
    return int(worker)


@jitable
def _ready(pool: _Pool, events: Events, row: int, started: float, now: float) -> None:
    r = pool.rounds[row]
    if r.remaining == 0:
        _follow(pool, events, row, now)
        return
    r.started = started
    worker = _take(pool, row)
    if worker == NOBODY:
        r.started = now
        _append(pool, pool.bound[r.session], row)
    else:
        _join(pool, worker, row, now)


@jitable
def _follow(pool: _Pool, events: Events, row: int, now: float) -> None:
    """Begin the session's next round after its gap, or forget where the session was."""
    r = pool.rounds[row]
    if row + 1 < len(pool.rounds) and pool.rounds[row + 1].session == r.session:
        heappush(events, (now + r.between, row + 1))
    else:
        pool.bound[r.session] = NOBODY


@jitable
def _finish(pool: _Pool, events: Events, gaps: list[float], worker: int, now: float) -> None:
    """End the sequences of a batch that are due, and let others join."""
    w = pool.workers[worker]
    _advance(pool, w, _steps_left(pool, w))
    w.now = now
    w.due = np.inf
    while w.root != NOBODY and pool.rounds[w.root].end_step <= w.steps:
        row = w.root
        r = pool.rounds[row]
        w.root = _merged(pool, r.left, r.right)
        w.batch -= 1
        w.context -= r.context + r.tokens
        if r.started >= pool.begin:
            gaps.append((now - r.started) / r.tokens)
        w.free += r.need
        _follow(pool, events, row, now)
    joining = pool.lists[len(pool.workers) + worker]
    row = joining.first
    joining.first = NOBODY
    w.joining = 0
    while row != NOBODY:
        _enter(pool, w, row)
        row = pool.rounds[row].next
    for which in (worker, NOBODY):
        waiting = pool.lists[which]
        while waiting.first != NOBODY:
            row = waiting.first
            taken = _take(pool, row)
            if taken == NOBODY:
                break
            waiting.first = pool.rounds[row].next
            _join(pool, taken, row, now)
    if w.batch > 0:
        _schedule(pool, w)


@jitable
def _start(pool: _Pool, events: Events, pace: float) -> None:
    """Place sessions under way at time 0: in a gap, or in mid-answer with the rest of their tokens to go."""
    placed = np.zeros(len(pool.bound), np.bool_)
    for row in range(len(pool.rounds)):
        r = pool.rounds[row]
        if r.ready < 0 and r.ends > 0:
            placed[r.session] = True
            r.remaining = min(max(1, math.ceil(r.ends / pace)), r.tokens)
            _ready(pool, events, row, -np.inf, 0.0)
    for row in range(len(pool.rounds)):
        r = pool.rounds[row]
        if r.ready >= 0 and not placed[r.session]:
            placed[r.session] = True
            if row > 0 and pool.rounds[row - 1].session == r.session:  # between two rounds
                pool.bound[r.session] = r.session % len(pool.workers)
            heappush(events, (r.ready, row))


@jitable
def _cut(pool: _Pool, gaps: list[float], end: float) -> None:
    """Count the rounds still under way at the end by what they have done: leaving them out would hide the slow."""
    for worker in range(len(pool.workers)):
        w = pool.workers[worker]
        if w.batch > 0 and w.now < end:
            done = math.floor((end - w.now) / _step(pool, w.batch, w.context))
            _advance(pool, w, max(0, min(done, _steps_left(pool, w) - 1)))
        below = [w.root]
        while len(below) > 0:
            row = below.pop()
            if row == NOBODY:
                continue
            r = pool.rounds[row]
            below.append(r.left)
            below.append(r.right)
            done = r.remaining - (r.end_step - w.steps)
            if r.started >= pool.begin and done > 0 and r.tokens == r.remaining:
                gaps.append((w.now - r.started) / done)
    row = pool.lists[NOBODY].first
    while row != NOBODY:
        r = pool.rounds[row]
        if r.started >= pool.begin:
            gaps.append((end - r.started) / r.tokens)
        row = r.next


@jitable
def _next_worker(pool: _Pool) -> int:
    """Return the worker whose batch changes first, of equals the first."""
    first = 0
    for worker in range(1, len(pool.workers)):
        if pool.workers[worker].due < pool.workers[first].due:
            first = worker
    return first


@on_first_call
def _run(pool: _Pool, pace: float, end: float) -> Floats:
    events = [(0.0, 0)]
    events.clear()
    gaps = [0.0]
    gaps.clear()
    _start(pool, events, pace)
    while True:
        worker = _next_worker(pool)
        due = pool.workers[worker].due
        if len(events) > 0 and events[0][0] <= due:
            now, row = heappop(events)
            if now > end:
                break
            _ready(pool, events, row, now, now)
        elif due <= end:
            _finish(pool, events, gaps, worker, due)
        else:
            break
    _cut(pool, gaps, end)
    return np.array(gaps)


def run(
    rounds: Numbers,
    figures: Floats,
    *,
    pace: float,
    workers: int,
    capacity: float,
    sequences: int,
    observed: tuple[float, float],
) -> Floats:
    """Return the mean gaps of the rounds that begin to decode in the ``observed`` seconds, in no order.

    ``rounds`` are of type ROUND, and are changed. ``figures``: an engine step's, as in ``timing``. ``capacity``: a
    worker's KV tokens. ``sequences``: of a batch, at most. ``pace``: seconds per token of the rounds under way at 0.
    """
    begin, end = observed
    every = np.zeros(workers, _WORKER)
    every["free"], every["due"], every["root"] = capacity, np.inf, NOBODY
    lists = np.zeros(2 * workers + 1, _LIST)
    lists["first"] = NOBODY
    rounds["remaining"] = rounds["tokens"]
    bound = np.full(int(rounds["session"].max(initial=-1)) + 1, NOBODY)
    return _run(_Pool(every, rounds, lists, bound, figures, sequences, begin), pace, end)


def compile_loop() -> None:
    """Compile the loop, or load it, before a plan needs it: some 5 s."""
    run(np.zeros(0, ROUND), np.zeros(0), pace=1.0, workers=1, capacity=0.0, sequences=1, observed=(0.0, 1.0))
