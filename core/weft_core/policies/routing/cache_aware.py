"""Send a prefill where most of its prompt was sent before, unless loads differ too much (vllm-router, sglang-router).

With more than ``cache_threshold`` of the prompt sent to some worker, the one with most of it gets the rest, the least
loaded of equals; otherwise the least loaded worker. When the busiest worker has over ``balance_abs_threshold`` requests
more than the idlest, and over ``balance_rel_threshold`` times as many, the least loaded one always. These routers
remember what they sent, not what the engine still has. They know of no sessions: prefill workers read no history.

Hand-worked example (test_policy_peers.py): 400 of 1,000 tokens sent to the second of two workers, loads 0 and 50: the
second (0.4 > 0.3); loads 0 and 65: the first (65 > 64, and 65 > 1.5 x 0).
"""

from weft_core.policies.finish import shortest_queue
from weft_core.policies.inputs import LOCAL, RoutingInputs
from weft_core.policies.policy import Parameter, RoutingPolicy
from weft_core.policies.reasons import NO_PREFILL_WORKER, reason

SENT_BEFORE = reason("sent-before", "the prefill worker that earlier rounds of this session, or like prompts, went to")
LEAST_LOADED = reason("least-loaded", "the prefill worker with the fewest requests; none has seen enough of the prompt")
UNBALANCED = reason("unbalanced", "the prefill worker with the fewest requests, as loads differ too much")

CACHE_THRESHOLD = 0
BALANCE_ABS_THRESHOLD = 1
BALANCE_REL_THRESHOLD = 2
PARAMETERS = (
    Parameter("cache_threshold", 0.3, 0.0, 1.0, "share", "of the prompt above which it goes where that was sent"),
    Parameter("balance_abs_threshold", 64, 0, 1e6, "requests", "more at the busiest worker than at the idlest, and"),
    Parameter("balance_rel_threshold", 1.5, 1.0, 1e6, "factor", "above which the least loaded worker gets it"),
)


def route_cache_aware(inputs: RoutingInputs) -> tuple[int, int]:
    """Decide: the worker that most of the prompt was sent to, or the least loaded; local when there is none."""
    remote, params = inputs.remote, inputs.params
    idlest = shortest_queue(remote)
    if idlest == LOCAL:
        return LOCAL, NO_PREFILL_WORKER
    least = remote[idlest].queued
    most = least
    best = idlest
    for i in range(len(remote)):
        most = max(most, remote[i].queued)
        if remote[i].sent > remote[best].sent or (
            remote[i].sent == remote[best].sent and remote[i].queued < remote[best].queued
        ):
            best = i
    if most - least > params[BALANCE_ABS_THRESHOLD] and most > params[BALANCE_REL_THRESHOLD] * least:
        return idlest, UNBALANCED
    if remote[best].sent > params[CACHE_THRESHOLD] * (inputs.task.history + inputs.task.increment):
        return best, SENT_BEFORE
    return idlest, LEAST_LOADED


POLICY = RoutingPolicy(
    "cache-aware", "the prefill worker that most of the prompt was sent to before",
    "vllm-router 0.1.17 and sglang-router 0.3.2, cache_aware", route_cache_aware, PARAMETERS, reads_history=False,
)  # fmt: skip
