"""Whether workers leave room for a measurement. Pure."""

from weft_operator.profiling.decide import WorkerStability
from weft_operator.status.conditions import Result


def standing_of(result: Result) -> WorkerStability:
    """Return how the workers of a pass stand; coordinators take no GPU and are left out."""
    planning = result.planned.reason == "Planning"
    on_the_way = result.in_force is not None or bool(result.leaving)
    if planning or on_the_way or any(state.waits or state.unschedulable for state in result.workers):
        return "Changing"
    troubled = result.failure is not None or result.lost or not all(state.ready for state in result.workers)
    return "Troubled" if troubled else "Settled"
