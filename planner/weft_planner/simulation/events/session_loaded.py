"""The KV of a session is back on its decode worker from a tier below the GPUs."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.prefix_cache import look_up
from weft_planner.simulation.records import SimulationState
from weft_planner.simulation.routing import start_routed


@jitable
def end_load(state: SimulationState, row: int, now: float) -> None:
    """Queue the prefill of the round that waited for it, where it was routed to; its memory was allocated before."""
    r = state.rows[row]
    look_up(state, row)
    start_routed(state, row, state.sessions[r.session].bound, r.present, now)
