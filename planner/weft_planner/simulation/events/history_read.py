"""The history of a prefill is where it will run."""

from weft_planner.simulation.batching import compute_whole
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.queues import mark_dirty
from weft_planner.simulation.records import SimulationState


@jitable
def end_read(state: SimulationState, row: int, now: float) -> None:
    """Continue a prefill whose history was read: its turn has come, or will, or it may be chosen from now on."""
    r = state.rows[row]
    if r.ready == 0:
        r.ready = 1
        mark_dirty(state, r.where)
        return
    r.reading = 0
    if state.workers[r.where].current == row:
        compute_whole(state, r.where, now)
