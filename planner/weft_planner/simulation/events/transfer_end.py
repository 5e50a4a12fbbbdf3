"""The earliest transfer over shared links may be done."""

import math

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.event_heap import push
from weft_planner.simulation.records import SimulationState
from weft_planner.simulation.transfers import expect_end, share_links


@jitable
def end_shared_transfers(state: SimulationState, now: float) -> None:
    """End the shared transfers that are done, in the order in which they began."""
    totals = state.totals[0]
    if totals.net_at != now:
        return  # outdated: an earlier end was predicted after this event was set
    totals.net_at = math.inf
    share_links(state, now)
    kept = 0
    for i in range(totals.net):
        t = state.transfers[i]
        if t.left <= 1e-12 + 1e-12 * abs(now):  # rounding errors; times may be negative
            state.workers[t.source].sending -= 1
            state.workers[t.destination].receiving -= 1
            push(state, now, t.kind, t.row)
        else:
            k = state.transfers[kept]
            k.left = t.left
            k.source = t.source
            k.destination = t.destination
            k.kind = t.kind
            k.row = t.row
            kept += 1
    totals.net = kept
    expect_end(state, now)
