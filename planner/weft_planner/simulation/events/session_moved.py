"""The KV of a session is with its new worker."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.memory import detach, free_kv, make_evictable, wait
from weft_planner.simulation.queues import mark_dirty
from weft_planner.simulation.records import TOO_LONG, SimulationState
from weft_planner.simulation.rounds import move


@jitable
def end_move(state: SimulationState, row: int, now: float) -> None:
    """Finish a session's move; a round that arrived meanwhile continues."""
    r = state.rows[row]
    session = state.sessions[r.session]
    session.moving = 0
    free_kv(state, r.where, session.reserve if state.rules[0].oracle == 1 else session.held)
    if r.state == TOO_LONG:
        detach(state, row)
    elif session.parked == 1:
        session.parked = 0
        wait(state, row, session.bound)
    elif state.workers[session.bound].draining == 1:
        move(state, row, now)
    else:
        make_evictable(state, row, session.bound)
        mark_dirty(state, session.bound)
