"""Keep each worker's queue of prefill tasks, and choose the task that runs next by the service's queue order."""

from weft_core.timing import chunked_seconds, pause_between_chunks, queue_history
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.lists import append, length_of, list_of, prepend, remove
from weft_planner.simulation.records import QUEUE, Numbers, SimulationState
from weft_planner.simulation.state_type import call_policy, vector


@jitable
def mark_dirty(state: SimulationState, worker: int) -> None:
    """Note that a worker may have something to begin, once this event is dealt with."""
    w = state.workers[worker]
    if w.dirty == 0:
        w.dirty = 1
        state.dirty[state.totals[0].dirty] = worker
        state.totals[0].dirty += 1


@jitable
def work_left(history: float, tokens: float, done: float) -> float:
    """Return the tokens still to compute times what their sequence will hold on average while they are."""
    rest = tokens - done
    return rest * (history + done + rest / 2)


@jitable
def clock_queue(state: SimulationState, worker: int, now: float) -> None:
    """Add to the integral of the queue's length over the observed window; call before the length changes."""
    w = state.workers[worker]
    rules = state.rules[0]
    start = max(w.queue_since, rules.begin)
    end = min(now, rules.finish)
    if end > start:
        w.queue_area += (end - start) * length_of(state, QUEUE, worker)
    w.queue_since = now


@jitable
def enqueue(state: SimulationState, row: int, worker: int, now: float) -> None:
    """Add a prefill task, whose figures stand in its row, to a worker's queue."""
    clock_queue(state, worker, now)
    r = state.rows[row]
    w = state.workers[worker]
    append(state, list_of(state, QUEUE, worker), row)
    w.queue_s += r.seconds
    w.queue_tokens += r.task_tokens
    w.queue_work += work_left(r.task_history, r.task_tokens, 0.0)
    mark_dirty(state, worker)


@jitable
def dequeue(state: SimulationState, row: int, worker: int, now: float) -> None:
    """Take a finished task out of a worker's queue."""
    clock_queue(state, worker, now)
    r = state.rows[row]
    w = state.workers[worker]
    which = list_of(state, QUEUE, worker)
    remove(state, which, row)
    w.queue_s -= r.seconds
    w.queue_tokens -= r.task_tokens - r.done
    w.queue_work -= work_left(r.task_history, r.task_tokens, r.done)
    if state.lists[which].length == 0:  # no rounding error outlives an empty queue
        w.queue_s = 0.0
        w.queue_tokens = 0.0
        w.queue_work = 0.0


@jitable
def advance(state: SimulationState, row: int, worker: int, tokens: float) -> None:
    """Count a slice of a task as computed."""
    r = state.rows[row]
    w = state.workers[worker]
    before = work_left(r.task_history, r.task_tokens, r.done)
    r.done += tokens
    w.queue_tokens -= tokens
    w.queue_work += work_left(r.task_history, r.task_tokens, r.done) - before


@jitable
def chunk_seconds_limit(state: SimulationState, worker: int) -> float:
    """Return how long a step with a slice may take: the share of the strictest ITL SLO among those decoding here.

    A router that sends the slices sends all that is left at once when no sequence would wait.
    """
    rules = state.rules[0]
    w = state.workers[worker]
    if w.batch == 0 and rules.slice_turn > 0:
        return float("inf")
    if w.batch == 0 or rules.classes == 1:
        return rules.chunk_fraction * rules.itl_least
    least = -1.0
    for c in range(rules.classes):
        if state.per_class[worker, c].active > 0:
            itl = state.classes[c].itl_slo
            if least < 0 or itl < least:
                least = itl
    return rules.chunk_fraction * least


@jitable
def prefill_pieces(state: SimulationState, worker: int) -> Numbers:
    """Return a worker's flat figures of T_pre."""
    return vector(state.prefill, worker, state.rules[0].prefill_figures)


@jitable
def step_pieces(state: SimulationState, worker: int) -> Numbers:
    """Return a worker's flat figures of an engine step."""
    return vector(state.step, worker, state.rules[0].step_figures)


@jitable
def least_chunk(state: SimulationState) -> int:
    """Return the fewest tokens of a slice as far as predictions go: a router that sends slices has a floor."""
    return state.rules[0].chunk_floor if state.rules[0].slice_turn > 0 else 1


@jitable
def chunked(state: SimulationState, worker: int, history: float, tokens: float) -> float:
    """Return the seconds of computing tokens on a worker in slices beside what it decodes now."""
    rules = state.rules[0]
    w = state.workers[worker]
    pieces = step_pieces(state, worker)
    batch = float(w.batch)
    pause = pause_between_chunks(pieces, batch, w.context, rules.slice_turn)
    limit = chunk_seconds_limit(state, worker)
    return chunked_seconds(
        pieces, batch, w.context, history, tokens, limit, rules.chunk_limit, least_chunk(state), pause
    )


@jitable
def chunked_queue(state: SimulationState, worker: int) -> float:
    """Return the seconds until a worker's queue is done when all of it is run in slices."""
    w = state.workers[worker]
    return chunked(state, worker, queue_history(w.queue_tokens, w.queue_work), w.queue_tokens)


@jitable
def choose_prefill(state: SimulationState, worker: int, ahead: bool) -> int:
    """Return the task that a worker shall run next, -1 when none is ready: its history may still be on its way.

    ``ahead``: after the one that runs now, and only if it has history to read meanwhile. Algorithm 2 reorders the head
    of the queue; a task without its history then stands behind those that have it.
    """
    rules = state.rules[0]
    which = list_of(state, QUEUE, worker)
    current = state.workers[worker].current
    count = 0
    row = state.lists[which].first
    while row >= 0:
        r = state.rows[row]
        if r.ready == 1 and row != current:
            state.seconds[count] = r.seconds
            state.enqueued[count] = r.arrival
            state.ttft_slo[count] = state.classes[state.sessions[r.session].kind].ttft_slo
            state.postponed[count] = r.postponed
            state.lost[count] = state.sessions[r.session].missed
            state.queued[count] = row
            count += 1
        row = state.after[QUEUE, row]
    if count == 0:
        return -1
    place = 0
    if count > 1:
        state.totals[0].asked = count
        place = call_policy(rules.choose, state)
    if ahead and state.rows[state.queued[place]].read == 0:
        return -1
    if count == 1:
        return state.queued[0]
    for i in range(count):
        state.rows[state.queued[i]].postponed = state.postponed[i]
    if rules.rearranges == 1:
        size = min(rules.window, count)
        for k in range(size):
            remove(state, which, state.queued[k])
        for k in range(size):
            prepend(state, which, state.queued[state.head[size - 1 - k]])
    return state.queued[place]
