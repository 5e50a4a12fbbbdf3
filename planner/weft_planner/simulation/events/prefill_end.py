"""A worker has finished a prefill: the end of a whole one is an event, the last chunk of one ends with a step."""

from weft_planner.simulation.batching import end_work
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.gaps import TTFT_WINDOW, record_sample
from weft_planner.simulation.lists import append, list_of, remove
from weft_planner.simulation.queues import dequeue, mark_dirty, record_progress
from weft_planner.simulation.records import BACK_END, ENGINE, NO_LIMIT, PULL, SimulationState
from weft_planner.simulation.rounds import emit_first_token
from weft_planner.simulation.transfers import send


@jitable
def end_whole_prefill(state: SimulationState, worker: int, now: float) -> None:
    """Finish a prefill that ran in one piece, or a step with parts of several."""
    w = state.workers[worker]
    end_work(state, worker, now)
    mark_dirty(state, worker)
    if w.current < 0:
        end_prefill_step(state, worker, now)
        return
    row = w.current
    w.current = -1
    record_progress(state, row, worker, state.rows[row].task_tokens)
    end_prefill(state, row, worker, now)


@jitable
def end_prefill_step(state: SimulationState, worker: int, now: float) -> None:
    """Finish a step of a prefill worker with a token budget: its prefills have progressed, and some have ended."""
    engine = list_of(state, ENGINE, worker)
    row = state.lists[engine].first
    while row >= 0:
        following = state.after[row, ENGINE]
        r = state.rows[row]
        if r.part > 0:
            record_progress(state, row, worker, r.part)
            r.part = 0.0
            if r.done >= r.task_tokens:
                remove(state, engine, row)
                end_prefill(state, row, worker, now)
        row = following


@jitable
def end_prefill(state: SimulationState, row: int, worker: int, now: float) -> None:
    """Finish a prefill: on its decode worker the round decodes now, from another worker the KV must be sent first."""
    r = state.rows[row]
    session = state.sessions[r.session]
    dequeue(state, row, worker, now)
    if r.history == 0:
        state.per_class[worker, session.slo_class].cached = 1
    if state.rules[0].reads_windows == 1 and r.resumed == 0:
        record_sample(state, worker, TTFT_WINDOW, now, now - r.arrival, 1.0)
    if worker == session.bound:
        emit_first_token(state, row, now, state.workers[worker].decode_places < NO_LIMIT)
    else:
        state.totals[0].returned_tokens += r.back
        if state.rules[0].pull == 1:
            append(state, list_of(state, PULL, session.bound), row)
            mark_dirty(state, session.bound)
            return
        send(state, row, BACK_END, worker, session.bound, r.back, r.back_sends, now)
