"""Run every prefill on the decode worker, first rounds too (``fixed-x`` with x = 1 does not)."""

from weft_core.policies.inputs import LOCAL, RoutingInputs
from weft_core.policies.policy import RoutingPolicy
from weft_core.policies.reasons import reason

ALWAYS_LOCAL = reason("always-local", "every prefill runs on the decode worker")


def route_always_local(inputs: RoutingInputs) -> tuple[int, int]:  # noqa: ARG001 - every policy takes them
    """Decide: the bound decode worker."""
    return LOCAL, ALWAYS_LOCAL


POLICY = RoutingPolicy("always-local", "every prefill on the decode worker", "PPD, x = 1", route_always_local)
