"""Offload a prefill when weighted votes add up to more than ``remote_prefill_min_score`` (book, chapter 17).

A prompt above the length votes for remote, a queue above the depth against it; as further votes, off by default, a
busy decode worker speaks for remote and the share of the prompt whose KV the decode worker holds against it.
Hand-worked example (test_policy_threshold.py): 300 tokens, 3 queued: 0.7 > 0.5, remote; 11 queued: 0.7 - 0.3
= 0.4, local.
"""

from collections.abc import MutableSequence, Sequence

from weft_core.policies.features import LOCAL, LOCAL_BATCH, TASK_HISTORY, TASK_INCREMENT
from weft_core.policies.finish import offload
from weft_core.policies.parameter import Parameter, defaults
from weft_core.policies.reasons import LOW_SCORE, NO_PREFILL_WORKER, SCORE
from weft_core.policies.threshold import queued_tasks

SOURCE = "AI systems performance engineering, chapter 17, disaggregated_router"
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
PARAMS = defaults(PARAMETERS)


def remote_score(
    task: Sequence[float], local: Sequence[float], remote: Sequence[float], workers: int, params: Sequence[float]
) -> float:
    """Return the sum of the votes."""
    score = 0.0
    if task[TASK_INCREMENT] > params[PROMPT_LENGTH]:
        score += params[LENGTH_WEIGHT]
    if queued_tasks(remote, workers) > params[QUEUE_DEPTH]:
        score -= params[QUEUE_WEIGHT]
    if local[LOCAL_BATCH] >= params[DECODE_LOAD]:
        score += params[DECODE_WEIGHT]
    prompt = task[TASK_HISTORY] + task[TASK_INCREMENT]
    if prompt > 0:
        score -= params[CACHE_WEIGHT] * task[TASK_HISTORY] / prompt
    return score


def route_weighted_score(
    task: Sequence[float],
    local: Sequence[float],
    remote: Sequence[float],
    workers: int,
    params: Sequence[float],
    costs: MutableSequence[float],
) -> tuple[int, int]:
    """Decide; remote tasks go to the worker that should finish first."""
    if workers == 0:
        return LOCAL, NO_PREFILL_WORKER
    if remote_score(task, local, remote, workers, params) <= params[MIN_SCORE]:
        return LOCAL, LOW_SCORE
    return offload(remote, workers, costs, SCORE)
