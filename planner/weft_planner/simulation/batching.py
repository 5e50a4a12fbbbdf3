"""Start an idle worker's work: a step of its batch with a chunk of a prefill, or a whole prefill."""

from weft_core.timing import largest_chunk, prefill_seconds, step_seconds
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.event_heap import push
from weft_planner.simulation.lists import append, list_of, remove, slot_of
from weft_planner.simulation.memory import make_room_to_grow, use_kv
from weft_planner.simulation.prefix_cache import take_prompt
from weft_planner.simulation.queues import choose_prefill, chunk_seconds_limit, prefill_pieces, step_pieces
from weft_planner.simulation.records import (
    ACTIVE,
    BACK_END,
    FRESH,
    JOINING,
    PREFILL,
    PREFILL_END,
    PULL,
    READ_END,
    SLICE,
    STEP_END,
    STEPPING,
    WHOLE,
    SimulationState,
)
from weft_planner.simulation.transfers import send


@jitable
def start_work(state: SimulationState, worker: int, now: float) -> None:
    """Start work on an idle worker: a whole prefill if one is due, else a step of its batch with a chunk."""
    w = state.workers[worker]
    if state.rules[0].pull == 1:
        fetch_kv(state, worker, now)
    if w.current >= 0 and state.rows[w.current].whole == 1:
        start_whole_prefill(state, worker, now)
        return
    join_batch(state, worker)
    if state.rules[0].oracle == 0 and w.batch > 0:
        make_room_to_grow(state, worker)
    if w.batch == 0 and w.current < 0:
        return
    w.chunk = 0
    history = 0.0
    if w.current >= 0 and now < w.next_slice_at and w.batch == 0:
        if w.slice_event_set == 0:
            w.slice_event_set = 1
            push(state, w.next_slice_at, SLICE, worker)
        return
    if w.current >= 0 and now >= w.next_slice_at:
        r = state.rows[w.current]
        history = r.task_history + r.done
        w.chunk = chunk_size(state, worker, history, r.task_tokens - r.done)
    seconds = step_seconds(step_pieces(state, worker), float(w.batch), w.context, float(w.chunk), history)
    if w.chunk > 0:
        noise = state.rows[w.current].chunk_noise
        if noise != 1.0:
            alone = step_seconds(step_pieces(state, worker), float(w.batch), w.context) if w.batch > 0 else 0.0
            seconds = alone + (seconds - alone) * noise
    w.mode = STEPPING
    w.work_start = now
    push(state, now + seconds, STEP_END, worker)


@jitable
def fetch_kv(state: SimulationState, worker: int, now: float) -> None:
    """Begin to fetch the KV of the prefills that ended elsewhere since the last step."""
    which = list_of(state, PULL, worker)
    row = state.lists[which].first
    while row >= 0:
        remove(state, which, row)
        r = state.rows[row]
        send(state, row, BACK_END, r.prefill_worker, worker, r.back, r.back_sends, now)
        row = state.lists[which].first


@jitable
def chunk_size(state: SimulationState, worker: int, history: float, rest: float) -> int:
    """Return the tokens of a task that the next step computes: what the ITL SLO allows, at least the floor."""
    rules = state.rules[0]
    w = state.workers[worker]
    most = int(min(float(rules.chunk_limit), rest))
    limit = chunk_seconds_limit(state, worker)
    tokens = largest_chunk(step_pieces(state, worker), float(w.batch), w.context, history, limit, most)
    return max(tokens, min(rules.chunk_floor, most))


@jitable
def start_whole_prefill(state: SimulationState, worker: int, now: float) -> None:
    """Run a prefill in one piece, after its history was read."""
    w = state.workers[worker]
    if w.role == PREFILL and not prepare(state, w.current, worker, now):
        w.current = -1  # until a transfer has freed memory
        return
    w.mode = WHOLE
    if state.rows[w.current].reading == 0:
        compute_prefill(state, worker, now)


@jitable
def prepare(state: SimulationState, row: int, worker: int, now: float) -> bool:
    """Take a prefill worker's KV memory for a task and start to read its history; False when there is no room.

    The worker keeps the KV until it is sent to the decode worker.
    """
    w = state.workers[worker]
    r = state.rows[row]
    if r.scratch_kv == 0:
        tokens = r.task_history + r.task_tokens
        if w.kv_used + tokens > w.kv_capacity:
            return False
        r.scratch_kv = tokens
        use_kv(state, worker, tokens)
        if state.rules[0].caches == 1:
            take_prompt(state, row, worker)
    if r.read > 0:
        r.reading = 1
        send(state, row, READ_END, state.sessions[r.session].bound, worker, r.read, r.read_sends, now)
        r.read = 0.0
    return True


@jitable
def compute_prefill(state: SimulationState, worker: int, now: float) -> None:
    """Compute a prefill in one piece; the next one reads its history meanwhile.

    An engine looks for new requests between its steps: what comes later is read when this one is done.
    """
    w = state.workers[worker]
    r = state.rows[w.current]
    if w.role == PREFILL and state.rules[0].pull == 1:
        following = choose_prefill(state, worker, True)
        if following >= 0 and prepare(state, following, worker, now):
            w.ahead = following
    w.work_start = now
    push(
        state,
        now + prefill_seconds(prefill_pieces(state, worker), r.task_history, r.task_tokens) * r.noise,
        PREFILL_END,
        worker,
    )


@jitable
def join_batch(state: SimulationState, worker: int) -> None:
    """Add the sequences that became ready to the running batch."""
    w = state.workers[worker]
    joining = list_of(state, JOINING, worker)
    fresh = list_of(state, FRESH, worker)
    row = state.lists[joining].first
    while row >= 0:
        remove(state, joining, row)
        r = state.rows[row]
        r.join_step = w.steps + r.first_token_pending
        w.first_tokens_pending += r.first_token_pending
        append(state, fresh, row)
        append(state, list_of(state, ACTIVE, worker), row)
        append(state, slot_of(state, worker, r.join_step + r.steps_left), row)
        w.batch += 1
        w.context += r.history + r.increment + 1 + r.generated - r.first_token_pending
        state.per_class[worker, state.sessions[r.session].slo_class].active += 1
        row = state.lists[joining].first


@jitable
def count_busy(state: SimulationState, worker: int, now: float) -> None:
    """Add the time since a worker started its work to its busy time, within the observed window only."""
    w = state.workers[worker]
    rules = state.rules[0]
    start = max(w.work_start, rules.counted_from)
    end = min(now, rules.counted_until)
    if end > start:
        w.busy += end - start
