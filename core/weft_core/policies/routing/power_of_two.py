"""Send a prefill to the less loaded of two prefill workers drawn at random (vllm-router, sglang-router).

Mitzenmacher's two choices. The load is the number of queued and running prefills; sglang-router asks its workers for
their loads instead. Rounds of a session meet their earlier prompts by chance. Hand-worked example
(test_policy_peers.py): drawn are the third with 5 and the first with 4: the first, though the second has none.
"""

from weft_core.policies.inputs import LOCAL, RoutingInputs
from weft_core.policies.policy import RoutingPolicy
from weft_core.policies.reasons import NO_PREFILL_WORKER, reason

OF_TWO = reason("of-two", "the less loaded of two prefill workers drawn at random")


def route_power_of_two(inputs: RoutingInputs) -> tuple[int, int]:
    """Decide between the first two workers of the random order; the first of equals, local when there is none."""
    remote, order = inputs.remote, inputs.order
    if len(remote) == 0:
        return LOCAL, NO_PREFILL_WORKER
    best = order[0]
    if len(remote) > 1 and remote[order[1]].queued < remote[best].queued:
        best = order[1]
    return best, OF_TWO


POLICY = RoutingPolicy(
    "power-of-two", "the less loaded of two random prefill workers",
    "vllm-router 0.1.17 and sglang-router 0.3.2, power_of_two", route_power_of_two, reads_order=True,
    reads_history=False,
)  # fmt: skip
