"""Bind a new session by how well a worker's KV cache matches it, less how full that cache is.

score = hit / need - used / capacity: a full match is worth an empty cache, so a hot prefix does not pile all sessions
on one worker (KV cache-aware routing of TensorRT-LLM's disaggregated server and of the book's Table 17-1; the sources
name the strategy, the score is ours). Hand-worked example (test_policy_bindings.py): need 1,000; hit 600 at 90 % use
scores -0.3, no hit at 20 % use -0.2: the second.
"""

from collections.abc import Sequence

SOURCE = "TensorRT-LLM disaggregated serving; AI systems performance engineering, chapter 17, Table 17-1"


def bind_kv_aware(
    need: float, kv_free: Sequence[float], kv_capacity: Sequence[float], prefix_hit: Sequence[float]
) -> int:
    """Return the worker with the best score among those with room, the first of equals, -1 without one."""
    best = -1
    most = 0.0
    for i in range(len(kv_free)):
        if kv_free[i] < need - prefix_hit[i]:
            continue
        score = prefix_hit[i] / max(need, 1.0) - (1.0 - kv_free[i] / max(kv_capacity[i], 1.0))
        if best < 0 or score > most:
            best = i
            most = score
    return best
