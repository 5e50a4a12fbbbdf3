"""The history of a prefill is where it will run."""

from weft_planner.simulation.batching import compute_whole
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.queues import mark_dirty
from weft_planner.simulation.records import SimulationState


@jitable
def end_read(state: SimulationState, row: int, now: float) -> None:
    """Let a prefill go on whose history was read: it has its turn already, or may have it from now on."""
    r = state.rows[row]
    if r.ready == 1:
        compute_whole(state, r.where, now)
        return
    r.ready = 1
    mark_dirty(state, r.where)
