"""Pass batches through the pipeline stages of one worker: each takes its share of a step in every stage, in order.

As many batches as there are stages are under way at a time. A batch alone takes the sum of its stages; a batch behind a
longer one waits for it in every stage, and the stages after that one idle meanwhile: the bubbles of a pipeline.
"""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.records import SimulationState


@jitable
def pass_stages(state: SimulationState, worker: int, seconds: float, now: float) -> float:
    """Return when a step that starts now is through all stages, ``seconds`` of work in all, and occupy these."""
    w = state.workers[worker]
    at = now
    for stage in range(w.stages):
        at = max(at, state.stages[w.first_batch, stage]) + seconds / w.stages
        state.stages[w.first_batch, stage] = at
    return at
