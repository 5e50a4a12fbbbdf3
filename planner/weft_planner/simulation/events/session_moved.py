"""The KV of a session has reached its new worker."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.memory import detach, free_kv, make_evictable, wait_for_kv
from weft_planner.simulation.queues import mark_dirty
from weft_planner.simulation.records import TOO_LONG, SimulationState
from weft_planner.simulation.rounds import migrate_session


@jitable
def end_migration(state: SimulationState, row: int, now: float) -> None:
    """Finish a session's migration; a round that arrived meanwhile continues."""
    r = state.rows[row]
    session = state.sessions[r.session]
    session.moving = 0
    free_kv(state, r.prefill_worker, session.reserve if state.rules[0].oracle == 1 else session.kv_tokens)
    if r.state == TOO_LONG:
        detach(state, row)
    elif session.awaits_kv == 1:
        session.awaits_kv = 0
        wait_for_kv(state, row, session.bound)
    elif state.workers[session.bound].draining == 1:
        migrate_session(state, row, now)
    else:
        make_evictable(state, row, session.bound)
        mark_dirty(state, session.bound)
