"""Route a round's prefill by the service's policy, with the inputs that the live router would have."""

from weft_core.policies.finish import may_recompute, remote_work
from weft_core.policies.inputs import LOCAL
from weft_core.policies.reasons import LOCAL_CHUNKED, LOCAL_WHOLE
from weft_core.timing import (
    place_wait_seconds,
    prefill_seconds,
    step_seconds,
    transfer_seconds,
    wait_and_load,
)
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.gaps import ITL_WINDOW, TTFT_WINDOW, describe_batch, window_mean
from weft_planner.simulation.lists import length_of
from weft_planner.simulation.memory import free_tokens, make_room, use_kv
from weft_planner.simulation.prefix_cache import cached_prefix, drop_prompt, look_up, readable_tokens, use_kept_prompt
from weft_planner.simulation.queues import chunked_prefill_s, chunked_queue_s, enqueue, prefill_pieces, step_pieces
from weft_planner.simulation.records import (
    DECODE,
    JOINING,
    PREFILL,
    PULL,
    QUEUE,
    READ_END,
    READING,
    READY,
    REASON_BITS,
    SimulationState,
)
from weft_planner.simulation.state_type import call_policy
from weft_planner.simulation.tiers import load_end, start_load, tokens_below
from weft_planner.simulation.transfers import send

MODULUS = 2147483647
MULTIPLIER = 48271


@jitable
def draw_uniform(state: SimulationState) -> float:
    """Return a random number in (0, 1): the minimal standard generator, equal everywhere and enough to shuffle."""
    totals = state.totals[0]
    totals.random = totals.random * MULTIPLIER % MODULUS
    return totals.random / MODULUS


@jitable
def shuffle(state: SimulationState, workers: int) -> None:
    """Write the places of so many workers in a random order."""
    for k in range(workers):
        state.order[k] = k
    for k in range(workers - 1, 0, -1):
        other = int(draw_uniform(state) * (k + 1))
        kept = state.order[k]
        state.order[k] = state.order[other]
        state.order[other] = kept


@jitable
def describe_task(state: SimulationState, row: int, present: float, total: float, now: float) -> None:
    """Write the policy's inputs about a task."""
    r = state.rows[row]
    session = state.sessions[r.session]
    kind = state.classes[session.slo_class]
    totals = state.totals[0]
    span = min(state.rules[0].window_s + now - totals.rate_from, max(1.0, now - state.sessions[0].arrival))
    task = state.task[0]
    task.history = present
    task.increment = total - present
    task.waited_s = now - r.arrival
    task.ttft_slo = kind.ttft_slo
    task.itl_slo = kind.itl_slo
    task.round = max(row - session.first_row, 1) if r.history > 0 else 0
    task.answer = kind.decode
    task.rate = (totals.arrivals + totals.arrivals_before) / span
    task.uniform = draw_uniform(state)
    task.priority = kind.priority
    task.now = now
    task.session = session.hash


@jitable
def describe_local(
    state: SimulationState, worker: int, present: float, tokens: float, load_s: float, now: float
) -> None:
    """Write the policy's inputs about the decode worker, for ``tokens`` to compute after ``present`` known ones.

    These are loaded from a tier in ``load_s`` seconds, 0 where they are in its memory.
    """
    rules = state.rules[0]
    w = state.workers[worker]
    local = state.local[0]
    local.batch = w.batch
    local.context = w.context
    local.step_s = step_seconds(step_pieces(state, worker), max(1.0, float(w.batch)), w.context)
    local.queued = length_of(state, QUEUE, worker)
    taken = w.batch + length_of(state, JOINING, worker) + length_of(state, PULL, worker) + local.queued
    wait = place_wait_seconds(float(w.decode_places), taken, float(w.batch), state.task[0].answer, local.step_s)
    local.queue_s = wait_and_load(w.queue_s + wait, load_s)
    local.prefill_s = prefill_seconds(prefill_pieces(state, worker), present, tokens)
    local.chunked_queue_s = float("inf")
    if rules.slices == 1:
        local.chunked_queue_s = wait_and_load(chunked_queue_s(state, worker) + wait, load_s)
    local.chunked_s = chunked_prefill_s(state, worker, present, tokens) if rules.slices == 1 else float("inf")
    local.windowed_itl = window_mean(state, worker, ITL_WINDOW, now) if rules.reads_windows == 1 else float("nan")
    local.kv_free = free_tokens(state, worker)


@jitable
def describe_remote(
    state: SimulationState,
    row: int,
    at: int,
    worker: int,
    home: int,
    present: float,
    below: float,
    load_s: float,
    total: float,
    now: float,
) -> None:
    """Write the policy's inputs about one candidate; one that also decodes prefills for others without slices.

    Of the tokens ``present`` on the decode worker a tier has ``below``, which take ``load_s`` to load.
    """
    rules = state.rules[0]
    w = state.workers[worker]
    history = readable_tokens(state, row, present)
    known, tokens, read = remote_work(history, total, state.cached[worker])
    link = state.links[home, worker]
    back = state.links[worker, home]
    remote = state.remote[at]
    remote.queue_s = w.queue_s
    if at > 0 and takes_as_long(state, worker, state.candidates[at - 1]):
        remote.prefill_s = state.remote[at - 1].prefill_s
    else:
        remote.prefill_s = prefill_seconds(prefill_pieces(state, worker), known, tokens)
    remote.read_s = transfer_seconds(link.alpha, link.per_token, read)
    if rules.reads == 1:
        remote.read_s += load_s
    here = present if rules.reads == 1 else present - below
    remote.back_s = transfer_seconds(back.alpha, back.per_token, back_tokens(state, here, total))
    remote.windowed_ttft = window_mean(state, worker, TTFT_WINDOW, now) if rules.reads_windows == 1 else float("nan")
    remote.queued = length_of(state, QUEUE, worker)
    remote.cached = state.cached[worker]
    remote.sent = state.sent[worker]
    remote.sessions = w.assigned
    remote.decoding = w.batch
    remote.kv_use = (w.kv_capacity - free_tokens(state, worker)) / w.kv_capacity
    remote.used_at = w.last_chosen
    remote.link_rate = back.rate


@jitable
def takes_as_long(state: SimulationState, worker: int, other: int) -> bool:
    """Return whether two workers in one role take as long for a task: they cost the same and have as much cached."""
    w = state.workers[worker]
    o = state.workers[other]
    return w.costs_of == o.costs_of and w.role == o.role and state.cached[worker] == state.cached[other]


@jitable
def back_tokens(state: SimulationState, present: float, total: float) -> float:
    """Return for how many tokens a remote prefill sends KV to the decode worker: all, unless that has the history.

    An engine that fetches KV fetches what its own prefix cache lacks.
    """
    return total - present if state.rules[0].reads == 1 or state.rules[0].pull == 1 else total


@jitable
def candidates(state: SimulationState, row: int, home: int, present: float, here: float, total: float) -> int:
    """Write the workers that may prefill for a session of worker ``home``; return how many there are.

    One that decodes, too, must have room for the task's KV beside its own sessions; where no history can be read, a
    worker's prefix cache must have most of what is in the memory of ``home``, which are ``here`` of the tokens
    ``present``.
    """
    rules = state.rules[0]
    later = state.rows[row].history > 0
    count = 0
    for i in range(rules.helpers):
        w = state.workers[i]
        if i == home or w.draining == 1:
            continue
        if rules.unreadable == 1 and later and not may_recompute(here, total - present, state.cached[i]):
            continue
        helps = w.both == 1 and w.role == DECODE and total <= free_tokens(state, i)
        if helps or (w.role == PREFILL and total <= w.kv_capacity):
            state.candidates[count] = i
            count += 1
    return count


@jitable
def route_round(state: SimulationState, row: int, home: int, now: float) -> None:
    """Route a round whose KV memory is allocated, and queue its prefill on the chosen worker.

    What a tier has of its history is loaded before, unless the prefill worker computes it.
    """
    rules = state.rules[0]
    r = state.rows[row]
    session = state.sessions[r.session]
    first = r.history == 0
    present = cached_prefix(state, row, home) if first else min(session.kv_tokens + session.kv_before, r.history)
    below = tokens_below(state, row, home) if rules.tiers == 1 else 0.0
    present = max(present, session.kv_tokens + below)
    total = r.history + r.increment + r.generated
    session.kv_tokens = r.history + r.increment + 1 + r.generated
    session.kv_before = 0.0
    if r.resumed == 1:  # a preempted sequence is recomputed where it decodes
        start_prefill(state, row, home, home, 0.0, total, 0.0, 0.0, rules.slices == 0, now)
        state.totals[0].recomputed += total
        return
    if not first:
        state.totals[0].recomputed += r.history - present
    if r.kept > 0:  # preempted before its first token: the prefill runs again, and this copy is not used
        drop_prompt(state, row, r.route)
    look_up(state, row)
    load_s = load_end(state, row, home, below, now) - now if below > 0 else 0.0
    workers = candidates(state, row, home, present, present - below, total)
    describe_task(state, row, present, total, now)
    describe_local(state, home, present, total - present, load_s, now)
    for k in range(workers):
        describe_remote(state, row, k, state.candidates[k], home, present, below, load_s, total, now)
    if rules.reads_order == 1:
        shuffle(state, workers)
    batch = describe_batch(state, home) if rules.reads_gaps == 1 else 0
    state.totals[0].choices = workers
    state.totals[0].decoding = batch
    answer = call_policy(rules.decide, state)
    choice = answer >> REASON_BITS
    reason = answer & ((1 << REASON_BITS) - 1)
    r.reason = reason
    r.route = LOCAL if choice == LOCAL else state.candidates[choice]
    r.present = present
    if below > 0 and (choice == LOCAL or rules.reads == 1):
        start_load(state, row, home, below, now)
        return
    start_routed(state, row, home, present - below, now)


@jitable
def start_routed(state: SimulationState, row: int, home: int, here: float, now: float) -> None:
    """Queue the prefill of a round where it was routed to; the memory of ``home`` has ``here`` tokens of its history.

    What workers have cached of its prompt was looked up.
    """
    rules = state.rules[0]
    r = state.rows[row]
    total = r.history + r.increment + r.generated
    if r.route == LOCAL:
        whole = r.reason == LOCAL_WHOLE or (r.reason != LOCAL_CHUNKED and rules.slices == 0)
        start_prefill(state, row, home, home, here, total - here, 0.0, 0.0, whole, now)
        return
    known, tokens, read = remote_work(readable_tokens(state, row, here), total, state.cached[r.route])
    if r.history == 0:
        state.workers[r.route].assigned += 1
    elif rules.reads == 0:
        state.totals[0].recomputed += max(0.0, r.present - known)
    back = back_tokens(state, here, total)
    start_prefill(state, row, r.route, home, known, tokens, read, back, True, now)  # routers slice local ones only


@jitable
def start_prefill(
    state: SimulationState,
    row: int,
    worker: int,
    home: int,
    cached: float,
    tokens: float,
    read: float,
    back: float,
    whole: bool,
    now: float,
) -> None:
    """Queue a prefill on a worker, and start to read its history unless the engine reads it when the prefill runs."""
    r = state.rows[row]
    w = state.workers[worker]
    r.prefill_worker = worker
    r.task_history = cached
    r.task_tokens = tokens
    r.done = 0.0
    r.back = back
    r.whole = 1 if whole or w.role == PREFILL else 0
    r.seconds = prefill_seconds(prefill_pieces(state, worker), cached, tokens)
    r.ready = READY
    r.scratch_kv = 0.0
    w.last_chosen = now
    if worker != home and w.role == DECODE:  # this worker holds the KV beside that of its own sessions
        r.scratch_kv = cached + tokens
        use_kept_prompt(state, row, worker)
        if state.rules[0].oracle == 0:
            make_room(state, worker, r.scratch_kv, -1, True)
        use_kv(state, worker, r.scratch_kv)
    enqueue(state, row, worker, now)
    r.read = 0.0
    if read > 0:
        state.totals[0].read_tokens += read
        if state.rules[0].pull == 1 and w.role == PREFILL:
            r.read = read
            return
        r.ready = READING
        send(state, row, READ_END, home, worker, read, r.read_sends, now)
