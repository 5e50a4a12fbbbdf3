"""Move KV between workers: every worker has one way out and one way in, which transfers may have to share."""

import math

from weft_core.timing import transfer_seconds
from weft_planner.simulation.compiled import jitable
from weft_planner.simulation.lists import push
from weft_planner.simulation.records import FAIR_LINKS, FIFO_LINKS, NET, Book


@jitable
def send(book: Book, row: int, kind: int, source: int, destination: int, tokens: float, sends: int, now: float) -> None:
    """Begin a transfer whose end is the event ``kind`` of a row; ``sends`` counts the times that it goes out in all."""
    link = book.links[source, destination]
    seconds = transfer_seconds(link.alpha, link.per_token, tokens) * sends
    book.totals[0].resent += sends - 1
    how = book.rules[0].links
    if how == FIFO_LINKS:
        out = book.workers[source]
        into = book.workers[destination]
        end = max(now, max(out.out_free, into.in_free)) + seconds
        out.out_free = end
        into.in_free = end
        push(book, end, kind, row)
    elif how == FAIR_LINKS:
        share_links(book, now)
        t = book.transfers[book.totals[0].net]
        t.left = seconds
        t.source = source
        t.destination = destination
        t.kind = kind
        t.row = row
        book.totals[0].net += 1
        book.workers[source].sending += 1
        book.workers[destination].receiving += 1
        expect_end(book, now)
    else:
        push(book, now + seconds, kind, row)


@jitable
def share_links(book: Book, now: float) -> None:
    """Bring all shared transfers up to now; the shares have not changed since the last time."""
    totals = book.totals[0]
    passed = now - totals.net_time
    totals.net_time = now
    if passed > 0:
        for i in range(totals.net):
            book.transfers[i].left -= passed * book.transfers[i].share


@jitable
def expect_end(book: Book, now: float) -> None:
    """Set anew what each transfer gets, and an event for the first that will be done, unless an earlier one is set.

    The busier of a transfer's two ends is split evenly.
    """
    totals = book.totals[0]
    if totals.net == 0:
        return
    soonest = -1.0
    for i in range(totals.net):
        t = book.transfers[i]
        t.share = 1.0 / max(book.workers[t.source].sending, book.workers[t.destination].receiving)
        seconds = max(0.0, t.left / t.share)
        if soonest < 0 or seconds < soonest:
            soonest = seconds
    at = now + soonest
    if at < totals.net_at:
        totals.net_at = at
        push(book, at, NET, 0)


@jitable
def end_shared(book: Book, now: float) -> None:
    """End the shared transfers that are done, in the order in which they began."""
    totals = book.totals[0]
    if totals.net_at != now:
        return  # an earlier event had been set after this one
    totals.net_at = math.inf
    share_links(book, now)
    kept = 0
    for i in range(totals.net):
        t = book.transfers[i]
        if t.left <= 1e-12 + 1e-12 * abs(now):  # what rounding leaves over; time may be before 0
            book.workers[t.source].sending -= 1
            book.workers[t.destination].receiving -= 1
            push(book, now, t.kind, t.row)
        else:
            k = book.transfers[kept]
            k.left = t.left
            k.source = t.source
            k.destination = t.destination
            k.kind = t.kind
            k.row = t.row
            kept += 1
    totals.net = kept
    expect_end(book, now)
