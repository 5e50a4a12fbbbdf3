"""Keep sessions' KV in tiers below the GPU memory of their decode workers, and load what was evicted from the GPUs.

A session's KV is written through when a round ends, and is in one tier, whole: the least recently used moves to the
next tier where one is full, and is lost after the last. Loads from a tier come one after the other. What prefill
workers compute for others is not written.
"""

from weft_core.kv_tiers import TIER_NAMES
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.event_heap import push
from weft_planner.simulation.lists import append, list_of, remove
from weft_planner.simulation.records import BELOW, LOADED, SimulationState

COUNT = len(TIER_NAMES)


@jitable
def forget_below(state: SimulationState, number: int) -> None:
    """Take a session's KV out of its tier."""
    session = state.sessions[number]
    if session.below > 0:
        remove(state, list_of(state, BELOW + session.tier, session.below_at), session.first_row)
        state.tiers[session.below_at, session.tier].used -= session.below
        session.below = 0.0


@jitable
def write_below(state: SimulationState, number: int, worker: int, tokens: float) -> None:
    """Write a session's KV to the first tier of a worker; what that has no room for moves down."""
    session = state.sessions[number]
    forget_below(state, number)
    session.below = tokens
    session.below_at = worker
    session.tier = 0
    append(state, list_of(state, BELOW, worker), session.first_row)
    state.tiers[worker, 0].used += tokens
    for place in range(COUNT):
        tier = state.tiers[worker, place]
        which = list_of(state, BELOW + place, worker)
        while tier.used > tier.capacity and state.lists[which].first >= 0:
            row = state.lists[which].first
            owner = state.sessions[state.rows[row].session]
            remove(state, which, row)
            tier.used -= owner.below
            if place + 1 == COUNT:
                owner.below = 0.0
            else:
                append(state, list_of(state, BELOW + place + 1, worker), row)
                state.tiers[worker, place + 1].used += owner.below
                owner.tier = place + 1


@jitable
def start_load(state: SimulationState, row: int, worker: int, now: float) -> bool:
    """Load the KV of a round that was admitted, if its session's was evicted and a tier has it; False when not."""
    r = state.rows[row]
    session = state.sessions[r.session]
    present = min(session.below, r.history)
    if session.below_at != worker or session.kv_tokens >= present or r.resumed == 1:
        return False
    which = list_of(state, BELOW + session.tier, worker)
    remove(state, which, session.first_row)
    append(state, which, session.first_row)
    r.present = present
    tier = state.tiers[worker, session.tier]
    tokens = present - session.kv_tokens
    tier.free_at = max(now, tier.free_at) + tier.latency + tokens * tier.per_token
    state.totals[0].loaded += tokens
    push(state, tier.free_at, LOADED, row)
    return True
