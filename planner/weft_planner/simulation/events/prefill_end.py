"""A worker has finished a prefill: that of a whole one is an event, that of the last slice ends a step."""

from weft_planner.simulation.batching import count_busy
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.gaps import TTFT_WINDOW, note_window
from weft_planner.simulation.lists import append, list_of
from weft_planner.simulation.queues import advance, dequeue, mark_dirty
from weft_planner.simulation.records import BACK_END, IDLE, PULL, SimulationState
from weft_planner.simulation.rounds import first_token
from weft_planner.simulation.transfers import send


@jitable
def end_whole(state: SimulationState, worker: int, now: float) -> None:
    """Finish a prefill that ran in one piece."""
    w = state.workers[worker]
    count_busy(state, worker, now)
    mark_dirty(state, worker)
    row = w.current
    w.mode = IDLE
    w.current = -1
    advance(state, row, worker, state.rows[row].task_tokens)
    end_prefill(state, row, worker, now)


@jitable
def end_prefill(state: SimulationState, row: int, worker: int, now: float) -> None:
    """Finish a prefill: on the session's own worker it decodes now, elsewhere the KV has to be sent there."""
    r = state.rows[row]
    session = state.sessions[r.session]
    dequeue(state, row, worker, now)
    if row == session.first:
        state.per_class[worker, session.kind].cached = 1
    if state.rules[0].want_windows == 1 and r.resumed == 0:
        note_window(state, worker, TTFT_WINDOW, now, now - r.arrival, 1.0)
    if worker == session.bound:
        first_token(state, row, now)
    else:
        state.totals[0].back += r.back
        if state.rules[0].pull == 1:
            append(state, list_of(state, PULL, session.bound), row)
            mark_dirty(state, session.bound)
            return
        send(state, row, BACK_END, worker, session.bound, r.back, r.back_sends, now)
