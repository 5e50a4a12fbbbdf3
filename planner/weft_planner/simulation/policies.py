"""Compile each policy when a run first needs it; the event loop calls it by address.

A run uses one routing policy, one queue order and one binding of about twenty. If they were part of the event loop, all
of them would be compiled, again after every change of it. A policy reads its inputs from the state, where the loop
writes them.
"""

import functools
from collections.abc import Callable
from typing import Any

from weft_core.policies.inputs import MAX_WINDOW, BindingInputs, QueueInputs, RoutingInputs
from weft_core.policies.registry import BINDINGS, ORDERS, POLICIES
from weft_planner.simulation.compiled import callback
from weft_planner.simulation.records import REASON_BITS
from weft_planner.simulation.state_type import state_from, vector


def _routing(route: Callable[[RoutingInputs], tuple[int, int]]) -> Callable[[int], int]:
    def call(address: int) -> int:
        state = state_from(address)
        totals = state.totals[0]
        inputs = RoutingInputs(
            state.task[0],
            state.local[0],
            vector(state.remote, 0, totals.choices),
            vector(state.order, 0, totals.choices),
            vector(state.params, 0, state.rules[0].params),
            vector(state.gap_sums, 0, totals.decoding),
            vector(state.gap_counts, 0, totals.decoding),
            vector(state.costs, 0, totals.choices + 1),
        )
        choice, reason = route(inputs)
        return (choice << REASON_BITS) + reason

    return call


def _order(next_task: Callable[[QueueInputs], int]) -> Callable[[int], int]:
    def call(address: int) -> int:
        state = state_from(address)
        totals = state.totals[0]
        return next_task(
            QueueInputs(
                totals.now,
                vector(state.seconds, 0, totals.choices),
                vector(state.enqueued, 0, totals.choices),
                vector(state.ttft_slo, 0, totals.choices),
                vector(state.postponed, 0, totals.choices),
                vector(state.lost, 0, totals.choices),
                state.rules[0].window,
                state.rules[0].cap,
                vector(state.head, 0, MAX_WINDOW),
            )
        )

    return call


def _binding(bind: Callable[[BindingInputs], int]) -> Callable[[int], int]:
    def call(address: int) -> int:
        state = state_from(address)
        totals = state.totals[0]
        return bind(
            BindingInputs(
                totals.needed_kv,
                vector(state.kv_free, 0, totals.choices),
                vector(state.kv_capacity, 0, totals.choices),
                vector(state.bound, 0, totals.choices),
                vector(state.prefix_hit, 0, totals.choices),
                vector(state.load, 0, totals.choices),
                totals.cursor % totals.choices,
                vector(state.prefix_hit, 0, totals.choices),
            )
        )

    return call


@functools.cache
def routing_code(name: str) -> Any:
    """Return a routing policy's machine code, compiling or loading it first; where it is stands at ``.address``."""
    return callback(_routing(POLICIES[name].route))


@functools.cache
def order_code(name: str) -> Any:
    """Return a queue order's machine code."""
    return callback(_order(ORDERS[name].next_task))


@functools.cache
def binding_code(name: str) -> Any:
    """Return a binding's machine code."""
    return callback(_binding(BINDINGS[name].bind))
