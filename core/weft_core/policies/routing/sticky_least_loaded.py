"""Keep each session on one prefill worker; a new one goes to the worker with the fewest sessions (vllm-router).

That router counts a session from its first request until two hours after its last. Among equals it takes the one that a
hash of the session's name chooses, here the first. Where sessions are not counted, as in Weft's router, requests
are. Hand-worked example (test_policy_peers.py): a later round goes back to the worker with 9 queued requests.
"""

import math

from weft_core.policies.finish import shortest_queue
from weft_core.policies.inputs import LOCAL, RoutingInputs
from weft_core.policies.policy import RoutingPolicy
from weft_core.policies.reasons import NO_PREFILL_WORKER, reason

SAME_WORKER = reason("same-worker", "the prefill worker that its session is on")
FEWEST_SESSIONS = reason("fewest-sessions", "a new session, to the prefill worker with the fewest")


def route_sticky_least_loaded(inputs: RoutingInputs) -> tuple[int, int]:
    """Decide: the worker that had the session's last prefill, else the one with the fewest sessions."""
    remote = inputs.remote
    if len(remote) == 0:
        return LOCAL, NO_PREFILL_WORKER
    best = LOCAL
    if inputs.task.round > 0:
        most = 0.0
        for i in range(len(remote)):
            if remote[i].sent > most:
                best = i
                most = remote[i].sent
        if best != LOCAL:
            return best, SAME_WORKER
    fewest = math.inf
    for i in range(len(remote)):
        if remote[i].sessions < fewest:
            best = i
            fewest = remote[i].sessions
    return best if best != LOCAL else shortest_queue(remote), FEWEST_SESSIONS


POLICY = RoutingPolicy(
    "sticky-least-loaded", "the session's own prefill worker, at first the one with the fewest sessions",
    "vllm-router 0.1.17, sticky_least_loaded", route_sticky_least_loaded, reads_history=False,
)  # fmt: skip
