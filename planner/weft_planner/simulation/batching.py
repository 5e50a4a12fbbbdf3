"""Start an idle worker's work: a step of its batch with a chunk of a prefill, or a whole prefill."""

from weft_core.policies.routing.colocated import delays_prefill
from weft_core.timing import largest_chunk, prefill_seconds, step_seconds
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.event_heap import push
from weft_planner.simulation.gaps import describe_batch
from weft_planner.simulation.lists import append, first_of, length_of, list_of, remove, slot_of
from weft_planner.simulation.lockstep import set_end
from weft_planner.simulation.memory import make_room_to_grow, use_kv
from weft_planner.simulation.prefix_cache import take_prompt
from weft_planner.simulation.queues import choose_prefill, chunk_seconds_limit, prefill_pieces, step_pieces
from weft_planner.simulation.records import (
    ACTIVE,
    BACK_END,
    FRESH,
    IDLE,
    JOINING,
    NO_LIMIT,
    PREFILL,
    PREFILL_END,
    PULL,
    QUEUE,
    READ_END,
    SLICE,
    STEP_END,
    STEPPING,
    WHOLE,
    SimulationState,
)
from weft_planner.simulation.state_type import vector
from weft_planner.simulation.transfers import send


@jitable
def start_work(state: SimulationState, worker: int, now: float) -> None:
    """Start work on an idle worker: a whole prefill if one is due, else a step of its batch with a chunk.

    Where steps have a token budget a prefill is never whole: the engine computes as much of it as the decodes leave.
    """
    w = state.workers[worker]
    if state.rules[0].pull == 1 and state.lists[list_of(state, PULL, worker)].first >= 0:
        fetch_kv(state, worker, now)
    waits = w.current >= 0 and state.rules[0].delays == 1 and is_delayed(state, worker, now)
    if w.current >= 0 and not waits and runs_whole(state, worker):
        start_whole_prefill(state, worker, now)
        return
    join_batch(state, worker)
    if state.rules[0].oracle == 0 and w.batch > 0:
        make_room_to_grow(state, worker)
    if w.batch == 0 and w.current < 0:
        return
    if w.current >= 0 and w.running == 0 and not waits:
        r = state.rows[w.current]
        if r.whole == 1 and state.rules[0].decode_tokens == NO_LIMIT:
            if w.batch == 0:  # those that had the places were preempted
                start_whole_prefill(state, worker, now)
                return
        elif r.whole == 0 and now < w.next_slice_at:
            if w.batch == 0:
                if w.slice_event_set == 0:
                    w.slice_event_set = 1
                    push(state, w.next_slice_at, SLICE, worker)
                return
        elif can_join(state, worker):
            slices = r.whole == 0 and state.rules[0].slice_turn > 0
            rest = r.task_tokens - r.done
            w.running = chunk_size(state, worker, r.task_history + r.done, rest) if slices else int(rest)
    start_step(state, worker, now)


@jitable
def start_step(state: SimulationState, worker: int, now: float) -> None:
    """Start a step of a worker's batch, with a chunk of the prefill that runs beside it."""
    w = state.workers[worker]
    w.chunk = 0
    history = 0.0
    if w.running > 0:
        r = state.rows[w.current]
        history = r.task_history + r.done
        w.chunk = min(w.running, state.rules[0].decode_tokens - w.batch)
        if r.whole == 0 and state.rules[0].slice_turn == 0:
            w.chunk = min(w.chunk, chunk_size(state, worker, history, float(w.running)))
    seconds = step_seconds(step_pieces(state, worker), float(w.batch), w.context, float(w.chunk), history)
    if w.chunk > 0:
        noise = state.rows[w.current].chunk_noise
        if noise != 1.0:
            alone = step_seconds(step_pieces(state, worker), float(w.batch), w.context) if w.batch > 0 else 0.0
            seconds = alone + (seconds - alone) * noise
    w.mode = STEPPING
    set_end(state, worker, STEP_END, seconds, now)


@jitable
def runs_whole(state: SimulationState, worker: int) -> bool:
    """Return whether a worker's chosen prefill runs by itself, and now: on a decode worker it needs a place."""
    w = state.workers[worker]
    if state.rows[w.current].whole == 0:
        return False
    if w.role == PREFILL:
        return True
    waiting = length_of(state, JOINING, worker)
    return state.rules[0].decode_tokens == NO_LIMIT and w.batch + waiting < w.decode_places


@jitable
def is_delayed(state: SimulationState, worker: int, now: float) -> bool:
    """Return whether a prefill that could begin waits for the sessions that decode beside it, by the policy's rule."""
    w = state.workers[worker]
    r = state.rows[w.current]
    rules = state.rules[0]
    if w.batch == 0 or w.running > 0 or r.done > 0 or r.resumed == 1:
        return False
    pieces = step_pieces(state, worker)
    tokens = r.task_tokens
    if r.whole == 0:
        tokens = largest_chunk(
            pieces, float(w.batch), w.context, r.task_history, chunk_seconds_limit(state, worker), rules.chunk_limit
        )
    streams = describe_batch(state, worker)
    return delays_prefill(
        urgency_of_queue(state, worker, now),
        r.seconds,
        max(1.0, r.task_tokens / max(tokens, 1.0)),
        step_seconds(pieces, float(w.batch), w.context),
        rules.strictest_itl,
        vector(state.params, 0, rules.params),
        vector(state.gap_sums, 0, streams),
        vector(state.gap_counts, 0, streams),
        vector(state.gaps_left, 0, streams),
    )


@jitable
def urgency_of_queue(state: SimulationState, worker: int, now: float) -> float:
    """Return the largest share of a TTFT SLO at which a queued prefill ends if the whole queue begins now."""
    until = now + state.workers[worker].queue_s
    urgency = 0.0
    row = first_of(state, QUEUE, worker)
    while row >= 0:
        r = state.rows[row]
        ttft_slo = state.classes[state.sessions[r.session].slo_class].ttft_slo
        urgency = max(urgency, (until - r.arrival) / ttft_slo)
        row = state.after[row, QUEUE]
    return urgency


@jitable
def tokens_left(state: SimulationState, worker: int) -> int:
    """Return how many tokens of a step the sequences that run in an engine leave; a prefill takes all that it can."""
    w = state.workers[worker]
    left = state.rules[0].decode_tokens - w.batch
    if w.running > 0 and (state.rules[0].slice_turn > 0 or state.rows[w.current].whole == 1):
        left -= min(left, w.running)
    return left


@jitable
def can_join(state: SimulationState, worker: int) -> bool:
    """Return whether one more sequence may join those that run: there is a place, and a token of the step for it."""
    w = state.workers[worker]
    running = w.batch + (1 if w.running > 0 else 0)
    return running < w.decode_places and tokens_left(state, worker) > 0


@jitable
def fetch_kv(state: SimulationState, worker: int, now: float) -> None:
    """Begin to fetch the KV of the prefills that ended elsewhere since the last step.

    An engine looks at them only while another sequence could join, after those that have their KV. What is fetched
    takes no place: when its KV is there it may have to wait for one.
    """
    w = state.workers[worker]
    waiting = length_of(state, JOINING, worker)
    running = w.batch + waiting + (1 if w.running > 0 else 0)
    if running >= w.decode_places or tokens_left(state, worker) <= waiting:
        return
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
        if state.rules[0].caches == 1:
            take_prompt(state, row, worker)
        r.scratch_kv = tokens
        use_kv(state, worker, tokens)
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
    seconds = prefill_seconds(prefill_pieces(state, worker), r.task_history, r.task_tokens) * r.noise
    set_end(state, worker, PREFILL_END, seconds, now)


@jitable
def join_batch(state: SimulationState, worker: int) -> None:
    """Add the sequences that became ready to the running batch, as far as there are places and tokens for them."""
    w = state.workers[worker]
    joining = list_of(state, JOINING, worker)
    row = state.lists[joining].first
    if row < 0:
        return
    places = w.decode_places - w.batch - (1 if w.running > 0 else 0)
    most = min(places, tokens_left(state, worker))
    fresh = list_of(state, FRESH, worker)
    while row >= 0 and most > 0:
        most -= 1
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
def end_work(state: SimulationState, worker: int, now: float) -> None:
    """Make a worker idle, and add the time since it started its work to its busy time, within the observed window."""
    w = state.workers[worker]
    w.mode = IDLE
    if w.alone == 0:
        state.workers[w.first_rank].busy_ranks -= 1
    rules = state.rules[0]
    start = max(w.work_start, rules.counted_from)
    end = min(now, rules.counted_until)
    if end > start:
        w.busy += end - start
