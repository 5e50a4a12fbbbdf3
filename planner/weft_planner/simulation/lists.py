"""Keep doubly linked lists of rows and the heap of events, in arrays."""

from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.records import FULL_HEAP, KINDS, SLOT, Book


@jitable
def list_of(book: Book, kind: int, worker: int) -> int:
    """Return the number of a worker's list of one kind; the list of unbound rounds is that of worker -1's WAITING."""
    return 1 + kind * book.rules[0].workers + worker


UNBOUND = 0


@jitable
def slot_of(book: Book, worker: int, step: int) -> int:
    """Return the number of the list of sequences that finish at a worker's step."""
    slots = book.rules[0].slots
    return 1 + SLOT * book.rules[0].workers + worker * slots + (step & (slots - 1))


@jitable
def append(book: Book, kind: int, which: int, row: int) -> None:
    """Put a row at a list's end."""
    last = book.ends[which, 1]
    book.before[kind, row] = last
    book.after[kind, row] = -1
    if last < 0:
        book.ends[which, 0] = row
    else:
        book.after[kind, last] = row
    book.ends[which, 1] = row
    book.ends[which, 2] += 1


@jitable
def prepend(book: Book, kind: int, which: int, row: int) -> None:
    """Put a row at a list's beginning."""
    first = book.ends[which, 0]
    book.before[kind, row] = -1
    book.after[kind, row] = first
    if first < 0:
        book.ends[which, 1] = row
    else:
        book.before[kind, first] = row
    book.ends[which, 0] = row
    book.ends[which, 2] += 1


@jitable
def remove(book: Book, kind: int, which: int, row: int) -> None:
    """Take a row out of a list."""
    before = book.before[kind, row]
    following = book.after[kind, row]
    if before < 0:
        book.ends[which, 0] = following
    else:
        book.after[kind, before] = following
    if following < 0:
        book.ends[which, 1] = before
    else:
        book.before[kind, following] = before
    book.ends[which, 2] -= 1


@jitable
def push(book: Book, time: float, kind: int, subject: int) -> None:
    """Set an event; at equal times the one set first comes first."""
    totals = book.totals[0]
    events = book.events
    at = totals.heap
    if at >= book.rules[0].events:
        totals.error = FULL_HEAP
        return
    totals.heap = at + 1
    sequence = totals.sequence
    totals.sequence = sequence + 1
    while at > 0:
        parent = (at - 1) >> 1
        if events[parent].time <= time:  # an equal time was set earlier
            break
        events[at].time = events[parent].time
        events[at].sequence = events[parent].sequence
        events[at].what = events[parent].what
        at = parent
    events[at].time = time
    events[at].sequence = sequence
    events[at].what = subject * KINDS + kind


@jitable
def pop(book: Book) -> tuple[float, int]:
    """Take the earliest event; returns its time and kind + KINDS x subject."""
    totals = book.totals[0]
    events = book.events
    time = events[0].time
    what = events[0].what
    size = totals.heap - 1
    totals.heap = size
    last_time = events[size].time
    last_sequence = events[size].sequence
    last_what = events[size].what
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            events[other].time < events[child].time
            or (events[other].time == events[child].time and events[other].sequence < events[child].sequence)
        ):
            child = other
        if last_time < events[child].time or (
            last_time == events[child].time and last_sequence < events[child].sequence
        ):
            break
        events[at].time = events[child].time
        events[at].sequence = events[child].sequence
        events[at].what = events[child].what
        at = child
    events[at].time = last_time
    events[at].sequence = last_sequence
    events[at].what = last_what
    return time, what
