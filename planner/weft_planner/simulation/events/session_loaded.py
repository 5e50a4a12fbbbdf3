"""The KV of a session is back on its decode worker from a tier below the GPUs."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.memory import free_tokens
from weft_planner.simulation.prefix_cache import look_up
from weft_planner.simulation.records import PREFILL, SimulationState
from weft_planner.simulation.routing import route_round, start_routed


@jitable
def end_load(state: SimulationState, row: int, now: float) -> None:
    """Queue the prefill of the round that waited for it, where it was routed to; its memory was allocated before.

    If that worker does not prefill for others any more, or has no room for it now, it is routed again.
    """
    r = state.rows[row]
    session = state.sessions[r.session]
    if r.route >= 0:
        w = state.workers[r.route]
        decodes = w.role != PREFILL
        total = r.history + r.increment + r.generated
        if w.draining == 1 or (decodes and (w.both == 0 or total > free_tokens(state, r.route))):
            session.kv_tokens = r.present
            state.totals[0].recomputed -= r.history - r.present  # it is counted again
            route_round(state, row, session.bound, now)
            return
    look_up(state, row)
    start_routed(state, row, session.bound, r.present, now)
