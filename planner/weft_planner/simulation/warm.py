"""Compile the simulator before it is needed: for an image, an installation, or a test run.

``python -m weft_planner.simulation.warm`` fills the cache with the kernel and every rule: some 20 s of one core, or
none when all of it is there. With NUMBA_CPU_NAME=generic the code runs on any processor of this kind.
"""

from collections.abc import Iterable


def warm(*, routes: Iterable[str] | None = None, orders: Iterable[str] | None = None) -> None:
    """Compile, or load, the kernel and the rules with these names; None stands for all of them."""
    from weft_core.policies.catalogue import BINDINGS, ORDERS, POLICIES
    from weft_planner.simulation import kernel, rules  # the import compiles the kernel, or loads it

    del kernel
    for name in POLICIES if routes is None else routes:
        rules.route_address(POLICIES[name].code)
    for name in ORDERS if orders is None else orders:
        rules.order_address(ORDERS[name].code)
    for binding in BINDINGS.values():
        rules.binding_address(binding.code)


if __name__ == "__main__":
    warm()
