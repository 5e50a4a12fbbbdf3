"""Follow a round from its binding to its last token, and its session to the next round or another worker."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.event_heap import push
from weft_planner.simulation.gaps import largest_gap, over_now
from weft_planner.simulation.lists import UNBOUND, append, list_of, remove
from weft_planner.simulation.memory import (
    attach,
    bind_session,
    detach,
    leave_batch,
    make_evictable,
    make_room,
    protect_kv,
    use_kv,
    wait,
)
from weft_planner.simulation.queues import mark_dirty
from weft_planner.simulation.records import ARRIVE, JOINING, MOVED, SERVED, SimulationState
from weft_planner.simulation.transfers import send


@jitable
def bind_waiting(state: SimulationState) -> None:
    """Bind the sessions that wait for a worker, in order of arrival, as far as there is room."""
    row = state.lists[UNBOUND].first
    while row >= 0:
        worker = bind_session(state, row)
        if worker < 0:
            return
        remove(state, UNBOUND, row)
        attach(state, row, worker)
        wait(state, row, worker)
        row = state.lists[UNBOUND].first


@jitable
def first_token(state: SimulationState, row: int, now: float) -> None:
    """Emit a round's first token, or resume a preempted round; it decodes from the next step on."""
    r = state.rows[row]
    session = state.sessions[r.session]
    begin_answer(state, row, now)
    if r.left == 0:
        finish(state, row, now)
        return
    append(state, list_of(state, JOINING, session.bound), row)
    mark_dirty(state, session.bound)


@jitable
def begin_answer(state: SimulationState, row: int, now: float) -> None:
    """Write the figures of a round's first token, unless it was emitted before a preemption."""
    r = state.rows[row]
    session = state.sessions[r.session]
    if row == session.first:
        state.per_class[session.bound, session.kind].cached = 1
    if r.resumed == 0:
        r.first = now
        r.since = now
        r.ttft = now - r.arrival
        if r.ttft > state.classes[session.kind].ttft_slo:
            session.missed = 1


@jitable
def leave(state: SimulationState, row: int, worker: int, now: float) -> None:
    """Take a finished round out of its batch and write its figures."""
    r = state.rows[row]
    session = state.sessions[r.session]
    r.over = over_now(state, row, worker)
    r.max_gap = max(r.max_gap, largest_gap(state, worker, r.join_step + 2))
    leave_batch(state, row, worker)
    r.gaps = r.generated + r.left
    session.gap_s += now - r.first
    session.gaps += r.gaps
    session.over += r.over
    finish(state, row, now)


@jitable
def finish(state: SimulationState, row: int, now: float) -> None:
    """End a round: its session comes back after its gap, or is over."""
    r = state.rows[row]
    session = state.sessions[r.session]
    r.finished = now
    r.state = SERVED
    session.held = r.history + r.increment + 1 + r.generated + r.left
    if row + 1 == session.first + session.rounds:
        detach(state, row)
        return
    push(state, now + r.gap, ARRIVE, row + 1)
    if state.workers[session.bound].draining == 1:
        move(state, row + 1, now)
    else:
        make_evictable(state, row + 1, session.bound)
        mark_dirty(state, session.bound)


@jitable
def move(state: SimulationState, row: int, now: float) -> None:
    """Give a session between rounds, or before its next prefill, to another worker; its KV is sent or given up."""
    r = state.rows[row]
    session = state.sessions[r.session]
    home = session.bound
    held = session.held
    to = bind_session(state, row) if state.workers[home].keep == 1 and held > 0 else -1
    if to < 0 or not make_room(state, to, held):
        detach(state, row)
        return
    protect_kv(state, row, home)
    state.workers[home].sessions -= 1
    attach(state, row, to)
    if state.rules[0].oracle == 0:
        use_kv(state, to, held)
    session.moving = 1
    r.where = home
    state.totals[0].moved += held
    send(state, row, MOVED, home, to, held, 1, now)
