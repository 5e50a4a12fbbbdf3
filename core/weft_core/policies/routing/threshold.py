"""Offload long prompts, and any prompt while decoding is busy, as long as prefill workers have room (book, chapter 17).

``should_offload_prefill`` with the rules of the text around it, where both differ: a long queue means local, so that
the prefill workers catch up (as printed, a busy decode worker offloads whatever the queue is); only a task of urgent
TTFT skips the queue (``urgent_ttft``, none by default). The prompt length counts after prefix hits, so it is the
increment here; the queue is that of all prefill workers together. A prompt that is mostly cached stays (Table 17-2)
where ``cached_share`` says above which share. Hand-worked example (test_policy_threshold.py): 300 tokens, 4 queued:
remote; 300 tokens, 10 queued: local; 10 tokens, 50 queued, batch 8: local.
"""

import math

from weft_core.policies.finish import queued_tasks, stay_or_offload
from weft_core.policies.inputs import LOCAL, RoutingInputs
from weft_core.policies.policy import Parameter, RoutingPolicy
from weft_core.policies.reasons import reason

LONG_PROMPT = reason("long-prompt", "the prompt is long and prefill workers have room")
DECODE_BUSY = reason("decode-busy", "the decode worker is busy")
SHORT_PROMPT = reason("short-prompt", "the prompt is short")
PROMPT_CACHED = reason("prompt-cached", "the decode worker has most of the prompt in its cache")
QUEUE_FULL = reason("queue-full", "the prefill workers' queue is too long")

PROMPT_LENGTH = 0
QUEUE_LIMIT = 1
DECODE_LOAD = 2
URGENT_TTFT = 3
CACHED_SHARE = 4
PARAMETERS = (
    Parameter("prompt_length", 256, 0, 1e9, "tokens", "new tokens from which a prompt is long"),
    Parameter("queue_limit", 10, 0, 1e6, "tasks", "queued on all prefill workers from which they have no room"),
    Parameter("decode_load", 8, 0, 1e6, "sequences", "decoding at once from which the decode worker is busy"),
    Parameter("urgent_ttft", 0.0, 0.0, math.inf, "seconds", "a TTFT SLO up to this skips the limit of the queue"),
    Parameter("cached_share", 1.0, 0.0, 1.0, "share", "of the prompt, cached, above which it stays local; 1: never"),
)


def route_threshold(inputs: RoutingInputs) -> tuple[int, int]:
    """Decide; remote tasks go to the worker that should finish first."""
    task, params = inputs.task, inputs.params
    if task.history > params[CACHED_SHARE] * (task.history + task.increment):
        return LOCAL, PROMPT_CACHED
    long_prompt = task.increment >= params[PROMPT_LENGTH]
    wanted = long_prompt or inputs.local.batch >= params[DECODE_LOAD]
    room = queued_tasks(inputs.remote) < params[QUEUE_LIMIT] or task.ttft_slo <= params[URGENT_TTFT]
    return stay_or_offload(
        inputs, not (wanted and room), QUEUE_FULL if wanted else SHORT_PROMPT,
        LONG_PROMPT if long_prompt else DECODE_BUSY,
    )  # fmt: skip


POLICY = RoutingPolicy(
    "threshold", "long prompts to prefill workers while they have room",
    "AI systems performance engineering, chapter 17, Table 17-2 and should_offload_prefill", route_threshold,
    PARAMETERS,
)  # fmt: skip
