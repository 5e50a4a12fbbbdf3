"""Offload a prefill when weighted votes add up to more than ``remote_prefill_min_score`` (book, chapter 17).

A prompt above the length votes for remote, a queue above the depth against it; as further votes, off by default, a
busy decode worker speaks for remote and the share of the prompt whose KV the decode worker holds against it.
Hand-worked example (test_policy_threshold.py): 300 tokens, 3 queued: 0.7 > 0.5, remote; 11 queued: 0.7 - 0.3
= 0.4, local.
"""

from weft_core.policies.finish import queued_tasks, stay_or_offload
from weft_core.policies.inputs import RoutingInputs
from weft_core.policies.policy import Parameter, RoutingPolicy
from weft_core.policies.reasons import reason

SCORE = reason("score", "the weighted score is high enough for a prefill worker")
LOW_SCORE = reason("low-score", "the weighted score is too low for a prefill worker")

PROMPT_LENGTH = 0
LENGTH_WEIGHT = 1
QUEUE_DEPTH = 2
QUEUE_WEIGHT = 3
DECODE_LOAD = 4
DECODE_WEIGHT = 5
CACHE_WEIGHT = 6
MIN_SCORE = 7
PARAMETERS = (
    Parameter("prompt_length", 256, 0, 1e9, "tokens", "new tokens above which the length votes for remote"),
    Parameter("length_weight", 0.7, 0.0, 100.0, "score", "of that vote"),
    Parameter("queue_depth", 10, 0, 1e6, "tasks", "queued on all prefill workers above which the queue votes against"),
    Parameter("queue_weight", 0.3, 0.0, 100.0, "score", "of that vote"),
    Parameter("decode_load", 8, 0, 1e6, "sequences", "decoding at once from which the load votes for remote"),
    Parameter("decode_weight", 0.0, 0.0, 100.0, "score", "of that vote"),
    Parameter("cache_weight", 0.0, 0.0, 100.0, "score", "against remote, times the cached share of the prompt"),
    Parameter("remote_prefill_min_score", 0.5, -100.0, 100.0, "score", "above which a prefill is offloaded"),
)


def remote_score(inputs: RoutingInputs) -> float:
    """Return the sum of the votes."""
    task, params = inputs.task, inputs.params
    score = 0.0
    if task.increment > params[PROMPT_LENGTH]:
        score += params[LENGTH_WEIGHT]
    if queued_tasks(inputs.remote) > params[QUEUE_DEPTH]:
        score -= params[QUEUE_WEIGHT]
    if inputs.local.batch >= params[DECODE_LOAD]:
        score += params[DECODE_WEIGHT]
    prompt = task.history + task.increment
    if prompt > 0:
        score -= params[CACHE_WEIGHT] * task.history / prompt
    return score


def route_weighted_score(inputs: RoutingInputs) -> tuple[int, int]:
    """Decide; remote tasks go to the worker that should finish first."""
    return stay_or_offload(inputs, remote_score(inputs) <= inputs.params[MIN_SCORE], LOW_SCORE, SCORE)


POLICY = RoutingPolicy(
    "weighted-score", "a prefill worker above a sum of weighted votes",
    "AI systems performance engineering, chapter 17, disaggregated_router", route_weighted_score, PARAMETERS,
)  # fmt: skip
