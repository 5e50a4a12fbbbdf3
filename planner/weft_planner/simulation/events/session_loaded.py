"""The KV of a session is back on its decode worker from a tier below the GPUs."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.prefix_cache import look_up
from weft_planner.simulation.records import PREFILL, SimulationState
from weft_planner.simulation.routing import route_round, start_routed


@jitable
def end_load(state: SimulationState, row: int, now: float) -> None:
    """Queue the prefill of the round that waited for it, where it was routed to; its memory was allocated before.

    If that worker does not prefill for others any more, it is routed again.
    """
    r = state.rows[row]
    session = state.sessions[r.session]
    if r.route >= 0:
        w = state.workers[r.route]
        if w.draining == 1 or (w.role != PREFILL and w.both == 0):
            session.kv_tokens = r.present
            route_round(state, row, session.bound, now)
            return
    look_up(state, row)
    start_routed(state, row, session.bound, r.present, now)
