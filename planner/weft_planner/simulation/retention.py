"""Give the KV of idle sessions a time to live or a value, and learn from the traffic what it is worth."""

from weft_core.kv_tiers import TIER_NAMES
from weft_core.policies.retention import (
    BUCKETS,
    GAPS,
    WAITING_RATE,
    kv_value,
    note_gap,
    note_return,
    return_benefit_s,
    return_rate,
    rounds_memory,
    time_to_live_s,
)
from weft_core.timing import prefill_seconds
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.event_heap import push
from weft_planner.simulation.lists import first_of
from weft_planner.simulation.queues import prefill_pieces
from weft_planner.simulation.records import BELOW, EVICTABLE, EXPIRE, SimulationState
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
    gap = state.rows[row - 1].gap
    if state.rules[0].by_value == 1:
        note_return(vector(state.returns, kind, BUCKETS + 1), gap)
        return
    recent = vector(state.recent_gaps, kind, GAPS)
    note_gap(recent, vector(state.ordered_gaps, kind, GAPS), state.classes[kind].gaps, gap)
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


@jitable
def seconds_without(state: SimulationState, worker: int, place: int, tokens: float) -> float:
    """Return the seconds to have KV again that no tier before ``place`` has: to load or else compute it."""
    again = prefill_seconds(prefill_pieces(state, worker), 0.0, tokens)
    while place < len(TIER_NAMES):
        tier = state.tiers[worker, place]
        if tier.capacity > 0:
            return min(again, tier.latency + tokens * tier.per_token)
        place += 1
    return again


@jitable
def value_of(state: SimulationState, number: int, worker: int, kind: int) -> float:
    """Return what a session's KV is worth where it is: on the GPU (``EVICTABLE``), or in a tier (``BELOW`` + place)."""
    session = state.sessions[number]
    now = state.totals[0].now
    tokens = session.kv_tokens
    kept_s = 0.0
    place = 0
    if kind != EVICTABLE:
        place = kind - BELOW
        tokens = session.below
        tier = state.tiers[worker, place]
        kept_s = tier.latency + tokens * tier.per_token
        place += 1
    rate = WAITING_RATE
    if session.idle_since <= now:
        returns = vector(state.returns, session.slo_class, BUCKETS + 1)
        rate = return_rate(returns, now - session.idle_since, float("inf"))
    return kv_value(rate, kept_s, seconds_without(state, worker, place, tokens), tokens)


@jitable
def least_valuable(state: SimulationState, kind: int, worker: int, spared: int) -> int:
    """Return the row of the session in a worker's list whose KV is worth least, not ``spared``; -1 without one."""
    chosen = -1
    least = float("inf")
    row = first_of(state, kind, worker)
    while row >= 0:
        if row != spared:
            value = value_of(state, state.rows[row].session, worker, kind)
            if value < least:
                chosen = row
                least = value
        row = state.after[row, kind]
    return chosen
