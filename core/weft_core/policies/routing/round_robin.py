"""Send prefills to the prefill workers in turn (vllm-router, sglang-router).

The one whose turn it is was chosen longest ago. Hand-worked example (test_policy_peers.py): last chosen 3, 9 and 5
seconds ago: the second.
"""

import math

from weft_core.policies.inputs import LOCAL, RoutingInputs
from weft_core.policies.policy import RoutingPolicy
from weft_core.policies.reasons import NO_PREFILL_WORKER, reason

IN_TURN = reason("in-turn", "the prefill worker that was chosen longest ago")


def route_round_robin(inputs: RoutingInputs) -> tuple[int, int]:
    """Decide: the worker chosen longest ago, the first of equals; local when there is none."""
    best = LOCAL
    longest = math.inf
    for i in range(len(inputs.remote)):
        if best == LOCAL or inputs.remote[i].used_at < longest:
            best = i
            longest = inputs.remote[i].used_at
    return best, NO_PREFILL_WORKER if best == LOCAL else IN_TURN


POLICY = RoutingPolicy(
    "round-robin", "the prefill workers in turn", "vllm-router 0.1.17 and sglang-router 0.3.2, round_robin",
    route_round_robin, reads_history=False,
)  # fmt: skip
