"""Keep sessions' KV in tiers below the GPU memory of their decode workers, and load what was evicted from the GPUs.

A session's KV is written through when a round ends, and is in one tier, whole: the least recently used moves to the
next tier where one is full, and is lost after the last. Loads from a tier come one after the other. What prefill
workers compute for others is not written.

With ``writes="eviction"`` KV is written when it is evicted from the GPUs instead, so that no tier has what the GPUs
have. Where a session loses its KV part by part, the tier has what the GPUs have not. By value KV is written so, too,
and what is worth least leaves a full tier.
"""

from weft_core.kv_tiers import TIER_NAMES
from weft_core.timing import load_seconds
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.event_heap import push
from weft_planner.simulation.lists import append, list_of, remove
from weft_planner.simulation.records import BELOW, LOADED, SimulationState
from weft_planner.simulation.retention import least_valuable

COUNT = len(TIER_NAMES)


@jitable
def forget_below(state: SimulationState, number: int) -> None:
    """Take a session's KV out of its tier."""
    session = state.sessions[number]
    if session.below > 0:
        remove(state, list_of(state, BELOW + session.tier, session.below_at), session.first_row)
        state.tiers[session.below_at, session.tier].used -= session.below_size
        session.below = 0.0
        session.below_size = 0.0


@jitable
def write_evicted(state: SimulationState, number: int, worker: int, tokens: float) -> None:
    """Write the last tokens of a session's KV on the GPUs, which are being evicted, to the first tier of the worker."""
    session = state.sessions[number]
    reach = session.kv_tokens
    if session.below > reach and session.below_at == worker:
        reach = session.below
        tokens += session.below_size
    write_below(state, number, worker, reach, tokens)


@jitable
def write_below(state: SimulationState, number: int, worker: int, reach: float, tokens: float) -> None:
    """Write the last ``tokens`` of the first ``reach`` of a session to the first tier of a worker.

    What that has no room for moves down.
    """
    session = state.sessions[number]
    forget_below(state, number)
    session.below = reach
    session.below_size = tokens
    session.below_at = worker
    session.tier = 0
    append(state, list_of(state, BELOW, worker), session.first_row)
    state.tiers[worker, 0].used += tokens
    for place in range(COUNT):
        tier = state.tiers[worker, place]
        which = list_of(state, BELOW + place, worker)
        while tier.used > tier.capacity and state.lists[which].first >= 0:
            row = state.lists[which].first
            if state.rules[0].by_value == 1:
                row = least_valuable(state, BELOW + place, worker, -1)
            owner = state.sessions[state.rows[row].session]
            remove(state, which, row)
            tier.used -= owner.below_size
            if place + 1 == COUNT:
                owner.below = 0.0
                owner.below_size = 0.0
            else:
                append(state, list_of(state, BELOW + place + 1, worker), row)
                state.tiers[worker, place + 1].used += owner.below_size
                owner.tier = place + 1


@jitable
def tokens_below(state: SimulationState, row: int, worker: int) -> float:
    """Return how many tokens of an admitted round's history have to be loaded from a tier of its worker."""
    r = state.rows[row]
    session = state.sessions[r.session]
    reachable = min(session.below, r.history)
    if session.below_at != worker or session.kv_tokens >= reachable or r.resumed == 1:
        return 0.0
    return reachable - session.kv_tokens


@jitable
def load_end(state: SimulationState, row: int, worker: int, tokens: float, now: float) -> float:
    """Return when so many tokens of a round's history would be loaded, behind the loads before it."""
    tier = state.tiers[worker, state.sessions[state.rows[row].session].tier]
    return max(now, tier.free_at) + load_seconds(tier.latency, tier.per_token, tokens)


@jitable
def start_load(state: SimulationState, row: int, worker: int, tokens: float, now: float) -> None:
    """Load the history of a round that was routed; its prefill is queued when that ends."""
    number = state.rows[row].session
    session = state.sessions[number]
    tier = state.tiers[worker, session.tier]
    tier.free_at = load_end(state, row, worker, tokens, now)
    state.totals[0].loaded += tokens
    if state.rules[0].on_eviction == 1:
        forget_below(state, number)
    else:
        which = list_of(state, BELOW + session.tier, worker)
        remove(state, which, session.first_row)
        append(state, which, session.first_row)
    push(state, tier.free_at, LOADED, row)
