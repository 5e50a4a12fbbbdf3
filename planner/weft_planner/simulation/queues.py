"""Keep each worker's queue of prefill tasks, and choose the task that runs next by the service's queue order."""

from weft_core.timing import chunked_seconds, pause_between_chunks, queue_history
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.lists import append, length_of, list_of, prepend, remove
from weft_planner.simulation.records import QUEUE, READY, Numbers, SimulationState
from weft_planner.simulation.state_type import call_policy, vector


@jitable
def mark_dirty(state: SimulationState, worker: int) -> None:
    """Mark a worker that may have work to start; it is checked at the end of this event."""
    w = state.workers[worker]
    if w.dirty == 0:
        w.dirty = 1
        state.dirty[state.totals[0].dirty] = worker
        state.totals[0].dirty += 1


@jitable
def remaining_work(history: float, tokens: float, done: float) -> float:
    """Return the tokens still to compute times the mean length of their sequence meanwhile."""
    rest = tokens - done
    return rest * (history + done + rest / 2)


@jitable
def accumulate_queue_length(state: SimulationState, worker: int, now: float) -> None:
    """Add to the integral of the queue's length over the observed window; call before the length changes."""
    w = state.workers[worker]
    rules = state.rules[0]
    start = max(w.queue_since, rules.counted_from)
    end = min(now, rules.counted_until)
    if end > start:
        w.queue_area += (end - start) * length_of(state, QUEUE, worker)
    w.queue_since = now


@jitable
def enqueue(state: SimulationState, row: int, worker: int, now: float) -> None:
    """Add a row's prefill task to a worker's queue."""
    accumulate_queue_length(state, worker, now)
    r = state.rows[row]
    w = state.workers[worker]
    append(state, list_of(state, QUEUE, worker), row)
    w.queue_s += r.seconds
    w.queue_tokens += r.task_tokens
    w.queue_work += remaining_work(r.task_history, r.task_tokens, 0.0)
    mark_dirty(state, worker)


@jitable
def dequeue(state: SimulationState, row: int, worker: int, now: float) -> None:
    """Remove a finished task from a worker's queue."""
    accumulate_queue_length(state, worker, now)
    r = state.rows[row]
    w = state.workers[worker]
    which = list_of(state, QUEUE, worker)
    remove(state, which, row)
    w.queue_s -= r.seconds
    w.queue_tokens -= r.task_tokens - r.done
    w.queue_work -= remaining_work(r.task_history, r.task_tokens, r.done)
    if state.lists[which].length == 0:  # no rounding error outlives an empty queue
        w.queue_s = 0.0
        w.queue_tokens = 0.0
        w.queue_work = 0.0


@jitable
def record_progress(state: SimulationState, row: int, worker: int, tokens: float) -> None:
    """Count tokens of a task as computed."""
    r = state.rows[row]
    w = state.workers[worker]
    before = remaining_work(r.task_history, r.task_tokens, r.done)
    r.done += tokens
    w.queue_tokens -= tokens
    w.queue_work += remaining_work(r.task_history, r.task_tokens, r.done) - before


@jitable
def chunk_seconds_limit(state: SimulationState, worker: int) -> float:
    """Return how long a step with a chunk may take: a share of the strictest ITL SLO among the decoding sessions.

    A router that sends slices sends all that is left at once when no sequence decodes.
    """
    rules = state.rules[0]
    w = state.workers[worker]
    if w.batch == 0 and rules.slice_turn > 0:
        return float("inf")
    if w.batch == 0 or rules.classes == 1:
        return rules.chunk_fraction * rules.strictest_itl
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
    """Return the fewest tokens of a predicted chunk: a router that sends slices has a floor."""
    return state.rules[0].chunk_floor if state.rules[0].slice_turn > 0 else 1


@jitable
def chunked_prefill_s(state: SimulationState, worker: int, history: float, tokens: float) -> float:
    """Return the predicted seconds of a chunked prefill beside a worker's present batch."""
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
def chunked_queue_s(state: SimulationState, worker: int) -> float:
    """Return the predicted seconds until a worker's queue is empty when all of it runs in chunks."""
    w = state.workers[worker]
    return chunked_prefill_s(state, worker, queue_history(w.queue_tokens, w.queue_work), w.queue_tokens)


@jitable
def choose_prefill(state: SimulationState, worker: int, ahead: bool) -> int:
    """Return the task that a worker runs next, -1 when none is ready; a task is not ready while its history is read.

    ``ahead``: after the one that runs now, and only if it has history to read meanwhile. Algorithm 2 reorders the head
    of the queue; tasks that are not ready then follow those that are.
    """
    rules = state.rules[0]
    which = list_of(state, QUEUE, worker)
    current = state.workers[worker].current
    count = 0
    row = state.lists[which].first
    while row >= 0:
        r = state.rows[row]
        if r.ready == READY and row != current:
            state.seconds[count] = r.seconds
            state.enqueued[count] = r.arrival
            state.ttft_slo[count] = state.classes[state.sessions[r.session].slo_class].ttft_slo
            state.postponed[count] = r.postponed
            state.lost[count] = state.sessions[r.session].missed_ttft
            state.queued[count] = row
            count += 1
        row = state.after[row, QUEUE]
    if count == 0:
        return -1
    place = 0
    if count > 1:
        state.totals[0].choices = count
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
