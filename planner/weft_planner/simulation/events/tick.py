"""It is time for the next sample of the timeline."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.event_heap import push
from weft_planner.simulation.lists import length_of
from weft_planner.simulation.records import QUEUE, TICK, SimulationState


@jitable
def record_tick(state: SimulationState, now: float) -> None:
    """Record every worker's queue, batch and KV."""
    totals = state.totals[0]
    for i in range(state.rules[0].workers):
        tick = state.ticks[totals.ticks, i]
        tick.queued = length_of(state, QUEUE, i)
        tick.batch = state.workers[i].batch
        tick.kv = state.workers[i].kv_used - state.workers[i].ended_kv
    totals.ticks += 1
    if totals.ticks < state.rules[0].ticks:
        push(state, now + totals.tick_s, TICK, 0)
