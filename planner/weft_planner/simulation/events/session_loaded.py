"""The KV of a session is back on its decode worker from a tier below the GPUs."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.records import SimulationState
from weft_planner.simulation.routing import route_round


@jitable
def end_load(state: SimulationState, row: int, now: float) -> None:
    """Route the round that waited for it; its memory was allocated before."""
    r = state.rows[row]
    session = state.sessions[r.session]
    session.kv_tokens = r.present
    route_round(state, row, session.bound, now)
