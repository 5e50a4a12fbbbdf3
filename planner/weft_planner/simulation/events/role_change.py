"""A worker changes its role: it drains, and gets the new role after a delay."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.event_heap import push
from weft_planner.simulation.lists import first_of, length_of
from weft_planner.simulation.prefix_cache import forget_prompts
from weft_planner.simulation.queues import mark_dirty
from weft_planner.simulation.records import EVICTABLE, IDLE, OFF, QUEUE, SWITCH, SimulationState
from weft_planner.simulation.rounds import migrate_session


@jitable
def start_role_change(state: SimulationState, number: int, now: float) -> None:
    """Drain a worker: no new work; sessions between rounds migrate now, the others after their round."""
    change = state.changes[number]
    w = state.workers[change.worker]
    w.draining = 1
    w.target = change.target
    w.sends_sessions = change.sends_sessions
    w.switch_s = change.delay
    row = first_of(state, EVICTABLE, change.worker)
    while row >= 0:
        following = state.after[row, EVICTABLE]
        if state.rows[row].arrival != state.rows[row].arrival:  # NaN: its next round has not arrived
            migrate_session(state, row, now)
        row = following
    mark_dirty(state, change.worker)


@jitable
def finish_drain(state: SimulationState, worker: int, now: float) -> None:
    """Set the role change of a draining worker that is empty, after the delay."""
    w = state.workers[worker]
    empty = w.sessions == 0 and w.mode == IDLE and w.kv_used == 0
    if empty and length_of(state, QUEUE, worker) == 0 and w.role != OFF:
        w.role = OFF
        push(state, now + w.switch_s, SWITCH, worker)


@jitable
def finish_role_change(state: SimulationState, worker: int) -> None:
    """Switch a worker to its new role."""
    w = state.workers[worker]
    w.role = w.target
    w.draining = 0
    forget_prompts(state, worker)
    state.totals[0].kv_freed = 1
    mark_dirty(state, worker)
