"""Manage KV memory: binding of sessions, admission of rounds, eviction of idle sessions, preemption."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.gaps import largest_gap, over_now
from weft_planner.simulation.lists import (
    UNBOUND,
    append,
    first_of,
    last_of,
    length_of,
    list_of,
    prepend,
    remove,
    slot_of,
)
from weft_planner.simulation.queues import mark_dirty
from weft_planner.simulation.records import (
    ACTIVE,
    DECODE,
    EVICTABLE,
    FRESH,
    JOINING,
    QUEUE,
    WAITING,
    SimulationState,
)
from weft_planner.simulation.state_type import call_policy

NO_ROOM = -1e300
"""Free tokens of a worker that cannot take a session: no prefix hit makes up for it."""


@jitable
def use_kv(state: SimulationState, worker: int, tokens: float) -> None:
    """Take KV memory of a worker."""
    w = state.workers[worker]
    w.kv_used += tokens
    w.kv_peak = max(w.kv_peak, w.kv_used)


@jitable
def free_kv(state: SimulationState, worker: int, tokens: float) -> None:
    """Free KV memory of a worker, and have the rounds that wait for it considered."""
    state.workers[worker].kv_used -= tokens
    state.totals[0].room = 1
    mark_dirty(state, worker)


@jitable
def make_evictable(state: SimulationState, row: int, worker: int) -> None:
    """Let the KV of a session between rounds be evicted from now on; ``row`` is its next round."""
    r = state.rows[row]
    held = state.sessions[r.session].held
    r.idle = 1
    append(state, list_of(state, EVICTABLE, worker), row)
    state.workers[worker].idle_held += held


@jitable
def protect_kv(state: SimulationState, row: int, worker: int) -> None:
    """Protect a session's KV from eviction, also before it is freed otherwise."""
    r = state.rows[row]
    if r.idle == 1:
        r.idle = 0
        remove(state, list_of(state, EVICTABLE, worker), row)
        state.workers[worker].idle_held -= state.sessions[r.session].held


@jitable
def evict_one(state: SimulationState, worker: int, spared: int) -> bool:
    """Drop the KV of the session that has been idle longest, not that of row ``spared``; False when there is none."""
    row = first_of(state, EVICTABLE, worker)
    if row == spared and row >= 0:
        row = state.after[EVICTABLE, row]
    if row < 0:
        return False
    protect_kv(state, row, worker)
    session = state.sessions[state.rows[row].session]
    state.workers[worker].kv_used -= session.held
    session.held = 0.0
    state.totals[0].evictions += 1
    return True


@jitable
def make_room(state: SimulationState, worker: int, tokens: float) -> bool:
    """Evict idle sessions until there is room for some tokens; always True where memory was reserved beforehand."""
    w = state.workers[worker]
    if state.rules[0].oracle == 0:
        while w.kv_used + tokens > w.kv_capacity:
            if not evict_one(state, worker, -1):
                return False
    return True


@jitable
def bind_session(state: SimulationState, row: int) -> int:
    """Return the decode worker that the service's binding chooses for a session, -1 when none has room.

    The prompt must fit now; with known lengths the whole session must. When nothing is free, memory that idle sessions
    would give up counts as free.
    """
    rules = state.rules[0]
    r = state.rows[row]
    session = state.sessions[r.session]
    need = session.reserve if rules.oracle == 1 else r.history + r.increment + 1
    count = 0
    idle = 0.0
    for i in range(rules.workers):
        w = state.workers[i]
        if w.role != DECODE or w.draining == 1:
            continue
        state.places[count] = i
        state.kv_capacity[count] = w.kv_capacity
        state.bound[count] = w.sessions
        state.prefix_hit[count] = session.prefix if state.per_class[i, session.kind].cached == 1 else 0.0
        state.load[count] = w.batch + length_of(state, WAITING, i) + length_of(state, QUEUE, i)
        idle += w.idle_held
        count += 1
    chosen = -1
    attempts = 0 if count == 0 else (1 if idle == 0 or rules.oracle == 1 else 2)
    for attempt in range(attempts):
        for k in range(count):
            w = state.workers[state.places[k]]
            free = w.kv_capacity - w.kv_used
            if attempt == 1:
                free += w.idle_held
            state.kv_free[k] = free if free >= need else NO_ROOM
        state.totals[0].asked = count
        state.totals[0].need = need
        chosen = call_policy(rules.place, state)
        if chosen >= 0:
            break
    if chosen < 0:
        return -1
    state.totals[0].cursor = chosen + 1
    return state.places[chosen]


@jitable
def attach(state: SimulationState, row: int, worker: int) -> None:
    """Bind a session to a worker."""
    session = state.sessions[state.rows[row].session]
    session.bound = worker
    state.workers[worker].sessions += 1
    if state.rules[0].oracle == 1:
        use_kv(state, worker, session.reserve)


@jitable
def detach(state: SimulationState, row: int) -> None:
    """End a session's binding and free its memory; ``row`` is its current or next round."""
    session = state.sessions[state.rows[row].session]
    worker = session.bound
    protect_kv(state, row, worker)
    free_kv(state, worker, session.reserve if state.rules[0].oracle == 1 else session.held)
    session.held = 0.0
    session.bound = -1
    state.workers[worker].sessions -= 1


@jitable
def wait(state: SimulationState, row: int, worker: int) -> None:
    """Let a round wait for room in its worker's KV cache; it is looked at as soon as this event is dealt with."""
    append(state, list_of(state, WAITING, worker), row)
    mark_dirty(state, worker)


@jitable
def wait_unbound(state: SimulationState, row: int) -> None:
    """Let a round wait for a worker that has room for its session."""
    append(state, UNBOUND, row)
    state.totals[0].room = 1


@jitable
def admit(state: SimulationState, row: int, worker: int) -> bool:
    """Take the memory of a round's prompt and first token, evicting idle sessions; False when there is no room.

    A token of room stays for each other sequence here: without it two could preempt each other for ever, neither of
    them a token further.
    """
    r = state.rows[row]
    session = state.sessions[r.session]
    w = state.workers[worker]
    need = r.history + r.increment + 1 + r.generated
    if state.rules[0].oracle == 0:
        others = w.batch + length_of(state, QUEUE, worker) + length_of(state, JOINING, worker)
        while w.kv_used + need - session.held + others > w.kv_capacity:
            if not evict_one(state, worker, row):
                return False
    protect_kv(state, row, worker)
    if state.rules[0].oracle == 0:
        use_kv(state, worker, need - session.held)
    return True


@jitable
def leave_batch(state: SimulationState, row: int, worker: int) -> None:
    """Take a sequence out of the running batch."""
    r = state.rows[row]
    w = state.workers[worker]
    done = w.steps - r.join_step
    remove(state, list_of(state, ACTIVE, worker), row)
    remove(state, slot_of(state, worker, r.join_step + r.left), row)
    w.batch -= 1
    w.context -= r.history + r.increment + 1 + r.generated + done
    state.per_class[worker, state.sessions[r.session].kind].active -= 1


@jitable
def preempt_one(state: SimulationState, worker: int) -> None:
    """Stop the sequence that joined last and free its memory; it is recomputed, first of those that wait."""
    row = last_of(state, ACTIVE, worker)
    r = state.rows[row]
    w = state.workers[worker]
    session = state.sessions[r.session]
    done = w.steps - r.join_step
    if done <= 0:  # no gap was counted yet
        remove(state, list_of(state, FRESH, worker), row)
    else:
        r.over_so_far = over_now(state, row, worker)
        r.max_gap = max(r.max_gap, largest_gap(state, worker, r.join_step + 2))
        r.since = w.last_end
    leave_batch(state, row, worker)
    done = max(done, 0)
    w.kv_used -= r.history + r.increment + 1 + r.generated + done
    session.held = 0.0
    r.generated += done
    r.left -= done
    w.starting -= r.starts
    r.resumed = 1 - r.starts
    r.starts = 0
    prepend(state, list_of(state, WAITING, worker), row)
    state.totals[0].preemptions += 1


@jitable
def make_room_to_grow(state: SimulationState, worker: int) -> None:
    """Take the memory of one more token of every running sequence; the last to join make way when there is none.

    The first token's memory was taken with the prompt's.
    """
    w = state.workers[worker]
    while w.batch > 0 and w.kv_used + w.batch - w.starting > w.kv_capacity:
        if not evict_one(state, worker, -1):
            preempt_one(state, worker)
    use_kv(state, worker, float(w.batch - w.starting))
