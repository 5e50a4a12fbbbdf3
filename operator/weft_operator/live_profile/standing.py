"""Whether workers leave room for a measurement. Pure."""

from typing import Literal

from weft_operator.status import Result

Standing = Literal["Settled", "Troubled", "Changing"]
"""Settled: the workers are those of the plan, so what they take of the budget is known, and a measurement may begin.
Troubled: some are not ready, as after a crash; what is under way goes on. Changing: it makes way, for a change of the
plan or for a worker that finds no node."""


def standing_of(result: Result) -> Standing:
    """Return how the workers of a pass stand; coordinators take no GPU and are left out."""
    planning = result.planned.reason == "Planning"
    on_the_way = result.in_force is not None or bool(result.leaving)
    if planning or on_the_way or any(state.waits or state.unschedulable for state in result.workers):
        return "Changing"
    troubled = result.failure is not None or result.lost or not all(state.ready for state in result.workers)
    return "Troubled" if troubled else "Settled"
