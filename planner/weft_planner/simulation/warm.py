"""Compile the simulator before it is needed: for an image, an installation, or a test run.

``python -m weft_planner.simulation.warm`` fills the cache with both loops and every policy: some 40 s of one core,
or none when all of it is there. Where plans can fit silicon tables, it compiles the loop of a fit, too (8 s). With
NUMBA_CPU_NAME=generic the code runs on any processor of this kind.
"""

from collections.abc import Iterable
from importlib.util import find_spec


def warm(*, routes: Iterable[str] | None = None, orders: Iterable[str] | None = None) -> None:
    """Compile, or load, the event loop and the policies with these names; None stands for all of them."""
    from weft_core.policies.registry import BINDINGS, ORDERS, POLICIES
    from weft_planner.simulation import decode_pool, event_loop, policies  # compiles the event loop, or loads it

    del event_loop
    decode_pool.compile_loop()
    for name in POLICIES if routes is None else routes:
        policies.routing_code(name)
    for name in ORDERS if orders is None else orders:
        policies.order_code(name)
    for name in BINDINGS:
        policies.binding_code(name)
    if find_spec("aiconfigurator_core") is not None:  # then plans fit its tables
        from weft_planner.profiling.compiled_regression import compile_fits

        compile_fits()


if __name__ == "__main__":
    warm()
