"""Give the KV of idle sessions a time to live, and learn from the traffic what it is worth."""

from weft_core.policies.retention import GAPS, note_gap, return_benefit_s, rounds_memory, time_to_live_s
from weft_core.timing import prefill_seconds
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.event_heap import push
from weft_planner.simulation.queues import prefill_pieces
from weft_planner.simulation.records import EXPIRE, SimulationState
from weft_planner.simulation.state_type import vector


@jitable
def start_time_to_live(state: SimulationState, row: int, worker: int, now: float) -> None:
    """Keep the KV of a session that goes idle for as long as that is worth it; ``row`` is its next round."""
    totals = state.totals[0]
    session = state.sessions[state.rows[row].session]
    memory = rounds_memory(
        totals.round_points,
        totals.rounds_done,
        totals.rounds_left,
        totals.done_squares,
        totals.left_squares,
        totals.round_products,
    )
    wait = totals.evicted_wait_s / max(totals.evicted_waits, 1)
    benefit = return_benefit_s(prefill_seconds(prefill_pieces(state, worker), 0.0, session.kv_tokens), wait, memory)
    seen = min(state.classes[session.slo_class].gaps, GAPS)
    live = time_to_live_s(vector(state.ordered_gaps, session.slo_class, GAPS), seen, benefit)
    if live > 0:
        state.rows[row].kept_until = now + live
        push(state, now + live, EXPIRE, worker)


@jitable
def observe_gap(state: SimulationState, row: int) -> None:
    """Learn from a round that arrived how long its session was idle."""
    kind = state.sessions[state.rows[row].session].slo_class
    recent = vector(state.recent_gaps, kind, GAPS)
    note_gap(recent, vector(state.ordered_gaps, kind, GAPS), state.classes[kind].gaps, state.rows[row - 1].gap)
    state.classes[kind].gaps += 1


@jitable
def observe_rounds(state: SimulationState, rounds: int) -> None:
    """Learn from a session that ended how many rounds it had."""
    totals = state.totals[0]
    for done in range(1, rounds):
        left = rounds - done
        totals.round_points += 1
        totals.rounds_done += done
        totals.rounds_left += left
        totals.done_squares += done * done
        totals.left_squares += left * left
        totals.round_products += done * left


@jitable
def observe_wait(state: SimulationState, row: int, now: float) -> None:
    """Learn from a round that has memory how long it waited for that, if its session's KV was evicted before."""
    r = state.rows[row]
    if r.evicted == 1:
        r.evicted = 0
        state.totals[0].evicted_wait_s += now - r.arrival
        state.totals[0].evicted_waits += 1
