"""Move KV between workers: every worker has one way out and one way in, which transfers may have to share."""

from weft_core.timing import transfer_seconds
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.event_heap import push
from weft_planner.simulation.records import FAIR_LINKS, FIFO_LINKS, NET, SimulationState


@jitable
def send(
    state: SimulationState, row: int, kind: int, source: int, destination: int, tokens: float, sends: int, now: float
) -> None:
    """Begin a transfer whose end is the event ``kind`` of a row; ``sends`` counts the times that it goes out in all."""
    link = state.links[source, destination]
    seconds = transfer_seconds(link.alpha, link.per_token, tokens) * sends
    state.totals[0].resent += sends - 1
    how = state.rules[0].links
    if how == FIFO_LINKS:
        out = state.workers[source]
        into = state.workers[destination]
        end = max(now, max(out.out_free, into.in_free)) + seconds
        out.out_free = end
        into.in_free = end
        push(state, end, kind, row)
    elif how == FAIR_LINKS:
        share_links(state, now)
        t = state.transfers[state.totals[0].net]
        t.left = seconds
        t.source = source
        t.destination = destination
        t.kind = kind
        t.row = row
        state.totals[0].net += 1
        state.workers[source].sending += 1
        state.workers[destination].receiving += 1
        expect_end(state, now)
    else:
        push(state, now + seconds, kind, row)


@jitable
def share_links(state: SimulationState, now: float) -> None:
    """Bring all shared transfers up to now; the shares have not changed since the last time."""
    totals = state.totals[0]
    passed = now - totals.net_time
    totals.net_time = now
    if passed > 0:
        for i in range(totals.net):
            state.transfers[i].left -= passed * state.transfers[i].share


@jitable
def expect_end(state: SimulationState, now: float) -> None:
    """Update what each transfer gets, and an event for the first that will be done, unless an earlier one is set.

    The busier of a transfer's two ends is split evenly.
    """
    totals = state.totals[0]
    if totals.net == 0:
        return
    soonest = -1.0
    for i in range(totals.net):
        t = state.transfers[i]
        t.share = 1.0 / max(state.workers[t.source].sending, state.workers[t.destination].receiving)
        seconds = max(0.0, t.left / t.share)
        if soonest < 0 or seconds < soonest:
            soonest = seconds
    at = now + soonest
    if at < totals.net_at:
        totals.net_at = at
        push(state, at, NET, 0)
