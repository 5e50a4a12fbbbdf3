"""Compile the policies' rules one by one, each when the first run asks for it, and let the kernel call them by address.

A run uses one routing rule, one queue order and one binding out of twenty; compiled into the kernel, all of them would
be compiled, and anew with every change of it. The common ones stand here alone, the others behind the one door that the
core has for each (``decide``, ``next_task``, ``bind``); a test holds both ways equal. A rule finds its figures in the
book, where the kernel wrote them.
"""

import functools
from collections.abc import Callable
from typing import Any

from weft_core.policies import codes
from weft_core.policies.ampd import route_ampd
from weft_core.policies.ampd_window import next_ampd_window
from weft_core.policies.decide import decide
from weft_core.policies.decide_binding import bind
from weft_core.policies.decide_order import ORDER_MAX, next_task
from weft_core.policies.features import LOCAL_SIZE, REMOTE_SIZE, TASK_SIZE
from weft_core.policies.kv_headroom import bind_kv_headroom
from weft_core.policies.moore_hodgson import next_moore_hodgson
from weft_core.policies.remote_jsq import route_remote_jsq
from weft_core.policies.weft import route_weft
from weft_planner.simulation.compiled import callback
from weft_planner.simulation.records import (
    CAPACITY,
    COSTS,
    COUNTS,
    DEADLINES,
    ENQUEUED,
    FREE,
    HEAD,
    HITS,
    LOAD,
    LOCAL_WORKER,
    LOST,
    ORDER,
    POSTPONED,
    REASON_BITS,
    SECONDS,
    SESSIONS,
    SUMS,
    TASK,
)
from weft_planner.simulation.tables import book_from, vector


def _weft(address: int) -> int:
    book = book_from(address)
    totals = book.totals[0]
    choice, reason = route_weft(
        vector(book.floats, TASK, TASK_SIZE),
        vector(book.floats, LOCAL_WORKER, LOCAL_SIZE),
        vector(book.remote, 0, totals.asked * REMOTE_SIZE),
        totals.asked,
        vector(book.params, 0, book.rules[0].params),
        vector(book.floats, SUMS, totals.decoding),
        vector(book.floats, COUNTS, totals.decoding),
        vector(book.floats, COSTS, totals.asked + 1),
    )
    return (choice << REASON_BITS) + reason


def _ampd(address: int) -> int:
    book = book_from(address)
    totals = book.totals[0]
    choice, reason = route_ampd(
        vector(book.floats, TASK, TASK_SIZE),
        vector(book.floats, LOCAL_WORKER, LOCAL_SIZE),
        vector(book.remote, 0, totals.asked * REMOTE_SIZE),
        totals.asked,
        vector(book.ints, ORDER, totals.asked),
        vector(book.params, 0, book.rules[0].params),
        vector(book.floats, COSTS, totals.asked + 1),
    )
    return (choice << REASON_BITS) + reason


def _remote_jsq(address: int) -> int:
    book = book_from(address)
    totals = book.totals[0]
    choice, reason = route_remote_jsq(
        vector(book.remote, 0, totals.asked * REMOTE_SIZE),
        totals.asked,
        vector(book.floats, COSTS, totals.asked + 1),
    )
    return (choice << REASON_BITS) + reason


def _any_route(address: int) -> int:
    book = book_from(address)
    totals = book.totals[0]
    choice, reason = decide(
        book.rules[0].route,
        vector(book.floats, TASK, TASK_SIZE),
        vector(book.floats, LOCAL_WORKER, LOCAL_SIZE),
        vector(book.remote, 0, totals.asked * REMOTE_SIZE),
        totals.asked,
        vector(book.ints, ORDER, totals.asked),
        vector(book.params, 0, book.rules[0].params),
        vector(book.floats, SUMS, totals.decoding),
        vector(book.floats, COUNTS, totals.decoding),
        vector(book.floats, COSTS, totals.asked + 1),
    )
    return (choice << REASON_BITS) + reason


def _moore_hodgson(address: int) -> int:
    book = book_from(address)
    totals = book.totals[0]
    return next_moore_hodgson(
        totals.now,
        vector(book.floats, SECONDS, totals.asked),
        vector(book.floats, ENQUEUED, totals.asked),
        vector(book.floats, DEADLINES, totals.asked),
        vector(book.ints, POSTPONED, totals.asked),
        vector(book.ints, LOST, totals.asked),
        book.rules[0].cap,
    )


def _ampd_window(address: int) -> int:
    book = book_from(address)
    totals = book.totals[0]
    return next_ampd_window(
        totals.now,
        vector(book.floats, SECONDS, totals.asked),
        vector(book.floats, ENQUEUED, totals.asked),
        vector(book.floats, DEADLINES, totals.asked),
        vector(book.ints, POSTPONED, totals.asked),
        book.rules[0].window,
        vector(book.ints, HEAD, ORDER_MAX),
    )


def _any_order(address: int) -> int:
    book = book_from(address)
    totals = book.totals[0]
    return next_task(
        book.rules[0].order,
        totals.now,
        vector(book.floats, SECONDS, totals.asked),
        vector(book.floats, ENQUEUED, totals.asked),
        vector(book.floats, DEADLINES, totals.asked),
        vector(book.ints, POSTPONED, totals.asked),
        vector(book.ints, LOST, totals.asked),
        book.rules[0].window,
        book.rules[0].cap,
        vector(book.ints, HEAD, ORDER_MAX),
    )


def _kv_headroom(address: int) -> int:
    book = book_from(address)
    totals = book.totals[0]
    return bind_kv_headroom(
        totals.need,
        vector(book.floats, FREE, totals.asked),
        vector(book.floats, CAPACITY, totals.asked),
        vector(book.floats, SESSIONS, totals.asked),
    )


def _any_binding(address: int) -> int:
    book = book_from(address)
    totals = book.totals[0]
    return bind(
        book.rules[0].binding,
        totals.need,
        vector(book.floats, FREE, totals.asked),
        vector(book.floats, CAPACITY, totals.asked),
        vector(book.floats, SESSIONS, totals.asked),
        vector(book.floats, HITS, totals.asked),
        vector(book.floats, LOAD, totals.asked),
        totals.cursor % totals.asked,
    )


_ROUTES: dict[int, Callable[[int], int]] = {codes.WEFT: _weft, codes.AMPD: _ampd, codes.REMOTE_JSQ: _remote_jsq}
_ORDERS: dict[int, Callable[[int], int]] = {codes.MOORE_HODGSON: _moore_hodgson, codes.AMPD_WINDOW: _ampd_window}
_BINDINGS: dict[int, Callable[[int], int]] = {codes.KV_HEADROOM: _kv_headroom}


@functools.cache
def _compiled(rule: Callable[[int], int]) -> Any:
    return callback(rule)


def route_address(code: int) -> int:
    """Return where the machine code of a routing rule is, compiling or loading it first."""
    return int(_compiled(_ROUTES.get(code, _any_route)).address)


def order_address(code: int) -> int:
    """Return where the machine code of a queue order is."""
    return int(_compiled(_ORDERS.get(code, _any_order)).address)


def binding_address(code: int) -> int:
    """Return where the machine code of a binding is."""
    return int(_compiled(_BINDINGS.get(code, _any_binding)).address)
