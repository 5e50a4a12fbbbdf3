"""Offload long prompts while prefill workers have room, and any prompt while decoding is busy (book, chapter 17).

The rule of ``should_offload_prefill``: the prompt length counts after prefix hits, so it is the increment here; the
queue is that of all prefill workers together. A busy decode worker offloads tasks of urgent TTFT even when the queue is
long; as printed any SLO counts as urgent (``urgent_ttft`` is unbounded by default). Hand-worked example
(test_policy_threshold.py): 300 tokens, 4 queued: remote; 300 tokens, 10 queued, batch 3: local.
"""

import math

from weft_core.policies.finish import queued_tasks, stay_or_offload
from weft_core.policies.inputs import RoutingInputs
from weft_core.policies.policy import Parameter, RoutingPolicy
from weft_core.policies.reasons import reason

LONG_PROMPT = reason("long-prompt", "the prompt is long and prefill workers have room")
DECODE_BUSY = reason("decode-busy", "the decode worker is busy")
SHORT_PROMPT = reason("short-prompt", "the prompt is short")
QUEUE_FULL = reason("queue-full", "the prefill workers' queue is too long")

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


def route_threshold(inputs: RoutingInputs) -> tuple[int, int]:
    """Decide; remote tasks go to the worker that should finish first."""
    task, params = inputs.task, inputs.params
    long_prompt = task.increment >= params[PROMPT_LENGTH]
    offloads = long_prompt and queued_tasks(inputs.remote) < params[QUEUE_LIMIT]
    busy = inputs.local.batch >= params[DECODE_LOAD] and task.ttft_slo <= params[URGENT_TTFT]
    return stay_or_offload(
        inputs, not offloads and not busy, QUEUE_FULL if long_prompt else SHORT_PROMPT,
        LONG_PROMPT if offloads else DECODE_BUSY,
    )  # fmt: skip


POLICY = RoutingPolicy(
    "threshold", "long prompts to prefill workers while they have room",
    "AI systems performance engineering, chapter 17, Table 17-2 and should_offload_prefill", route_threshold,
    PARAMETERS,
)  # fmt: skip
