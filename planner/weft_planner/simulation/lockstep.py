"""Set when work ends: the data-parallel ranks of one worker step together, because their experts exchange every token.

A step of the ranks begins when all of them are idle and one has work. Attention takes as long as on the slowest rank;
the routed experts' tokens come from all ranks, so their share of the work takes the mean over the ranks. A rank that
has work in the meantime waits for the end, as an engine's rank does that has joined a step with a dummy batch.
"""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.event_heap import push
from weft_planner.simulation.pipeline import pass_stages
from weft_planner.simulation.records import IDLE, RANKS_END, SimulationState


@jitable
def set_end(state: SimulationState, worker: int, kind: int, seconds: float, now: float) -> None:
    """Set the event at which a worker's work ends that takes ``seconds`` by itself.

    Where its replica has more batches than this one, ``end_together`` does.
    """
    w = state.workers[worker]
    w.work_start = now
    if w.alone == 1:
        push(state, now + seconds, kind, worker)
    else:
        state.workers[w.first_rank].busy_ranks += 1
        w.end_kind = kind
        w.work_s = seconds


@jitable
def end_together(state: SimulationState, first: int, now: float) -> None:
    """Set the end of the step that the ranks of a worker, or its only one, started."""
    last = first + state.workers[first].ranks
    if state.workers[first].busy_ranks == 0:
        return
    longest = total = 0.0
    for rank in range(first, last):
        w = state.workers[rank]
        if w.mode != IDLE:
            longest = max(longest, w.work_s)
            total += w.work_s
    shared = state.rules[0].shared_work
    seconds = longest if last - first == 1 else (1.0 - shared) * longest + shared * total / (last - first)
    push(state, pass_stages(state, first, seconds, now), RANKS_END, first)
