"""Keep the events that are due, in a binary heap by time; at equal times the one set first comes first."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.records import FULL_HEAP, Record, SimulationState


@jitable
def is_earlier(a: Record, b: Record) -> bool:
    """Return whether one event comes before another."""
    return a.time < b.time or (a.time == b.time and a.sequence < b.sequence)


@jitable
def copy_event(source: Record, target: Record) -> None:
    """Write an event into another place of the heap."""
    target.time = source.time
    target.sequence = source.sequence
    target.kind = source.kind
    target.subject = source.subject


@jitable
def push(state: SimulationState, time: float, kind: int, subject: int) -> None:
    """Set an event."""
    totals = state.totals[0]
    events = state.events
    at = totals.heap
    if at >= state.rules[0].events:
        totals.error = FULL_HEAP
        return
    totals.heap = at + 1
    while at > 0:
        parent = (at - 1) >> 1
        if events[parent].time <= time:  # an equal time was set earlier
            break
        copy_event(events[parent], events[at])
        at = parent
    event = events[at]
    event.time = time
    event.sequence = totals.sequence
    event.kind = kind
    event.subject = subject
    totals.sequence += 1


@jitable
def pop(state: SimulationState) -> tuple[float, int, int]:
    """Take the earliest event; returns its time, kind and subject."""
    totals = state.totals[0]
    events = state.events
    time = events[0].time
    kind = events[0].kind
    subject = events[0].subject
    size = totals.heap - 1
    totals.heap = size
    last = events[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and is_earlier(events[child + 1], events[child]):
            child += 1
        if is_earlier(last, events[child]):
            break
        copy_event(events[child], events[at])
        at = child
    copy_event(last, events[at])
    return time, kind, subject
