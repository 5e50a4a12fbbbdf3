"""Bind a new session by how well a worker's KV cache matches it, less how full that cache is.

score = hit / needed - used / capacity: a full match is worth an empty cache, so a hot prefix does not pile all sessions
on one worker (KV cache-aware routing of TensorRT-LLM's disaggregated server and of the book's Table 17-1; the sources
name the strategy, the score is ours). Hand-worked example (test_policy_bindings.py): 1,000 tokens needed; hit 600 at
90 % use scores -0.3, no hit at 20 % use -0.2: the second.
"""

import math

from weft_core.policies.inputs import BindingInputs
from weft_core.policies.policy import BindingPolicy


def bind_kv_aware(inputs: BindingInputs) -> int:
    """Return the worker with the best score among those with room, the first of equals, -1 without one."""
    best = -1
    most = -math.inf
    for i in range(len(inputs.kv_free)):
        hit = inputs.prefix_hit[i]
        if inputs.kv_free[i] < inputs.needed_kv - inputs.in_memory[i]:
            continue
        used = 1.0 - inputs.kv_free[i] / max(inputs.kv_capacity[i], 1.0)
        score = hit / max(inputs.needed_kv, 1.0) - used
        if score > most:
            best = i
            most = score
    return best


POLICY = BindingPolicy(
    "kv-aware", "cache match less cache use",
    "TensorRT-LLM disaggregated serving; AI systems performance engineering, chapter 17, Table 17-1", bind_kv_aware,
    reads_prefix_hits=True,
)  # fmt: skip
