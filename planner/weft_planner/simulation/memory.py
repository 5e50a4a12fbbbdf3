"""Manage KV memory: binding of sessions, admission of rounds, eviction of idle sessions, preemption."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.gaps import largest_gap, late_gaps_of
from weft_planner.simulation.lists import (
    UNBOUND,
    append,
    first_of,
    insert_after,
    last_of,
    length_of,
    list_of,
    prepend,
    remove,
    slot_of,
)
from weft_planner.simulation.prefix_cache import give_up_prompt, make_kept_room
from weft_planner.simulation.queues import mark_dirty
from weft_planner.simulation.records import (
    ACTIVE,
    DECODE,
    EVICTABLE,
    FRESH,
    JOINING,
    KEPT,
    QUEUE,
    WAITING,
    SimulationState,
)
from weft_planner.simulation.retention import least_valuable
from weft_planner.simulation.state_type import call_policy
from weft_planner.simulation.tiers import write_evicted

NO_ROOM = -1e300
"""Free tokens of a worker that cannot take a session: no prefix hit makes up for it."""


@jitable
def use_kv(state: SimulationState, worker: int, tokens: float) -> None:
    """Allocate KV memory of a worker, whose prefix cache gives up what no longer fits beside it."""
    w = state.workers[worker]
    w.kv_used += tokens
    w.kv_peak = max(w.kv_peak, w.kv_used - w.ended_kv)
    if w.kept > 0:
        make_kept_room(state, worker)


@jitable
def free_kv(state: SimulationState, worker: int, tokens: float) -> None:
    """Free KV memory of a worker; rounds that wait for memory are admitted after this event."""
    state.workers[worker].kv_used -= tokens
    state.totals[0].kv_freed = 1
    mark_dirty(state, worker)


@jitable
def free_tokens(state: SimulationState, worker: int) -> float:
    """Return the KV memory of a worker that no round holds: what is evictable is free, as in the gauges of engines."""
    w = state.workers[worker]
    free = w.kv_capacity - w.kv_used
    return free if state.rules[0].oracle == 1 else free + w.evictable_kv


@jitable
def make_evictable(state: SimulationState, row: int, worker: int) -> None:
    """Mark the KV of a session between rounds as evictable; ``row`` is its next round."""
    r = state.rows[row]
    held = state.sessions[r.session].kv_tokens
    r.evictable = 1
    append(state, list_of(state, EVICTABLE, worker), row)
    state.workers[worker].evictable_kv += held


@jitable
def protect_kv(state: SimulationState, row: int, worker: int) -> None:
    """Mark a session's KV as no longer evictable: its next round starts, or its KV is freed."""
    r = state.rows[row]
    if r.evictable == 1:
        r.evictable = 0
        remove(state, list_of(state, EVICTABLE, worker), row)
        state.workers[worker].evictable_kv -= state.sessions[r.session].kv_tokens


@jitable
def next_to_evict(state: SimulationState, worker: int, spared: int, pressed: bool) -> int:
    """Return the row of the session that has been idle longest of those whose time to live is over, -1 without one.

    ``pressed``: there is no other memory to get. Then, as a last resort, the session that began last loses its time.
    By value it is the session whose KV is worth least.
    """
    if state.rules[0].by_value == 1:
        return least_valuable(state, EVICTABLE, worker, spared)
    last = -1
    row = first_of(state, EVICTABLE, worker)
    while row >= 0:
        if row != spared:
            if state.rows[row].kept_until <= state.totals[0].now:
                return row
            if last < 0 or state.rows[row].session > state.rows[last].session:
                last = row
        row = state.after[row, EVICTABLE]
    return last if pressed else -1


@jitable
def evict_kv(state: SimulationState, row: int, worker: int, lacking: float) -> None:
    """Evict the KV of the session whose next, or last, round is ``row``.

    Where KV is evicted by tokens, no more than is ``lacking`` goes, and by value all of it. Tiers get it where they are
    written to on eviction.
    """
    r = state.rows[row]
    session = state.sessions[r.session]
    w = state.workers[worker]
    given = session.kv_tokens
    if state.rules[0].evicts_tokens == 1 and state.rules[0].by_value == 0:
        given = min(lacking, given)
    if state.rules[0].tiers == 1 and state.rules[0].on_eviction == 1:
        write_evicted(state, r.session, worker, given)
    if session.bound < 0:
        w.ended_kv -= given
    else:
        state.totals[0].evictions += 1 - r.evicted
        r.evicted = 1
    if given == session.kv_tokens:
        protect_kv(state, row, worker)
    else:
        w.evictable_kv -= given
    w.kv_used -= given
    session.kv_tokens -= given


@jitable
def make_room(state: SimulationState, worker: int, tokens: float, spared: int, pressed: bool) -> bool:
    """Give up what was used least recently until a worker has room for some tokens; False when that is not enough.

    That is prompts in its prefix cache and KV of idle sessions, not that of row ``spared``. ``pressed``: see
    ``next_to_evict``.
    """
    w = state.workers[worker]
    lacking = w.kv_used + w.kept + tokens - w.kv_capacity
    while lacking > 0:
        row = next_to_evict(state, worker, spared, pressed)
        prompt = first_of(state, KEPT, worker)
        if prompt >= 0 and (
            row < 0 or state.rows[prompt].kept_at <= state.sessions[state.rows[row].session].idle_since
        ):
            give_up_prompt(state, prompt, worker, lacking)
        elif row >= 0:
            evict_kv(state, row, worker, lacking)
        else:
            return False
        lacking = w.kv_used + w.kept + tokens - w.kv_capacity
    return True


@jitable
def bind_session(state: SimulationState, row: int) -> int:
    """Return the decode worker that the service's binding chooses for a session, -1 when none has room.

    The prompt must fit now; with known lengths the whole session must.
    """
    rules = state.rules[0]
    r = state.rows[row]
    session = state.sessions[r.session]
    need = session.reserve if rules.oracle == 1 else r.history + r.increment + 1
    hit = session.prefix if session.prefix >= rules.least_hit * (r.history + r.increment) else 0.0
    count = 0
    for i in range(rules.workers):
        w = state.workers[i]
        if w.role != DECODE or w.draining == 1:
            continue
        state.places[count] = i
        state.kv_capacity[count] = w.kv_capacity
        state.bound[count] = w.sessions
        state.prefix_hit[count] = hit if state.per_class[i, session.slo_class].cached == 1 else 0.0
        state.load[count] = w.batch + length_of(state, WAITING, i) + length_of(state, QUEUE, i)
        free = free_tokens(state, i)
        state.kv_free[count] = free if free >= need else NO_ROOM
        count += 1
    if count == 0:
        return -1
    state.totals[0].choices = count
    state.totals[0].needed_kv = need
    chosen = call_policy(rules.place, state)
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
    free_kv(state, worker, session.reserve if state.rules[0].oracle == 1 else session.kv_tokens)
    session.kv_tokens = 0.0
    session.bound = -1
    state.workers[worker].sessions -= 1


@jitable
def leave_kv(state: SimulationState, row: int) -> None:
    """End a session's binding and leave its KV to be evicted; ``row`` is its last round."""
    session = state.sessions[state.rows[row].session]
    worker = session.bound
    state.rows[row].kept_until = 0.0
    make_evictable(state, row, worker)
    state.workers[worker].ended_kv += session.kv_tokens
    mark_dirty(state, worker)
    session.bound = -1
    state.workers[worker].sessions -= 1
    state.totals[0].kv_freed = 1


@jitable
def wait_for_kv(state: SimulationState, row: int, worker: int) -> None:
    """Queue a round for room in its worker's KV cache; it is considered at the end of this event.

    Rounds wait in order of arrival. With times to live it is the order of their sessions' arrival, so that a session
    whose KV was kept does not wait behind one that has none (Continuum, section 4).
    """
    which = list_of(state, WAITING, worker)
    place = state.lists[which].last
    if state.rules[0].ttl == 1:
        while place >= 0 and state.rows[place].session > state.rows[row].session:
            place = state.before[place, WAITING]
    insert_after(state, which, place, row)
    mark_dirty(state, worker)


@jitable
def wait_for_worker(state: SimulationState, row: int) -> None:
    """Queue a round for a worker that has room for its session."""
    append(state, UNBOUND, row)
    state.totals[0].kv_freed = 1


@jitable
def admit(state: SimulationState, row: int, worker: int) -> bool:
    """Allocate the memory of a round's prompt and first token, evicting idle sessions; False when there is no room.

    Where only idle sessions hold memory, no time to live keeps it.

    One token is left free for each other sequence of the worker. Otherwise two sequences could preempt each other
    forever without either producing a token.
    """
    r = state.rows[row]
    session = state.sessions[r.session]
    w = state.workers[worker]
    need = r.history + r.increment + 1 + r.generated
    if state.rules[0].oracle == 0:
        others = w.batch + length_of(state, QUEUE, worker) + length_of(state, JOINING, worker)
        pressed = w.kv_used - w.evictable_kv < 1
        if not make_room(state, worker, need - session.kv_tokens + others, row, pressed):
            return False
    protect_kv(state, row, worker)
    if state.rules[0].oracle == 0:
        use_kv(state, worker, need - session.kv_tokens)
    return True


@jitable
def leave_batch(state: SimulationState, row: int, worker: int) -> None:
    """Remove a sequence from the running batch."""
    r = state.rows[row]
    w = state.workers[worker]
    done = w.steps - r.join_step
    remove(state, list_of(state, ACTIVE, worker), row)
    remove(state, slot_of(state, worker, r.join_step + r.steps_left), row)
    w.batch -= 1
    w.context -= r.history + r.increment + 1 + r.generated + done
    state.per_class[worker, state.sessions[r.session].slo_class].active -= 1


@jitable
def preempt_one(state: SimulationState, worker: int) -> None:
    """Preempt the sequence that joined last and free its memory; it is recomputed before other waiting rounds."""
    row = last_of(state, ACTIVE, worker)
    r = state.rows[row]
    w = state.workers[worker]
    session = state.sessions[r.session]
    done = w.steps - r.join_step
    if done <= 0:  # no gap was counted yet
        remove(state, list_of(state, FRESH, worker), row)
    else:
        r.late_before = late_gaps_of(state, row, worker)
        r.max_gap = max(r.max_gap, largest_gap(state, worker, r.join_step + 2))
        r.last_token_at = w.last_end
    leave_batch(state, row, worker)
    done = max(done, 0)
    w.kv_used -= r.history + r.increment + 1 + r.generated + done
    session.kv_tokens = 0.0
    r.generated += done
    r.steps_left -= done
    w.first_tokens_pending -= r.first_token_pending
    r.resumed = 1 - r.first_token_pending
    r.first_token_pending = 0
    prepend(state, list_of(state, WAITING, worker), row)
    state.totals[0].preemptions += 1


@jitable
def make_room_to_grow(state: SimulationState, worker: int) -> None:
    """Allocate one more token for every running sequence, preempting the last to join when memory runs out.

    The first token's memory was allocated with the prompt's.
    """
    w = state.workers[worker]
    while w.batch > 0 and not make_room(state, worker, float(w.batch - w.first_tokens_pending), -1, True):
        preempt_one(state, worker)
    use_kv(state, worker, float(w.batch - w.first_tokens_pending))
