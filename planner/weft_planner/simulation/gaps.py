"""Measure inter-token gaps by counters per worker, so that no token needs work of its own.

All sequences of a running batch see the same gap at every step but their first. So a worker counts, per class, the
steps whose gap was over the class's ITL SLO, and keeps the largest gaps as a stack that falls with time; a round's
figures are differences between its first and its last step.
"""

from weft_core.policies.routing.weft import MEAN
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.lists import first_of
from weft_planner.simulation.records import ACTIVE, Record, SimulationState

TTFT_WINDOW = 1
ITL_WINDOW = 0


@jitable
def late_gaps_of(state: SimulationState, row: int, worker: int) -> int:
    """Return how many gaps of a decoding round were over its class's ITL SLO so far."""
    r = state.rows[row]
    if state.workers[worker].steps <= r.join_step:
        return r.late_before
    return r.late_before + state.per_class[worker, state.sessions[r.session].slo_class].late_steps - r.late_base


@jitable
def describe_batch(state: SimulationState, worker: int) -> int:
    """Write each decoding session's gaps so far, by the SLO's statistic, and the gaps that its answer may still have.

    Return how many sessions there are.
    """
    rules = state.rules[0]
    w = state.workers[worker]
    count = 0
    row = first_of(state, ACTIVE, worker)
    while row >= 0:
        r = state.rows[row]
        if r.first_token_pending == 1:  # it has no gap yet
            row = state.after[row, ACTIVE]
            continue
        session = state.sessions[r.session]
        done = w.steps - r.join_step
        state.gap_counts[count] = session.gaps + r.generated + done
        if rules.itl_statistic == MEAN:
            until = w.last_end if done > 0 else r.last_token_at
            state.gap_sums[count] = session.gap_s + until - r.first_token_at
        else:
            state.gap_sums[count] = session.late_gaps + late_gaps_of(state, row, worker)
        state.gaps_left[count] = max(1.0, state.classes[session.slo_class].decode - 1.0 - r.generated - done)
        count += 1
        row = state.after[row, ACTIVE]
    return count


@jitable
def record_gap(state: SimulationState, worker: int, gap: float) -> None:
    """Record the gap of a worker's latest step; call after the step was counted."""
    w = state.workers[worker]
    for c in range(state.rules[0].classes):
        if gap > state.classes[c].itl_slo:
            state.per_class[worker, c].late_steps += 1
    at = w.peaks
    while at > 0 and state.peaks[worker, at - 1].gap <= gap:
        at -= 1
    if at == state.rules[0].peaks:  # full: the oldest two become one, which holds the larger gap a little too long
        for i in range(1, at - 1):
            state.peaks[worker, i].gap = state.peaks[worker, i + 1].gap
            state.peaks[worker, i].step = state.peaks[worker, i + 1].step
        state.peaks[worker, 0].step = state.peaks[worker, 1].step
        at -= 1
    state.peaks[worker, at].gap = gap
    state.peaks[worker, at].step = w.steps
    w.peaks = at + 1


@jitable
def clear_gaps(state: SimulationState, worker: int) -> None:
    """Clear the stack of largest gaps: no decoding sequence was there for them."""
    state.workers[worker].peaks = 0


@jitable
def largest_gap(state: SimulationState, worker: int, first_step: int) -> float:
    """Return the largest gap of a worker since a step, that step included; 0 when there was none."""
    low = 0
    high = state.workers[worker].peaks
    while low < high:
        middle = (low + high) // 2
        if state.peaks[worker, middle].step < first_step:
            low = middle + 1
        else:
            high = middle
    return state.peaks[worker, low].gap if low < state.workers[worker].peaks else 0.0


@jitable
def sample_at(state: SimulationState, worker: int, kind: int, at: int) -> Record:
    """Return a sample of a worker's statistics window; the ring of samples is reused."""
    return state.samples[2 * worker + kind, at % state.rules[0].ring]


@jitable
def record_sample(state: SimulationState, worker: int, kind: int, now: float, total: float, count: float) -> None:
    """Add a sample to the statistics window of a worker's TTFT or ITL."""
    ring = state.rules[0].ring
    window = state.windows[worker, kind]
    sample = sample_at(state, worker, kind, window.end)
    sample.time = now
    sample.total = total
    sample.count = count
    window.end += 1
    if window.end - window.start > ring:
        window.start += 1


@jitable
def window_mean(state: SimulationState, worker: int, kind: int, now: float) -> float:
    """Return the mean of a worker's statistics window, NaN without a sample."""
    rules = state.rules[0]
    window = state.windows[worker, kind]
    while window.start < window.end and sample_at(state, worker, kind, window.start).time < now - rules.window_s:
        window.start += 1
    total = 0.0
    count = 0.0
    for at in range(window.start, window.end):
        sample = sample_at(state, worker, kind, at)
        total += sample.total
        count += sample.count
    return total / count if count > 0 else float("nan")
