"""The KV of a remote prefill has reached its decode worker."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.lists import append, list_of
from weft_planner.simulation.memory import free_kv
from weft_planner.simulation.prefix_cache import keep_prompt
from weft_planner.simulation.queues import mark_dirty
from weft_planner.simulation.records import JOINING, SimulationState
from weft_planner.simulation.rounds import emit_first_token


@jitable
def end_kv_return(state: SimulationState, row: int, now: float) -> None:
    """Start decoding with the KV of a remote prefill."""
    r = state.rows[row]
    if r.scratch_kv > 0:
        free_kv(state, r.prefill_worker, r.scratch_kv)
        r.scratch_kv = 0.0
        keep_prompt(state, row, r.prefill_worker, now)
    if state.rules[0].pull == 0:
        emit_first_token(state, row, now, False)
        return
    session = state.sessions[r.session]
    r.first_token_pending = 1
    append(state, list_of(state, JOINING, session.bound), row)
    mark_dirty(state, session.bound)
