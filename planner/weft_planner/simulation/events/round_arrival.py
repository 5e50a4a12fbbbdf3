"""A round reaches the router."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.event_heap import push
from weft_planner.simulation.memory import detach, wait_for_kv, wait_for_worker
from weft_planner.simulation.records import ARRIVE, DECODE, TOO_LONG, SimulationState
from weft_planner.simulation.retention import observe_gap


@jitable
def arrive(state: SimulationState, row: int, now: float) -> None:
    """Admit or queue a round; the first of a session sets the next session's arrival."""
    totals = state.totals[0]
    r = state.rows[row]
    session = state.sessions[r.session]
    if row == session.first_row and r.session + 1 < state.rules[0].sessions:
        following = state.sessions[r.session + 1]
        push(state, following.arrival, ARRIVE, following.first_row)
    if now - totals.rate_from > state.rules[0].window_s:
        totals.arrivals_before = totals.arrivals
        totals.arrivals = 0
        totals.rate_from = now
    if r.history == 0:
        totals.arrivals += 1
    r.arrival = now
    session.idle_since = float("inf")
    if (state.rules[0].ttl == 1 or state.rules[0].by_value == 1) and row > session.first_row:
        observe_gap(state, row)
    context = r.history + r.increment + r.steps_left + 1
    if state.rules[0].oracle == 1:
        context = session.reserve
    largest = 0.0
    first = max(0, session.bound)
    for i in range(first, state.rules[0].workers if session.bound < 0 else first + 1):
        w = state.workers[i]
        if w.role == DECODE or w.target == DECODE:
            largest = max(largest, w.kv_capacity)
    if 0 < largest < context:  # without any decode worker the round waits for one
        r.state = TOO_LONG
        if session.bound >= 0 and session.moving == 0:
            detach(state, row)
        return
    if session.bound >= 0 and session.moving == 0 and state.workers[session.bound].draining == 1:
        detach(state, row)
    if session.moving == 1:
        session.awaits_kv = 1
    elif session.bound >= 0:
        wait_for_kv(state, row, session.bound)
    else:
        wait_for_worker(state, row)
