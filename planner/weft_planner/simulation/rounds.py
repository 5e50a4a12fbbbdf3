"""Advance a round from binding to completion, and its session to the next round or to another worker."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.event_heap import push
from weft_planner.simulation.gaps import largest_gap, late_gaps_of
from weft_planner.simulation.lists import UNBOUND, append, list_of, prepend, remove
from weft_planner.simulation.memory import (
    attach,
    bind_session,
    detach,
    leave_batch,
    leave_kv,
    make_evictable,
    make_room,
    protect_kv,
    use_kv,
    wait_for_kv,
)
from weft_planner.simulation.queues import mark_dirty
from weft_planner.simulation.records import ARRIVE, JOINING, MOVED, SERVED, SimulationState
from weft_planner.simulation.retention import observe_rounds, start_time_to_live
from weft_planner.simulation.tiers import forget_below, write_below
from weft_planner.simulation.transfers import send


@jitable
def bind_waiting(state: SimulationState) -> None:
    """Bind sessions that wait for a worker, in order of arrival, until one does not fit."""
    row = state.lists[UNBOUND].first
    while row >= 0:
        worker = bind_session(state, row)
        if worker < 0:
            return
        remove(state, UNBOUND, row)
        attach(state, row, worker)
        wait_for_kv(state, row, worker)
        row = state.lists[UNBOUND].first


@jitable
def emit_first_token(state: SimulationState, row: int, now: float, keeps_place: bool) -> None:
    """Emit a round's first token, or resume a preempted round; it decodes from the next step on.

    ``keeps_place``: it has a place in the engine, and joins the batch before those that wait for one.
    """
    r = state.rows[row]
    session = state.sessions[r.session]
    record_first_token(state, row, now)
    if r.steps_left == 0:
        complete_round(state, row, now)
        return
    joining = list_of(state, JOINING, session.bound)
    if keeps_place:
        prepend(state, joining, row)
    else:
        append(state, joining, row)
    mark_dirty(state, session.bound)


@jitable
def record_first_token(state: SimulationState, row: int, now: float) -> None:
    """Record a round's TTFT, unless its first token was emitted before a preemption."""
    r = state.rows[row]
    session = state.sessions[r.session]
    if r.history == 0:
        state.per_class[session.bound, session.slo_class].cached = 1
    if r.resumed == 0:
        r.first_token_at = now
        r.last_token_at = now
        r.ttft = now - r.arrival
        if r.ttft > state.classes[session.slo_class].ttft_slo:
            session.missed_ttft = 1


@jitable
def complete_decode(state: SimulationState, row: int, worker: int, now: float) -> None:
    """Remove a finished round from its batch, record its gaps and complete it."""
    r = state.rows[row]
    session = state.sessions[r.session]
    r.late_gaps = late_gaps_of(state, row, worker)
    r.max_gap = max(r.max_gap, largest_gap(state, worker, r.join_step + 2))
    leave_batch(state, row, worker)
    r.gaps = r.generated + r.steps_left
    session.gap_s += now - r.first_token_at
    session.gaps += r.gaps
    session.late_gaps += r.late_gaps
    complete_round(state, row, now)


@jitable
def complete_round(state: SimulationState, row: int, now: float) -> None:
    """Complete a round: its session's next round arrives after a gap, or the session ends."""
    r = state.rows[row]
    session = state.sessions[r.session]
    r.finished = now
    r.state = SERVED
    session.kv_tokens = r.history + r.increment + 1 + r.generated + r.steps_left
    session.idle_since = now
    if state.rules[0].tiers == 1:
        if state.rules[0].on_eviction == 1:
            forget_below(state, r.session)
        else:
            write_below(state, r.session, session.bound, session.kv_tokens, session.kv_tokens)
    if row + 1 == session.first_row + session.rounds:
        if state.rules[0].ttl == 1:
            observe_rounds(state, session.rounds)
        if state.rules[0].keeps_ended == 1:
            leave_kv(state, row)
        else:
            detach(state, row)
        return
    push(state, now + r.gap, ARRIVE, row + 1)
    if state.workers[session.bound].draining == 1:
        migrate_session(state, row + 1, now)
    else:
        if state.rules[0].ttl == 1:
            start_time_to_live(state, row + 1, session.bound, now)
        make_evictable(state, row + 1, session.bound)
        mark_dirty(state, session.bound)


@jitable
def migrate_session(state: SimulationState, row: int, now: float) -> None:
    """Migrate a session between rounds, or before its next prefill, to another worker; its KV is sent or dropped."""
    r = state.rows[row]
    session = state.sessions[r.session]
    home = session.bound
    held = session.kv_tokens
    r.kept_until = 0.0
    to = bind_session(state, row) if state.workers[home].sends_sessions == 1 and held > 0 else -1
    if to < 0 or (state.rules[0].oracle == 0 and not make_room(state, to, held, -1, False)):
        detach(state, row)
        return
    protect_kv(state, row, home)
    state.workers[home].sessions -= 1
    attach(state, row, to)
    if state.rules[0].oracle == 0:
        use_kv(state, to, held)
    session.moving = 1
    r.prefill_worker = home
    state.totals[0].moved_tokens += held
    send(state, row, MOVED, home, to, held, 1, now)
