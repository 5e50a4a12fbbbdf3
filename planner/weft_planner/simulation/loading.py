"""Have the event loop in memory before the first run, and say so where it has to be compiled."""

import sys

from weft_planner.stages import COMPILING, Progress


def load_simulator(progress: Progress) -> None:
    """Load the event loop, or compile it: then ``progress`` reports it, because it takes up to a minute of a core."""
    if f"{__package__}.event_loop" in sys.modules:
        return
    from weft_planner.simulation.compiled import compiled_before

    kept = compiled_before()
    if not kept:
        progress(COMPILING, 0, 1)
    from weft_planner.simulation import event_loop  # the import compiles or loads it

    del event_loop
    if not kept:
        progress(COMPILING, 1, 1)
