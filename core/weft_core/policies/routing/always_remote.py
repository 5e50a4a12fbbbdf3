"""Send every prefill to a random prefill worker: x = 0, Dynamo's plain mode, a dispatcher without load figures.

With load figures it would be ``remote-jsq``.
"""

from weft_core.policies.inputs import LOCAL, RoutingInputs
from weft_core.policies.policy import RoutingPolicy
from weft_core.policies.reasons import NO_PREFILL_WORKER, reason

ALWAYS_REMOTE = reason("always-remote", "every prefill goes to a prefill worker")


def route_always_remote(inputs: RoutingInputs) -> tuple[int, int]:
    """Decide: the first worker of a random order."""
    if len(inputs.remote) == 0:
        return LOCAL, NO_PREFILL_WORKER
    return inputs.order[0], ALWAYS_REMOTE


POLICY = RoutingPolicy(
    "always-remote", "a random prefill worker", "PPD, x = 0; Dynamo", route_always_remote, reads_order=True
)
