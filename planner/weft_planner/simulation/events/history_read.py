"""The history of a prefill has reached the worker that computes it."""

from weft_planner.simulation.batching import compute_prefill
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.queues import mark_dirty
from weft_planner.simulation.records import IN_ENGINE, READING, READY, SimulationState


@jitable
def end_read(state: SimulationState, row: int, now: float) -> None:
    """Compute a prefill that waits for its history, or mark a queued one as ready."""
    r = state.rows[row]
    if r.ready == READING:
        r.ready = READY
        mark_dirty(state, r.prefill_worker)
        return
    r.reading = 0
    if r.ready == IN_ENGINE:
        mark_dirty(state, r.prefill_worker)
    elif state.workers[r.prefill_worker].current == row:
        compute_prefill(state, r.prefill_worker, now)
