"""Bind a new session to the decode worker that holds most of its prompt in its prefix cache (book, Table 17-1).

A hit saves that part of the KV memory, too. Without any hit, and among equal hits, headroom decides. Hand-worked
example (test_policy_bindings.py): hits 0, 300, 300, free 900, 400, 500 of 1,000: the third.
"""

from collections.abc import Sequence

from weft_core.policies.kv_headroom import headroom

SOURCE = "AI systems performance engineering, chapter 17, Table 17-1"


def bind_prefix_aware(
    need: float,
    kv_free: Sequence[float],
    kv_capacity: Sequence[float],
    sessions: Sequence[float],
    prefix_hit: Sequence[float],
) -> int:
    """Return the worker with the longest hit, in tokens, among those with room for the rest, -1 without one."""
    best = -1
    most = 0.0
    for i in range(len(kv_free)):
        if kv_free[i] < need - prefix_hit[i]:
            continue
        spare = headroom(need, kv_free[i], kv_capacity[i])
        if (
            best < 0
            or prefix_hit[i] > prefix_hit[best]
            or (
                prefix_hit[i] == prefix_hit[best] and (spare > most or (spare == most and sessions[i] < sessions[best]))
            )
        ):
            best = i
            most = spare
    return best
