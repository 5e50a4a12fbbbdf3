"""Let a hash of the session's name choose the prefill worker of all its rounds (vllm-router, sglang-router).

Those routers place each worker on a ring at 160 points, so that few sessions move when a worker comes or goes; the
shares of the workers are then equal but for a tenth. Here they are equal, in the workers' order. A session without a
name gets a random worker. Hand-worked example (test_policy_peers.py): 0.49 of four workers is the second, 0.5 the
third.
"""

from weft_core.policies.inputs import LOCAL, RoutingInputs
from weft_core.policies.policy import RoutingPolicy
from weft_core.policies.reasons import NO_PREFILL_WORKER, reason

SESSION_HASH = reason("session-hash", "the prefill worker that a hash of the session's name chooses")


def route_consistent_hash(inputs: RoutingInputs) -> tuple[int, int]:
    """Decide by the session's hash alone; local when there is no prefill worker."""
    count = len(inputs.remote)
    if count == 0:
        return LOCAL, NO_PREFILL_WORKER
    place = inputs.task.session
    if place != place:
        place = inputs.task.uniform
    return min(count - 1, int(place * count)), SESSION_HASH


POLICY = RoutingPolicy(
    "consistent-hash", "the prefill worker that the session's hash chooses",
    "vllm-router 0.1.17, consistent_hash; sglang-router 0.3.2, consistent_hashing", route_consistent_hash,
    reads_uniform=True, reads_history=False,
)  # fmt: skip
