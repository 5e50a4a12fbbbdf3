"""A worker has finished a step of its batch."""

from weft_planner.simulation.batching import count_busy
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.events.prefill_end import end_prefill
from weft_planner.simulation.gaps import ITL_WINDOW, forget_gaps, note_gap, note_window
from weft_planner.simulation.lists import list_of, remove, slot_of
from weft_planner.simulation.queues import advance, mark_dirty
from weft_planner.simulation.records import FRESH, IDLE, SimulationState
from weft_planner.simulation.rounds import begin_answer, leave


@jitable
def end_step(state: SimulationState, worker: int, now: float) -> None:
    """Finish a step: every sequence of the batch has one more token, and a slice of a prefill is done."""
    w = state.workers[worker]
    count_busy(state, worker, now)
    w.mode = IDLE
    mark_dirty(state, worker)
    if w.batch > 0:
        count_tokens(state, worker, now)
    if w.chunk > 0:
        row = w.current
        advance(state, row, worker, float(w.chunk))
        w.chunk = 0
        w.slice_from = now + state.rules[0].slice_turn
        if state.rows[row].done >= state.rows[row].task_tokens:
            w.current = -1
            end_prefill(state, row, worker, now)


@jitable
def count_tokens(state: SimulationState, worker: int, now: float) -> None:
    """Count a step's tokens and gaps, and let go the sequences that are done."""
    rules = state.rules[0]
    w = state.workers[worker]
    w.steps += 1
    w.context += w.batch
    fresh = list_of(state, FRESH, worker)
    joined = state.lists[fresh].length
    seen = w.batch - w.starting
    gap = now - w.last_end
    total = 0.0
    if w.batch > joined:
        note_gap(state, worker, gap)
        total = gap * (w.batch - joined)
    else:
        forget_gaps(state, worker)
    w.last_end = now
    row = state.lists[fresh].first
    while row >= 0:
        following = state.after[FRESH, row]
        r = state.rows[row]
        if r.starts == 1:  # its first token: the gap after it will be the first one
            r.starts = 0
            w.starting -= 1
            begin_answer(state, row, now)
            if r.left == 0:
                remove(state, fresh, row)
            row = following
            continue
        remove(state, fresh, row)
        kind = state.sessions[r.session].kind
        first_gap = now - r.since
        r.max_gap = max(r.max_gap, first_gap)
        r.over_base = state.per_class[worker, kind].over
        if first_gap > state.classes[kind].itl_slo:
            r.over_base -= 1
        total += first_gap
        row = following
    if rules.want_windows == 1 and seen > 0:
        note_window(state, worker, ITL_WINDOW, now, total, float(seen))
    done = slot_of(state, worker, w.steps)
    row = state.lists[done].first
    while row >= 0:
        leave(state, row, worker, now)
        row = state.lists[done].first
