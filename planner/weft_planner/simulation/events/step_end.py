"""A worker has finished a step of its batch."""

from weft_planner.simulation.batching import end_work
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.events.prefill_end import end_prefill
from weft_planner.simulation.gaps import ITL_WINDOW, clear_gaps, record_gap, record_sample
from weft_planner.simulation.lists import list_of, remove, slot_of
from weft_planner.simulation.queues import mark_dirty, record_progress
from weft_planner.simulation.records import FRESH, SimulationState
from weft_planner.simulation.rounds import complete_decode, record_first_token


@jitable
def end_step(state: SimulationState, worker: int, now: float) -> None:
    """Finish a step: every sequence of the batch has one more token, and a chunk of a prefill is computed."""
    w = state.workers[worker]
    end_work(state, worker, now)
    mark_dirty(state, worker)
    if w.batch > 0:
        count_tokens(state, worker, now)
    if w.chunk > 0:
        row = w.current
        record_progress(state, row, worker, float(w.chunk))
        w.running -= w.chunk
        w.chunk = 0
        if state.rows[row].whole == 0 and w.running == 0:
            w.next_slice_at = now + state.rules[0].slice_turn
        if state.rows[row].done >= state.rows[row].task_tokens:
            w.current = -1
            end_prefill(state, row, worker, now)


@jitable
def count_tokens(state: SimulationState, worker: int, now: float) -> None:
    """Count a step's tokens and gaps, and complete the sequences that end with it."""
    rules = state.rules[0]
    w = state.workers[worker]
    w.steps += 1
    w.context += w.batch
    fresh = list_of(state, FRESH, worker)
    joined = state.lists[fresh].length
    seen = w.batch - w.first_tokens_pending
    gap = now - w.last_end
    total = 0.0
    if w.batch > joined:
        record_gap(state, worker, gap)
        total = gap * (w.batch - joined)
    else:
        clear_gaps(state, worker)
    w.last_end = now
    row = state.lists[fresh].first
    while row >= 0:
        following = state.after[row, FRESH]
        r = state.rows[row]
        if r.first_token_pending == 1:  # this step made its first token, so it has no gap yet
            r.first_token_pending = 0
            w.first_tokens_pending -= 1
            record_first_token(state, row, now)
            if r.steps_left == 0:
                remove(state, fresh, row)
            row = following
            continue
        remove(state, fresh, row)
        kind = state.sessions[r.session].slo_class
        first_gap = now - r.last_token_at
        r.max_gap = max(r.max_gap, first_gap)
        r.late_base = state.per_class[worker, kind].late_steps
        if first_gap > state.classes[kind].itl_slo:
            r.late_base -= 1
        total += first_gap
        row = following
    if rules.reads_windows == 1 and seen > 0:
        record_sample(state, worker, ITL_WINDOW, now, total, float(seen))
    done = slot_of(state, worker, w.steps)
    row = state.lists[done].first
    while row >= 0:
        complete_decode(state, row, worker, now)
        row = state.lists[done].first
