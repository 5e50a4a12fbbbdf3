"""Offload long prompts while prefill workers have room, and any prompt while decoding is busy (book, chapter 17).

The rule of ``should_offload_prefill``: the prompt length counts after prefix hits, so it is the increment here; the
queue is that of all prefill workers together. A busy decode worker offloads tasks of urgent TTFT even when the queue is
long; as printed any SLO counts as urgent (``urgent_ttft`` is unbounded by default). Hand-worked example
(test_policy_threshold.py): 300 tokens, 4 queued: remote; 300 tokens, 10 queued, batch 3: local.
"""

import math
from collections.abc import MutableSequence, Sequence

from weft_core.policies.features import (
    LOCAL,
    LOCAL_BATCH,
    REMOTE_QUEUED,
    REMOTE_SIZE,
    TASK_INCREMENT,
    TASK_TTFT_SLO,
)
from weft_core.policies.finish import offload
from weft_core.policies.parameter import Parameter, defaults
from weft_core.policies.reasons import DECODE_BUSY, LONG_PROMPT, NO_PREFILL_WORKER, QUEUE_FULL, SHORT_PROMPT

SOURCE = "AI systems performance engineering, chapter 17, Table 17-2 and should_offload_prefill"
PROMPT_LENGTH = 0
QUEUE_LIMIT = 1
DECODE_LOAD = 2
URGENT_TTFT = 3
PARAMETERS = (
    Parameter("prompt_length", 256, 0, 1e9, "tokens", "new tokens from which a prompt is long"),
    Parameter("queue_limit", 10, 0, 1e6, "tasks", "queued on all prefill workers from which they have no room"),
    Parameter("decode_load", 8, 0, 1e6, "sequences", "decoding at once from which the decode worker is busy"),
    Parameter("urgent_ttft", math.inf, 0.0, math.inf, "seconds", "a TTFT SLO up to this is urgent"),
)
PARAMS = defaults(PARAMETERS)


def queued_tasks(remote: Sequence[float], workers: int) -> float:
    """Return how many tasks all prefill workers hold together."""
    total = 0.0
    for i in range(workers):
        total += remote[i * REMOTE_SIZE + REMOTE_QUEUED]
    return total


def route_threshold(
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
    long_prompt = task[TASK_INCREMENT] >= params[PROMPT_LENGTH]
    room = queued_tasks(remote, workers) < params[QUEUE_LIMIT]
    busy = local[LOCAL_BATCH] >= params[DECODE_LOAD] and task[TASK_TTFT_SLO] <= params[URGENT_TTFT]
    if not (long_prompt and room) and not busy:
        return LOCAL, QUEUE_FULL if long_prompt else SHORT_PROMPT
    return offload(remote, workers, costs, LONG_PROMPT if long_prompt and room else DECODE_BUSY)
