"""The KV of a remote prefill is with its decode worker."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.lists import append, list_of
from weft_planner.simulation.memory import free_kv
from weft_planner.simulation.prefix_cache import keep_prompt
from weft_planner.simulation.queues import mark_dirty
from weft_planner.simulation.records import JOINING, SimulationState
from weft_planner.simulation.rounds import first_token


@jitable
def end_back(state: SimulationState, row: int, now: float) -> None:
    """Take in the KV of a remote prefill."""
    r = state.rows[row]
    if r.scratch > 0:
        free_kv(state, r.where, r.scratch)
        r.scratch = 0.0
        keep_prompt(state, row, r.where)
    if state.rules[0].pull == 0:
        first_token(state, row, now)
        return
    session = state.sessions[r.session]
    r.starts = 1
    append(state, list_of(state, JOINING, session.bound), row)
    mark_dirty(state, session.bound)
